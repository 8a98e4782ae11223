"""Random lives of a GPU's memory: in whatever order things happen, the simulated driver counts as the real one says.

A second, plain bookkeeping beside the model writes down what each allocation should be charged to, and counts again from
nothing in each step. The invariants, checked in each step:

- I1 An allocation is refused if the GPU has too little left, or a limit that holds for it; otherwise it is not.
- I2 dmem: what is used in a cgroup and all below it is what its tasks allocated, and never above its limit.
- I3 misc: what counts against an entry is what was charged to its address, and never above its limit. No other limit holds.
- I4 dmem: a new cgroup has no limit. misc: it has what its address has, or nothing.
- I5 A torn down GPU has no limits and no memory in use.
- I6 What is in use is what clients have allocated and not all of them have let go, managed memory included.
- I7 A process is told of no more memory than its limit, and of no more that is free than the GPU has.
- I8 No two cgroups have one address at the same time.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuagent.simulation.memory_accounting import (
    NO_LIMIT,
    AddressPool,
    Allocation,
    BackendName,
    MemoryAccounting,
    Refusal,
    RefusedError,
)

GPU = "GPU-a"
MOST_HARD = 100
"""The highest limit. Most GPUs have room for several groups at their limits, so that these decide."""
STEPS = 60
PICK = st.sampled_from(range(60))
"""Whichever there are, each as likely as any other."""
SIZE = st.integers(1, 60)
HARD = st.one_of(st.integers(0, MOST_HARD), st.just(NO_LIMIT))


@dataclass(eq=False)
class Group:
    """A cgroup in the plain bookkeeping; `limit` is that of dmem."""

    name: str
    parent: "Group | None"
    address: int
    limit: int = NO_LIMIT

    def upwards(self):
        group = self
        while group:
            yield group
            group = group.parent


@dataclass(eq=False)
class Charged:
    """An allocation, and what it should be charged to: with dmem its task's cgroup, with misc an address, or nothing."""

    allocation: Allocation
    size: int
    clients: set[str]
    group: Group | None = None
    address: int | None = None


@dataclass
class Plain:
    """What the bookkeeping knows."""

    charged: list[Charged] = field(default_factory=list)
    entries: dict[int, int] = field(default_factory=dict)
    """misc: hard limits by address."""

    def used_below(self, group):
        return sum(one.size for one in self.charged if one.group and group in one.group.upwards())

    def used_at(self, address):
        return sum(one.size for one in self.charged if one.address == address)

    def nearest(self, group):
        """misc: the address whose entry holds for a cgroup."""
        return next((above.address for above in group.upwards() if above.address in self.entries), None)


class RandomMemory(RuleBasedStateMachine):
    backend: BackendName

    @initialize(
        seed=st.integers(0, 9),
        reused=st.sampled_from([0.0, 0.84, 1.0]),
        capacity=st.sampled_from([MOST_HARD, 10 * MOST_HARD, 10 * MOST_HARD]),
    )
    def load(self, seed, reused, capacity):
        self.capacity = capacity
        self.model = MemoryAccounting(self.backend, {GPU: capacity}, root="root", addresses=AddressPool(seed, reused))
        self.root = Group("root", None, self.model.cgroup("root").address)
        self.groups = [self.root]
        self.plain = Plain()
        self.count = 0
        self.persistent = True
        self.open = set()
        self.add(self.root)

    @property
    def is_misc(self):
        return self.backend is BackendName.MISC

    def new_name(self):
        self.count += 1
        return str(self.count)

    def add(self, parent):
        name = self.new_name()
        group = Group(name, parent, self.model.add_cgroup(name, parent.name).address)
        self.groups.append(group)
        return group

    def pick(self, number):
        """Any cgroup but the root."""
        return self.groups[1 + number % (len(self.groups) - 1)]

    # -- what happens ----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.groups) < 12)
    @rule(number=PICK)
    def make(self, number):
        # Rather below a new cgroup than below an old one, so that the tree gets deep.
        parent = self.groups[-1 - number % min(3, len(self.groups))]
        group = self.add(parent)
        if not self.is_misc:
            limits = self.model.limits(GPU, group.name)
            assert (limits.hard, limits.used) == (NO_LIMIT, 0), "I4"
            return
        address = self.plain.nearest(group)
        hard = None if address is None else self.plain.entries[address]
        assert self.hard_of(group) == hard, "I4"

    @rule(number=PICK)
    def remove(self, number):
        group = self.pick(number)
        has_children = any(other.parent is group for other in self.groups)
        if not has_children and len(self.groups) > 2:
            self.model.remove_cgroup(group.name)
            self.groups.remove(group)

    @rule(number=PICK, hard=HARD)
    def limit(self, number, hard):
        group = self.pick(number)
        if self.is_misc:
            used = self.plain.used_at(group.address) if group.address in self.plain.entries else 0
            refused = hard < used
            assert self.refuses(self.model.set_limits, GPU, group.name, 0, hard) is (
                Refusal.INVALID_LIMIT if refused else None
            )
            if not refused:
                self.plain.entries[group.address] = hard
            return
        self.model.set_limits(GPU, group.name, 0, hard)
        if hard >= self.plain.used_below(group):
            group.limit = hard

    @rule(number=PICK, creator=PICK, size=SIZE, same=st.booleans(), ended=st.sampled_from([False, False, True]))
    def allocate(self, number, creator, size, same, ended):
        task = self.pick(number)
        opener = task if same else self.pick(creator)
        if ended:
            opener = None
        expected = Charged(None, size, set())
        too_much = size > self.capacity - self.model.used(GPU)
        if self.is_misc:
            expected.address = self.plain.nearest(opener) if opener else None
            if expected.address is not None:
                available = self.plain.entries[expected.address] - self.plain.used_at(expected.address)
                too_much |= size > available
        else:
            expected.group = task
            too_much |= any(self.plain.used_below(group) + size > group.limit for group in task.upwards())
        client = self.new_name()
        try:
            allocation = self.model.allocate(client, GPU, size, task=task.name, creator=opener.name if opener else None)
        except RefusedError as err:
            assert err.refusal is Refusal.OUT_OF_MEMORY
            assert too_much, "I1"
            return
        assert not too_much, "I1"
        self.keep(expected, allocation, client)

    @rule(size=SIZE)
    def allocate_managed(self, size):
        client = self.new_name()
        try:
            allocation = self.model.allocate_managed(client, GPU, size)
        except RefusedError:
            assert size > self.capacity - self.model.used(GPU), "I1"
            return
        self.keep(Charged(allocation, size, set()), allocation, client)

    def keep(self, charged, allocation, client):
        charged.allocation = allocation
        charged.clients.add(client)
        self.plain.charged.append(charged)
        self.open.add(client)

    @precondition(lambda self: self.plain.charged)
    @rule(number=PICK)
    def another_imports(self, number):
        charged = self.plain.charged[number % len(self.plain.charged)]
        client = self.new_name()
        self.model.import_memory(client, charged.allocation)
        charged.clients.add(client)
        self.open.add(client)

    @precondition(lambda self: self.open)
    @rule(number=PICK)
    def close(self, number):
        client = sorted(self.open)[number % len(self.open)]
        self.model.close(client)
        self.open.remove(client)
        for charged in [*self.plain.charged]:
            charged.clients.discard(client)
            if not charged.clients:
                self.plain.charged.remove(charged)
        self.rest()

    @rule()
    def open_nvml(self):
        self.model.open("NVML", GPU)
        self.open.add("NVML")

    # Limits must live long enough to meet.
    @rule(enabled=st.sampled_from([True] * 9 + [False]))
    def persistence(self, enabled):
        self.model.set_persistence(GPU, enabled)
        self.persistent = enabled
        self.rest()

    @rule(does=st.sampled_from([False] * 9 + [True]))
    def reset(self, does):
        if not does:
            return
        self.model.tear_down(GPU)
        self.torn_down()

    def rest(self):
        """Without persistence mode, the last client's end is the GPU's."""
        if not self.persistent and not self.open:
            self.torn_down()

    def torn_down(self):
        self.plain = Plain()
        for group in self.groups:
            group.limit = NO_LIMIT
        assert self.model.used(GPU) == 0, "I5"
        for group in self.groups[1:]:
            assert self.hard_of(group) == (None if self.is_misc else NO_LIMIT), "I5"

    def refuses(self, call, *args):
        try:
            call(*args)
        except RefusedError as err:
            return err.refusal
        return None

    def hard_of(self, group):
        """The limit that NVML reports; None: none."""
        try:
            return self.model.limits(GPU, group.name).hard
        except RefusedError as err:
            assert err.refusal is Refusal.NOT_SUPPORTED
            return None

    # -- what must be true -----------------------------------------------------------------------------------------

    @invariant()
    def dmem_counts_in_every_ancestor(self):
        if self.is_misc:
            return
        for group in self.groups[1:]:
            limits = self.model.limits(GPU, group.name)
            used = self.plain.used_below(group)
            assert (limits.hard, limits.used) == (group.limit, used), "I2"
            assert used <= limits.hard, "I2"

    @invariant()
    def misc_counts_at_the_nearest_entry(self):
        if not self.is_misc:
            return
        for address, hard in self.plain.entries.items():
            assert self.plain.used_at(address) <= hard, "I3"
        for group in self.groups[1:]:
            address = self.plain.nearest(group)
            if address is None:
                assert self.hard_of(group) is None, "I3"
                continue
            limits = self.model.limits(GPU, group.name)
            assert (limits.hard, limits.used) == (self.plain.entries[address], self.plain.used_at(address)), "I3"

    @invariant()
    def all_memory_is_counted_once(self):
        assert self.model.used(GPU) == sum(charged.size for charged in self.plain.charged), "I6"
        assert self.model.used(GPU) <= self.capacity, "I6"

    @invariant()
    def nobody_is_told_of_too_much(self):
        free = self.capacity - self.model.used(GPU)
        for group in self.groups[1:]:
            memory = self.model.memory(GPU, group.name)
            hard = group.limit
            if self.is_misc:
                address = self.plain.nearest(group)
                hard = NO_LIMIT if address is None else self.plain.entries[address]
            assert memory.total == min(hard, self.capacity), "I7"
            assert 0 <= memory.free <= min(free, memory.total), "I7"

    @invariant()
    def addresses_differ(self):
        addresses = {group.address for group in self.groups}
        assert len(addresses) == len(self.groups), "I8"


class RandomDmem(RandomMemory):
    backend = BackendName.DMEM


class RandomMisc(RandomMemory):
    backend = BackendName.MISC


TestDmem = RandomDmem.TestCase
TestMisc = RandomMisc.TestCase
TestDmem.settings = TestMisc.settings = settings(
    max_examples=max(60, settings.default.max_examples // STEPS), stateful_step_count=STEPS
)
