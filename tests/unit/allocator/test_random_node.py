"""Random events on a node: no order of events, crashes and restarts grants a unit twice or loses one.

The core and the allocator are driven together with a small kubelet, which does its own accounting: free is what was
advertised healthy less what is held; it asks for preferred ids, allocates, and writes its checkpoint a moment after
the answer. Anything may happen between any two of its steps, also while an Allocate is under way.
"""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuagent.allocator.allocator import Allocator
from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.admission.kubelet_listing import Listed
from gpuagent.domain.deviceplugin.advertise import SETTLE_S, deadline
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import Inventory
from gpuagent.domain.gpus.health_verdict import MOST_SETTLE_S, HealthReading
from gpuagent.domain.node_state.device_lists import Advertised
from gpuagent.domain.node_state.isolation_drivers import IsolationDrivers
from gpuagent.domain.node_state.node_object import Node
from gpuagent.domain.node_state.resizes import Resizes
from gpuagent.domain.pods.exchange import key
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding, PodName
from gpuagent.domain.policy import Policy
from gpuagent.domain.reconcile.published_gpus import node_annotations
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.scheduling.node_gpus import NodeGpus, node_gpus
from gpuagent.domain.sharing.grant import DeviceStrategy, Grant
from gpuagent.domain.sharing.isolation_layers import NONE, Layer
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Isolates, Mode, Resources
from gpuagent.domain.sharing.units import parse_id, units_of
from gpuagent.domain.snapshot import Snapshot, ids_of, leaving_ids, snapshot
from gpuagent.domain.state import State
from gpuagent.domain.step import step
from gpuagent.isolation.interface import Starting
from tests.unit.allocator.fake_kubelet import check_cached
from tests.unit.domain.builders import CORE, MEM, WHOLE, gpu, node_json, nodes, owner, pod_json, uuid

EXCLUSIVE = "example.com/whole"
FOREIGN = "nvidia.com/gpu"
GPUS = (gpu(0, 4), gpu(1, 4), gpu(2, 6))
LIST_DELAY_S = 0.7
"""A new list reaches kubelet within this time."""

MODES = st.sampled_from([*map(str, Mode), *("share", "cgpu", "core_mem", "topology"), None, "nonsense"])
SPREAD = {6: "2"}
"""Memory sizes that carry the label to be spread over GPUs; no pod asks for so much without it."""


pytestmark = pytest.mark.usefixtures("impatient")


class Crash(Exception):
    """The agent dies in the middle of an Allocate."""


def is_app(held: Holding) -> bool:
    return not held.owner.container.startswith("init")


@dataclass
class KubeletPod:
    name: str
    json: dict[str, Any]
    held: list[Holding] = field(default_factory=list)
    pool: set[str] = field(default_factory=set)
    """What its init containers had and no later container took."""


@dataclass
class ContainerRequest:
    """One container: units by resource in the order in which kubelet will ask."""

    limits: dict[str, int]
    init: bool = False


def _paired(mem: int, core: int, core_first: bool) -> dict[str, int]:
    return {CORE: core, MEM: mem} if core_first else {MEM: mem, CORE: core}


_CORES = st.sampled_from([10, 40, 60])
SIZES = st.one_of(
    st.sampled_from([1, 2, 3, 4, 6]).map(lambda n: {MEM: n}),
    st.builds(lambda: {MEM: 6}),
    st.builds(_paired, st.sampled_from([1, 2, 3]), _CORES, st.booleans()),
    _CORES.map(lambda c: {CORE: c}),
    st.integers(1, 2).map(lambda n: {WHOLE: n}),
    st.integers(1, 2).map(lambda n: {EXCLUSIVE: n}),
)
"""Units by resource, in the order in which kubelet asks. Made once: hypothesis checks each new strategy at length."""
_APPS = st.sampled_from([1, 1, 1, 2])
_BEFORE = st.sampled_from([False, False, True])


@st.composite
def pods(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[ContainerRequest]:
    app = [ContainerRequest(draw(SIZES)) for _ in range(draw(_APPS))]
    before = [ContainerRequest(draw(SIZES), init=True)] if draw(_BEFORE) else []
    labelled = [r for r in (*before, *app) if r.limits.get(MEM, 0) in SPREAD]
    if labelled:  # the label is the pod's: such a pod has one container
        return [ContainerRequest({MEM: labelled[0].limits[MEM]})]
    return [*before, *app]


SMALL = st.sampled_from([0.05, 0.3, 1.0, SETTLE_S + 0.5])
ACTIONS = st.one_of(
    st.tuples(st.just("label"), MODES),
    st.tuples(st.just("wait"), SMALL),
    st.tuples(st.just("xid"), st.integers(0, 2)),
    st.tuples(st.just("reading"), st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 1, None]), st.booleans())),
    st.tuples(st.just("away"), st.integers(0, 2)),
    st.tuples(st.just("fence"), st.sets(st.integers(0, 2), max_size=1)),
    st.tuples(st.just("inventory"), st.just(0)),
    st.tuples(st.just("allocations"), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("deliver"), st.just(0)),
)
NUMBERS = st.sets(st.integers(0, 2), max_size=1)
ROUGH = st.one_of(
    st.tuples(st.just("time"), st.sampled_from([SETTLE_S, 3.0, 40.0])),
    st.tuples(st.just("change"), st.tuples(st.permutations(range(3)), NUMBERS, NUMBERS)),
    st.tuples(st.just("foreign"), st.integers(0, 2)),
    st.tuples(st.just("foreign end"), st.none()),
    st.tuples(st.just("restart"), st.none()),
)
HAPPENS = st.lists(ACTIONS, max_size=3)
Events = dict[str, list[tuple[str, Any]]]
EVENTS = st.just({}) | st.fixed_dictionaries(
    {}, optional={"before": HAPPENS, "during": HAPPENS, "after": HAPPENS, "crash": st.just([])}
)


class RandomNode(RuleBasedStateMachine):
    kubelet = "v1.36.3"

    @initialize(
        mode=st.sampled_from(Mode),
        exclusive=st.sampled_from([True, True, False]),
        isolated=st.sampled_from([True, True, True, False]),
        answers_queries=st.booleans(),
        lists_ended=st.booleans(),
    )
    def boot(self, mode: Mode, exclusive: bool, isolated: bool, answers_queries: bool, lists_ended: bool) -> None:
        everything = frozenset(Isolates)
        self.policy = Policy(resources=Resources(EXCLUSIVE if exclusive else None), core_step=1, core_mem_both=False)
        isolates = everything if isolated else frozenset()
        self.layer = Layer(driver=self.name, installed=isolated, isolates=isolates, modes=frozenset(Mode))
        self.answers_queries, self.lists_ended = answers_queries, lists_ended
        self.now = 100.0
        self.present = {g.uuid: g for g in GPUS}
        self.label: str | None = str(mode)
        self.remembered: Mode | None = mode
        self.living: dict[str, KubeletPod] = {}
        self.ended: dict[str, KubeletPod] = {}
        self.foreign: dict[str, str] = {}
        self.exchanged: dict[str, str] = {}
        self.count = 0
        self.received: dict[str, dict[str, bool]] = {}
        self.in_flight: frozenset[str] = frozenset()
        self.reading: tuple[float, tuple[Holding, ...], tuple[CheckpointEntry, ...]] | None = None
        self.during: list[tuple[str, Any]] = []
        self.crashes = False
        self.start_agent()
        self.all_is_settled()

    # -- the agent -----------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        self.state = State(
            policy=self.policy,
            node=Node(mode=self.remembered or Mode.DEFAULT),
            advertised=Advertised(lists=dict.fromkeys(self.policy.resources.names, ())),
            isolation=IsolationDrivers(layers={self.name: self.layer}),
            resizes=self.stored_resizes(),
        )
        self.allocator = Allocator(
            clock=lambda: self.now,
            kubelet=self,
            isolation=dict.fromkeys((self.name, NONE), self),
            strategy=DeviceStrategy.DEVICE_NODES,
            send_event=lambda _: None,
        )
        self.reading = None
        self.last_snapshot: Snapshot | None = None
        self.received = {resource: dict.fromkeys(ids, False) for resource, ids in self.received.items()}
        self.published_at = self.now
        self.show_inventory()
        self.show_pods()
        self.show_node()

    def stored_resizes(self) -> Resizes:
        """What a former run of the agent has stored."""
        return Resizes()

    def show_node(self) -> None:
        status = {"status": {"nodeInfo": {"kubeletVersion": self.kubelet}}}
        self.send(ev.NodeSeen(node_json(self.label) | status, self.now))

    def send(self, event: ev.Event) -> None:
        before = self.state
        # As the agent's loop does: no unit leaves a list on old knowledge of what kubelet is waiting for.
        running, last_end = self.allocator.in_flight.now()
        known, _ = step(before, ev.AllocatesSeen(running, last_end, self.now, self.allocator.recent_ids()))
        self.state, _ = step(known, event)
        self.last_snapshot = snapshot(self.state, self.last_snapshot)
        self.allocator.publish(self.last_snapshot)
        if self.state.node.object is not None:
            self.remembered = self.state.node.mode
        if self.state.advertised.lists != before.advertised.lists:
            listed = {i for blocks in self.state.advertised.lists.values() for block in blocks for i in ids_of(block)}
            assert self.in_flight <= listed, "kubelet would have crashed: a device vanished during its Allocate"
            self.published_at = min(self.published_at, self.now) if self.undelivered else self.now
        self.check()

    @property
    def undelivered(self) -> bool:
        return self.listed() != self.received

    def listed(self) -> dict[str, dict[str, bool]]:
        return {
            resource: {i: block.healthy and i not in leaving_ids(block) for block in blocks for i in ids_of(block)}
            for resource, blocks in self.state.advertised.lists.items()
        }

    def deliver(self) -> None:
        self.received = self.listed()
        self.published_at = self.now

    # -- isolation and kubelet's allocations, as the allocator sees them -----------------------------------------

    name = "model"

    def prepare(self, grant: Grant) -> Grant:
        """The middle of an Allocate: the place for whatever else happens then."""
        assert self.allocator.in_flight.now()[0] > 0
        happens, self.during = self.during, []
        for action in happens:
            self.do(*action)
        if self.crashes:
            self.crashes = False
            raise Crash
        return grant

    def verify(self, grant: Grant, starting: Starting) -> None:
        pass

    def query(self, pods: Collection[PodName] | None, *, listing: bool) -> Listed | None:
        if not self.answers_queries:
            return None
        pods = [PodName("ml", name) for name in self.living] if pods is None else pods
        return [(pod, tuple(self.living[pod.name].held)) for pod in pods if pod.name in self.living]

    def read(self, timeout_s: float) -> ev.HoldingsRead:
        return ev.HoldingsRead(self.allocations(), self.now, self.now, self.checkpoint())

    def allocations(self) -> tuple[Holding, ...]:
        listed = [*self.living.values(), *(self.still_listed() if self.lists_ended else ())]
        held = [h for pod in listed for h in pod.held if is_app(h)]
        return (*held, *(Holding(owner(name), FOREIGN, frozenset({u})) for name, u in self.foreign.items()))

    # -- what happens around it --------------------------------------------------------------------------------------

    def do(self, action: str, what: Any) -> None:
        {
            "label": self.change_label,
            "wait": self.wait,
            "xid": lambda n: self.send(ev.XidRaised(uuid(n), 79, self.now)),
            "reading": self.driver_reports,
            "away": lambda n: self.send(ev.GpuLost(uuid(n), "GPU is lost", self.now)),
            "fence": lambda events: self.send(ev.FenceRead(Fence(indexes=frozenset(map(str, events))), self.now)),
            "inventory": lambda _: self.show_inventory(),
            "allocations": self.read_allocations,
            "end": self.end_pod,
            "deliver": lambda _: self.deliver(),
            "time": self.time_passes,
            "change": self.the_inventory_changes,
            "foreign": self.another_plugin_sells_a_gpu,
            "foreign end": self.the_other_plugins_pods_end,
            "restart": lambda _: self.start_agent(),
        }[action](what)

    def driver_reports(self, events: tuple[int, int | None, bool]) -> None:
        n, action, returned = events
        self.send(ev.HealthRead(uuid(n), HealthReading(action=action), self.now, returned))

    def change_label(self, label: str | None) -> None:
        self.label = label
        self.show_node()

    def wait(self, seconds: float) -> None:
        if self.undelivered and self.now + seconds - self.published_at >= LIST_DELAY_S:
            self.deliver()
        self.now += seconds
        due = deadline(self.state)
        if due is not None and due <= self.now or seconds >= 1:
            self.send(ev.Tick(self.now))

    def show_inventory(self) -> None:
        self.send(ev.InventoryRead(Inventory(tuple(self.present.values()), (), "580", nodes(3)), self.now))

    def show_pods(self) -> None:
        living = [pod.json for pod in self.living.values()]
        ended = [{**pod.json, "status": {"phase": "Failed"}} for pod in self.not_deleted()]
        self.send(ev.PodsSeen(tuple(map(parse_pod, (*living, *ended))), self.now))

    def not_deleted(self) -> list[KubeletPod]:
        """Every second pod that has ended is still there, the others were deleted."""
        return list(self.ended.values())[1::2]

    def still_listed(self) -> list[KubeletPod]:
        """Whom kubelet's list of pods that hold something does not leave out; not even those that were deleted."""
        return list(self.ended.values())

    def read_allocations(self, begins: bool) -> None:
        """Begin a read of kubelet's allocations, or let the one under way arrive."""
        if begins:
            self.reading = (self.now, self.allocations(), self.checkpoint())
        elif self.reading:
            began, held, kept = self.reading
            self.reading = None
            self.send(ev.HoldingsRead(held, began, self.now, kept))

    def checkpoint(self) -> tuple[CheckpointEntry, ...]:
        """One that cannot be read, which a kubelet that asks can do without."""
        return ()

    def end_pod(self, n: int) -> None:
        if n < len(self.living):
            name = list(self.living)[n]
            self.ended[name] = self.living.pop(name)
            self.show_pods()

    # -- kubelet -----------------------------------------------------------------------------------------------------

    def held(self) -> set[str]:
        return {i for pod in self.living.values() for h in pod.held for i in h.ids} | set(self.in_flight)

    def admit(self, pod: KubeletPod, requests: list[ContainerRequest], happens: Events) -> None:
        for n, request in enumerate(requests):
            container = f"init-{n}" if request.init else f"main-{n}"
            for resource, size in request.limits.items():
                if not self.serve(
                    pod, ContainerRef(PodName("ml", pod.name), container), request, resource, size, happens
                ):
                    self.living.pop(pod.name, None)
                    self.ended[pod.name] = pod
                    self.show_pods()
                    return
            self.check_container(pod, container, request)

    def serve(
        self,
        pod: KubeletPod,
        who: ContainerRef,
        request: ContainerRequest,
        resource: str,
        size: int,
        happens: Events,
    ) -> bool:
        known = self.received.get(resource, {})
        reusable = sorted(i for i in pod.pool if i in known)[:size]
        free = {i for i, healthy in known.items() if healthy} - self.held()
        if len(reusable) + len(free) < size:
            return False
        ids = frozenset(reusable)
        if len(reusable) < size:
            try:
                ids = self.picked(resource, free | ids, reusable, size)
            except Refusal as refusal:
                self.check_refusal(refusal, request, resource, size, free, reusable)
                return False
            assert set(reusable) <= ids <= free | set(reusable)
            assert len(ids) == size
        for action in happens.get("before", ()):
            self.do(*action)
        if pod.name not in self.living or not ids <= self.received.get(resource, {}).keys():
            return False
        self.in_flight = ids
        self.during = list(happens.get("during", ()))
        try:
            grant = self.allocator.allocate(resource, ids)
        except Refusal as refusal:
            self.in_flight = frozenset()
            self.check_late_refusal(refusal, request, resource, size, free, reusable)
            return False
        except Crash:
            self.in_flight = frozenset()
            self.start_agent()
            return False
        self.answered(ids, grant)
        self.check_grant(pod, resource, ids, grant)
        for action in happens.get("after", ()):  # the answer is out; kubelet has not written its checkpoint
            if action[0] != "wait":
                self.do(*action)
        self.in_flight = frozenset()
        if pod.name not in self.living:
            return False
        pod.held.append(Holding(who, resource, ids))
        pod.pool = pod.pool | ids if request.init else pod.pool - ids
        return True

    def picked(self, resource: str, available: Collection[str], must: Sequence[str], size: int) -> frozenset[str]:
        return frozenset(self.allocator.prefer(resource, sorted(available), must, size))

    def answered(self, ids: frozenset[str], grant: Grant) -> None:
        assert key(grant.resource) not in grant.annotations, (
            "kubelet asked, and gets other units than it has in its checkpoint"
        )

    def units(self, ids: Iterable[str]) -> frozenset[str]:
        """The units that kubelet's ids stand for."""
        return frozenset(self.exchanged.get(device_id, device_id) for device_id in ids)

    # -- rules -------------------------------------------------------------------------------------------------------

    @property
    def offers(self) -> list[str]:
        """Resources of which kubelet knows a healthy unit."""
        return [resource for resource, ids in self.received.items() if any(ids.values())]

    def fit(self, requests: list[ContainerRequest]) -> None:
        """Make the pod ask for what this node offers now, if it offers anything."""
        offers = self.offers
        for request in requests:
            amount = next(iter(request.limits.values()))
            if offers and not set(request.limits) <= set(offers):
                request.limits = {offers[0]: min(amount, 3 if offers[0] == MEM else 2)}

    @rule(
        pods=st.lists(st.tuples(pods(), EVENTS), min_size=1, max_size=5), fitting=st.sampled_from([True, True, False])
    )
    def pods_arrive(self, pods: list[tuple[list[ContainerRequest], Events]], fitting: bool) -> None:
        for requests, happens in pods:
            if fitting:
                if not self.offers:
                    self.all_is_settled()
                self.fit(requests)
            while len(self.living) > 4:
                self.end_pod(0)
            self.a_pod_arrives(requests, happens)

    def a_pod_arrives(self, requests: list[ContainerRequest], happens: Events) -> None:
        name = f"p{self.count:03}"
        self.count += 1
        label = next((SPREAD[r.limits[MEM]] for r in requests if r.limits.get(MEM, 0) in SPREAD), None)
        body = pod_json(
            name,
            *(r.limits for r in requests if not r.init),
            init=tuple(r.limits for r in requests if r.init),
            labels={GPU_COUNT_LABEL: label} if label else {},
            created=name,
        )
        for n, spec in enumerate([*body["spec"]["initContainers"], *body["spec"]["containers"]]):
            spec["name"] = f"{'init' if requests[n].init else 'main'}-{n}"
        pod = self.living[name] = KubeletPod(name, body)
        self.crashes = "crash" in happens
        self.show_pods()
        self.admit(pod, requests, happens)
        self.crashes = False

    @rule(requests=pods(), label=MODES)
    def a_switch_overtakes_an_allocate(self, requests: list[ContainerRequest], label: str | None) -> None:
        self.pods_arrive([(requests, {"during": [("label", label), ("wait", SETTLE_S + 0.5)]})], fitting=True)

    @rule(requests=pods(), label=MODES)
    def allocations_arrive_late(self, requests: list[ContainerRequest], label: str | None) -> None:
        """It was read before the last grant, and is told after the switch."""
        self.deliver()
        self.read_allocations(True)
        if self.offers:
            self.pods_arrive([(requests, {})], fitting=True)
        self.change_label(label)
        self.wait(SETTLE_S + 0.5)
        self.read_allocations(False)

    @rule(n=st.integers(0, 2))
    def an_unhealthy_gpu_recovers(self, n: int) -> None:
        """It is back, the driver asks for nothing, and that holds: it is offered again with the same units."""
        self.driver_reports((n, 0, True))
        case = self.state.health.by_uuid.get(uuid(n))
        if uuid(n) not in self.present or case is None or case.cause is None:
            return
        assert case.due is not None, f"nothing stands against it, and still it is {case.cause}"
        self.wait(case.due - self.now)
        assert uuid(n) not in self.state.health.faults
        fenced = uuid(n) in self.state.gpus.fenced
        mine = [b for blocks in self.state.advertised.lists.values() for b in blocks if b.gpu.uuid == uuid(n)]
        draining = {one.block.key for one in self.state.advertised.draining}
        assert all(b.healthy is not fenced for b in mine if b.key not in draining)

    @rule(n=st.integers(0, 5))
    def a_pod_ends(self, n: int) -> None:
        self.end_pod(n)

    def another_plugin_sells_a_gpu(self, n: int) -> None:
        """Only in mode default where the agent leaves it to NVIDIA's plugin, and only a GPU that is free."""
        busy = {parse_id(i).gpu_key for i in self.units(self.held())}
        if self.state.node.mode is Mode.DEFAULT and self.policy.resources.exclusive is None:
            if GPUS[n].key not in busy and uuid(n) not in self.foreign.values():
                self.foreign[f"foreign-{self.count}"] = uuid(n)
                self.count += 1

    def the_other_plugins_pods_end(self, _: None = None) -> None:
        self.foreign.clear()

    def time_passes(self, seconds: float) -> None:
        self.wait(seconds)
        if seconds >= 30:  # the agent reads kubelet's allocations that often
            self.read_allocations(True)
            self.read_allocations(False)

    @rule()
    def all_is_settled(self) -> None:
        """A while without anything new: switches end as far as pods allow."""
        self.wait(SETTLE_S + 0.5)
        self.read_allocations(True)
        self.read_allocations(False)
        self.deliver()

    def the_inventory_changes(self, change: tuple[list[int], set[int], set[int]]) -> None:
        """GPUs are lost and come back, are counted in another order, and idle ones are switched to MIG and back."""
        order, gone, mig = change
        busy = {parse_id(i).gpu_key for i in self.units(self.held())}
        found = [gpu(n, GPUS[n].memory_mib // 1024, index=index) for index, n in enumerate(order) if n not in gone]
        idle_mig = {uuid(n) for n in mig if GPUS[n].key not in busy}
        self.present = {g.uuid: replace(g, mig=g.uuid in idle_mig) for g in found}
        self.show_inventory()

    @rule(happens=st.lists(st.one_of(ACTIONS, ROUGH), min_size=1, max_size=4))
    def something_happens(self, happens: list[tuple[str, Any]]) -> None:
        for action in happens:
            self.do(*action)

    @precondition(lambda self: self.living)
    @rule(n=st.integers(0, 5))
    def a_container_starts(self, n: int) -> None:
        pod = list(self.living.values())[n % len(self.living)]
        for h in filter(self.is_answerable, pod.held):
            assert self.allocator.prestart(h.resource, h.ids) == h.owner

    def is_answerable(self, held: Holding) -> bool:
        """Of a GPU that is lost since before the agent's last start, it can say nothing."""
        return is_app(held) and self.gpus_of(held.ids) <= self.state.gpus.by_uuid.keys()

    @precondition(lambda self: self.living and self.state.holdings.listed is not None)
    @rule(n=st.integers(0, 5))
    def kubelet_asks_again(self, n: int) -> None:
        """The re-allocation path at a container's start: what was given before is given again."""
        pod = list(self.living.values())[n % len(self.living)]
        for h in filter(self.is_answerable, pod.held):
            again = self.allocator.allocate(h.resource, h.ids)
            assert {g.uuid for g in again.gpus} == self.gpus_of(h.ids)

    # -- what must always be true --------------------------------------------------------------------------------------

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "state"):
            return
        check_cached(self.allocator)
        listed = [i for blocks in self.state.advertised.lists.values() for block in blocks for i in ids_of(block)]
        assert len(set(listed)) == len(listed), "an id is on two lists"
        assert self.state.allocates.in_flight >= 0
        on: dict[str, set[Mode]] = {}
        # What an ordinary init container had and no later one reuses is nobody's once it has ended; kubelet's allocations
        # does not show it either.
        used = {i for pod in self.living.values() for h in pod.held if is_app(h) for i in h.ids}
        for device_id in self.units(used | self.in_flight):
            unit = parse_id(device_id)
            on.setdefault(unit.gpu_key, set()).add(unit.kind.mode)
        for block in (b for blocks in self.state.advertised.lists.values() for b in blocks if b.healthy):
            others = on.get(block.gpu.key, set()) - {block.kind.mode}
            assert not others, f"GPU {block.gpu.key} is offered in {block.kind.mode} and held in {others}"
            assert block.gpu.uuid not in self.foreign.values(), f"GPU {block.gpu.key} is another plugin's"

        published = node_gpus(node_annotations(self.state)) or NodeGpus(())
        assert isinstance(published, NodeGpus)
        for resource, part in ((MEM, "memory"), (CORE, "core"), (WHOLE, "whole")):
            units = {(gpu.minor, int(getattr(gpu, part)), gpu.usable) for gpu in published.gpus if getattr(gpu, part)}
            blocks = [
                b for b in self.state.advertised.lists[resource] if b.kind is self.state.resource_kinds.get(resource)
            ]
            listed = {(b.gpu.minor, b.offered, b.healthy) for b in blocks if b.healthy or published.gpus}
            assert units == listed, f"schedulers and kubelet count {resource} differently"

    def gpus_of(self, ids: frozenset[str]) -> set[str]:
        by_key = {g.key: g.uuid for g in GPUS}
        return {by_key[parse_id(i).gpu_key] for i in self.units(ids)}

    def check_grant(self, pod: KubeletPod, resource: str, ids: frozenset[str], grant: Grant) -> None:
        for other in self.living.values():
            if other is not pod:
                taken = any(self.units(ids) & self.units(h.ids) for h in other.held)
                assert not taken, f"{other.name} and {pod.name} have the same units"
        assert grant.resource == resource
        assert {g.uuid for g in grant.gpus} == self.gpus_of(ids)
        assert grant.units * len(grant.gpus) == len(ids)

    def check_container(self, pod: KubeletPod, container: str, request: ContainerRequest) -> None:
        on = {h.resource: self.gpus_of(h.ids) for h in pod.held if h.owner.container == container}
        spread = SPREAD.get(request.limits.get(MEM, 0), "1")
        for resource in (MEM, CORE):
            assert len(on.get(resource, {0})) == (int(spread) if resource == MEM and MEM in on else 1)
        if MEM in on and CORE in on:
            assert on[MEM] == on[CORE], "memory and compute of one container are on different GPUs"

    def check_refusal(
        self, refusal: Refusal, request: ContainerRequest, resource: str, size: int, free: set[str], reusable: list[str]
    ) -> None:
        """Alone on its resource and new to the node, a share is refused only where no GPU has room."""
        if refusal.reason not in {Reason.NO_SINGLE_GPU, Reason.NOT_ENOUGH} or len(request.limits) > 1 or reusable:
            return
        if resource == MEM and size not in SPREAD:
            room = max(sum(parse_id(i).gpu_key == g.key for i in self.room(resource, free)) for g in GPUS)
            assert room < size, f"refused although a GPU has {room} free: {refusal.message}"

    def check_late_refusal(
        self, refusal: Refusal, request: ContainerRequest, resource: str, size: int, free: set[str], reusable: list[str]
    ) -> None:
        """Where kubelet asked, something has come between its question and the Allocate."""

    def room(self, resource: str, free: Collection[str]) -> Collection[str]:
        """Units that nobody has, of those kubelet may give."""
        return free

    # -- the end -------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """After everything ended and time passed, every healthy GPU is offered in full in the mode in force."""
        if not hasattr(self, "state"):
            return
        self.living.clear()
        self.ended.clear()
        self.foreign.clear()
        self.show_pods()
        for n in range(len(GPUS)):
            self.driver_reports((n, 0, True))
        for _ in range(3):
            self.wait(max(SETTLE_S, MOST_SETTLE_S) + 1)
            self.read_allocations(True)
            self.read_allocations(False)
        assert self.state.health.faults.keys() == self.state.gpus.by_uuid.keys() - self.present.keys(), (
            "a sound GPU stays out"
        )
        from gpuagent.domain.deviceplugin.advertise import unkept_promise

        resource_kinds = {} if unkept_promise(self.state) else self.policy.resources.in_mode(self.state.node.mode)
        for resource, blocks in self.state.advertised.lists.items():
            kind = resource_kinds.get(resource)
            whole = {
                g.uuid: (units_of(g, kind, self.policy.unit), g.uuid not in self.state.unhealthy)
                for g in self.state.gpus.by_uuid.values()
                if kind and not g.mig
            }
            assert {b.gpu.uuid: (b.healthy_units or b.listed, b.healthy) for b in blocks} == whole, "units were lost"
        assert self.state.allocates.in_flight == 0
        assert self.state.advertised.draining == ()


RandomNode.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestRandomNode = RandomNode.TestCase
# Fifty lives take a busy machine more than the minute of other tests.
TestRandomNode.pytestmark = [pytest.mark.timeout(300)]


# -- the same machine, driven by dice --------------------------------------------------------------------------------
# Hypothesis finds the smallest way into trouble; dice get further: nodes that are full, with many pods of many shapes.


def one_action(dice: random.Random, *, rough: bool) -> tuple[str, Any]:
    some = [0, 0, 1]
    kinds: dict[str, Callable[[], Any]] = {
        "label": lambda: dice.choice([*map(str, Mode), None, "nonsense"]),
        "wait": lambda: dice.choice([0.05, 0.3, 1.0, SETTLE_S + 0.5]),
        "xid": lambda: dice.randrange(3),
        "reading": lambda: (dice.randrange(3), dice.choice([0, 0, 1, None]), dice.random() < 0.3),
        "away": lambda: dice.randrange(3),
        "fence": lambda: set(dice.sample(range(3), dice.choice(some))),
        "inventory": lambda: 0,
        "allocations": lambda: dice.random() < 0.5,
        "end": lambda: dice.randrange(4),
        "deliver": lambda: 0,
    }
    if rough:
        kinds |= {
            "time": lambda: dice.choice([SETTLE_S, 3.0, 40.0]),
            "change": lambda: (
                dice.sample(range(3), 3),
                *(set(dice.sample(range(3), dice.choice(some))) for _ in "ab"),
            ),
            "foreign": lambda: dice.randrange(3),
            "foreign end": lambda: None,
            "restart": lambda: None,
        }
    kind = dice.choice(list(kinds))
    return kind, kinds[kind]()


def one_pod(dice: random.Random) -> list[ContainerRequest]:
    def request(*, init: bool = False) -> ContainerRequest:
        pair = [(MEM, dice.choice([1, 2, 3])), (CORE, dice.choice([10, 40, 60]))]
        limits = dice.choices(
            [
                {MEM: dice.choice([1, 2, 3, 4])},
                dict(dice.sample(pair, 2)),
                {CORE: 10},
                {WHOLE: dice.choice([1, 2])},
                {EXCLUSIVE: 1},
            ],
            [35, 40, 5, 10, 10],
        )[0]
        return ContainerRequest(limits, init)

    if dice.random() < 0.15:
        return [ContainerRequest({MEM: 6})]
    app = [request() for _ in range(dice.choice([1, 1, 1, 2]))]
    return [request(init=True), *app] if dice.random() < 0.25 else app


def one_surprise(dice: random.Random) -> Events:
    if dice.random() < 0.7:
        return {}
    moments = [moment for moment in ("before", "during", "after") if dice.random() < 0.4]
    surprise = {moment: [one_action(dice, rough=False) for _ in range(dice.choice([1, 2, 3]))] for moment in moments}
    return {**surprise, "crash": []} if dice.random() < 0.15 else surprise


@pytest.mark.parametrize("seed", range(12))
def test_a_long_life_by_dice(seed):
    dice = random.Random(seed)
    node = RandomNode()
    node.boot(dice.choice(list(Mode)), *(dice.random() < chance for chance in (0.6, 0.85, 0.5, 0.5)))
    for _ in range(150):
        acts = {
            "arrive": 50,
            "end": 15,
            "settle": 10,
            "start": 7,
            "recover": 5,
            "again": 5,
            "overtake": 2,
            "late read": 2,
            "other": 11,
        }
        act = dice.choices(list(acts), list(acts.values()))[0]
        if act == "arrive":
            pods_ = [(one_pod(dice), one_surprise(dice)) for _ in range(dice.choice([1, 1, 2, 4]))]
            node.pods_arrive(pods_, dice.random() < 0.8)
        elif act == "end":
            node.end_pod(dice.randrange(4))
        elif act == "overtake":
            node.a_switch_overtakes_an_allocate(one_pod(dice), str(dice.choice(list(Mode))))
        elif act == "late read":
            node.allocations_arrive_late(one_pod(dice), str(dice.choice(list(Mode))))
        elif act == "recover":
            node.an_unhealthy_gpu_recovers(dice.randrange(3))
        elif act == "settle":
            node.all_is_settled()
        elif act == "start" and node.living:
            node.a_container_starts(dice.randrange(5))
        elif act == "again" and node.living and node.state.holdings.listed is not None:
            node.kubelet_asks_again(dice.randrange(5))
        else:
            node.do(*one_action(dice, rough=True))
    node.teardown()


def test_a_spread_in_units_of_core_mem_is_refused_when_the_mode_changes():
    """Kubelet offers what it was told before the switch. No start of such a container would be allowed."""
    node = RandomNode()
    node.boot(mode=Mode.CORE_MEM, exclusive=True, isolated=True, answers_queries=False, lists_ended=False)
    node.something_happens([("label", "share"), ("change", ([0, 1, 2], set(), set()))])
    node.a_switch_overtakes_an_allocate([ContainerRequest({MEM: 6})], "default")
    assert not node.living
