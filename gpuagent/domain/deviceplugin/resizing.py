"""Resizes of running pods: from the annotation to what is in force, one safe step at a time.

Kubelet's allocations of a pod never change. A larger limit needs extra units of the same GPU, which no container may
hold. It comes into force in this order, and each step waits for the one before:

1. The units are shown to kubelet as unhealthy. An Allocate that has them already wins.
2. After `LEAVE_S`, the units are closed: from now on Allocate refuses them.
3. No Allocate is in progress that began before, and no container has got one of the units.
4. The state directory has the resize, so that a restarted agent begins without the units.
5. The isolation driver is told of the larger share.

A smaller limit goes the other way: extra units come back to the lists when the driver has lowered the limit, and the
state directory no longer has them.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from gpuagent.domain.deviceplugin.memory_shares import device_shares, share_bytes, spread
from gpuagent.domain.node_state.device_lists import DeviceRange
from gpuagent.domain.node_state.resizes import Growth, Verdict, limits_in_force
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, Malformed
from gpuagent.domain.pods.holdings import lists_ended
from gpuagent.domain.pods.memory_limit import limits_text, memory_limits
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Pod, PodName
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import GPU_MEM, Kind, Mode
from gpuagent.domain.sharing.resize import Resize
from gpuagent.domain.sharing.units import UnitId, parse_id, units_of
from gpuagent.domain.state import State

LEAVE_S = 0.25
"""How long units are shown as unhealthy before Allocate refuses them: kubelet hears of it within milliseconds."""

OnGpu = tuple[str, Kind]
"""Key of a GPU and kind of units."""
Units = Mapping[OnGpu, int]
Limits = Mapping[str, int]
"""Name of a container to its units in all."""

IMMUTABLE_CLAIM = (
    "its memory is of a ResourceClaim, and resource.k8s.io/v1 has no change of a claim that is allocated: "
    "create a pod with another claim"
)


def resized(state: State, at: float) -> State:
    """The state with all resizes as far as is safe at these monotonic seconds."""
    resizes = state.resizes
    asking = {pod.uid: pod for pod in state.pods.with_limit}
    uids = dict.fromkeys([*resizes.stored, *resizes.to_store, *resizes.growing, *resizes.verdicts, *asking])
    if not uids:
        return state
    # Until the pods and their devices are known, everything stays as the agent's former run has stored it.
    is_known = state.pods.known and state.holdings.listed is not None and state.node.mode_known
    if not is_known:
        return state
    work = _Work(state, at)
    for uid in uids:
        work.look_at(uid)
    after = replace(resizes, to_store=work.to_store, growing=work.growing, verdicts=work.verdicts)
    if after == resizes:
        # Not an equal copy: this one keeps its cached properties.
        return state
    return replace(state, resizes=after)


def deadline(state: State) -> float | None:
    """Monotonic seconds when the next step of a growth is due without an event; None if none is."""
    due = []
    for growth in state.resizes.growing.values():
        if growth.closed_at is not None:
            due.append(growth.closed_at)
        elif state.holdings.read_at > growth.since:
            due.append(growth.since + LEAVE_S)
    return min(due, default=None)


def shares_in_force(state: State, modes: Collection[Mode]) -> dict[str, PodShares]:
    """UID to the shares of each pod with units of these modes: those that kubelet allocated, or the resized ones."""
    limits = limits_in_force(state.resizes)
    return device_shares(state.holdings.checkpoint, state.gpus.by_index, state.policy.unit, modes, limits)


def most_shares(state: State) -> dict[str, PodShares]:
    """UID to the largest shares that each resized pod was granted."""
    stored = state.resizes.stored
    if not stored:
        return {}
    modes = [mode for mode in Mode if state.layer_of(mode).limits_pods]
    entries = [entry for entry in state.holdings.checkpoint if entry.pod_uid in stored]
    limits = {uid: resize.most for uid, resize in stored.items()}
    return device_shares(entries, state.gpus.by_index, state.policy.unit, modes, limits)


def most_in_force(state: State) -> dict[ContainerRef, int]:
    """The resized containers to the most units that their limits may be now."""
    refused: set[str] = set()
    for layer in state.isolation.layers.values():
        refused.update(layer.refused)
    in_force = limits_in_force(state.resizes)
    most: dict[ContainerRef, int] = {}
    for uid, resize in state.resizes.stored.items():
        if uid not in state.pods.living_uids and state.pods.known:
            continue
        lowered = {} if uid in refused else in_force.get(uid, {})
        for container, units in {**lowered, **resize.most}.items():
            most[ContainerRef(resize.pod, container)] = units
    return most


def withheld_bytes(state: State) -> Counter[str]:
    """GPU UUID to the memory that is withheld for resized pods."""
    by_key = {gpu.key: gpu for gpu in state.gpus.by_uuid.values()}
    withheld: Counter[str] = Counter()
    for (key, kind), numbers in state.resizes.withheld_numbers.items():
        gpu = by_key.get(key)
        if gpu is not None:
            withheld[gpu.uuid] += share_bytes(gpu, kind, len(numbers), state.policy.unit)
    return withheld


@dataclass(frozen=True, slots=True)
class _No:
    """Why a request is not granted. Its `cause` stays the same while amounts in the text change."""

    cause: str
    text: str


class _Work:
    """One look at all resizes.

    Attributes:
        to_store: as in `Resizes`, after this look.
        growing: the same.
        verdicts: the same.
    """

    def __init__(self, state: State, at: float) -> None:
        self._state = state
        self._at = at
        self._resizes = state.resizes
        self._living = {pod.uid: pod for pod in state.pods.seen if not pod.ended}
        self._held = _held_ids(state)
        self._by_key = {gpu.key: gpu for gpu in state.gpus.by_uuid.values()}
        self._modes = [mode for mode in Mode if state.layer_of(mode).limits_pods]
        self.to_store = dict(state.resizes.to_store)
        self.growing = dict(state.resizes.growing)
        self.verdicts = dict(state.resizes.verdicts)

    def look_at(self, uid: str) -> None:
        """Bring the resize of one pod a step further."""
        pod = self._living.get(uid)
        if pod is None:
            if self._is_gone(uid):
                self._forget(uid)
            return
        book = _Book.of(pod, self._state)
        self._give_up_lost_units(pod)
        problem: _No | None
        goal, problem = self._goal(pod, book)
        if goal is None or not book.lasting:
            self.growing.pop(uid, None)
        else:
            self._trim(pod, book)
            problem = self._move(pod, book, goal) or problem
        self._judge(pod, book, goal, problem)

    # -- pods that have ended ------------------------------------------------------------------------------------

    def _is_gone(self, uid: str) -> bool:
        """Whether a pod that the API server does not show as living has ended on the node, too."""
        state = self._state
        if not state.pods.watched:
            return False
        if lists_ended(state.holdings.kubelet):
            return True
        resize = self._current(uid) or self._resizes.stored.get(uid)
        name = resize.pod if resize else None
        is_name_taken = any(pod.name == name for pod in self._living.values())
        for holding in state.living_holdings:
            owner = holding.owner.pod
            if owner == PodName("", uid):
                return False
            if owner == name and not is_name_taken:
                return False
        return True

    def _forget(self, uid: str) -> None:
        self.to_store.pop(uid, None)
        self.growing.pop(uid, None)
        self.verdicts.pop(uid, None)

    # -- the request ---------------------------------------------------------------------------------------------

    def _goal(self, pod: Pod, book: "_Book") -> tuple[Limits | None, _No | None]:
        """The limits of the containers that are to differ from kubelet's allocations, and why not those requested.

        None for the first one: what is in force stays.
        """
        text = pod.annotations.get(LIMIT_ANNOTATION)
        if text is None:
            return {}, None
        if not self._state.policy.live_resize:
            return {}, _No("off", "live resizing is off on this node: the agent's setting --live-resize turns it on")
        problem = self._unfit_pod(pod, book)
        if problem:
            return None, problem
        limits = memory_limits(text, book.lasting)
        if isinstance(limits, Malformed):
            return None, _No("text", limits.problem)
        for container, units in limits.items():
            problem = self._unfit_container(pod, book, container, units)
            if problem:
                return None, problem
        return {name: units for name, units in limits.items() if units != book.units(name)}, None

    def _unfit_pod(self, pod: Pod, book: "_Book") -> _No | None:
        """Why no limit of this pod can be changed."""
        if pod.static:
            return _No("static", "it is a static pod: change its file on the node instead")
        if self._state.holdings.counts_only:
            return _No("kubelet", "kubelet before 1.19 does not say which units a container has")
        if book.lasting:
            return None
        if self._claimed_containers(pod):
            return _No("claim", IMMUTABLE_CLAIM)
        if not pod.container_ids or not self._state.holdings.recorded:
            # Kubelet has not recorded its devices yet, or its checkpoint cannot be read.
            return _No("", "")
        return _No("share", f"none of its containers has a share: kubelet has allocated no {GPU_MEM} to them")

    def _claimed_containers(self, pod: Pod) -> set[str]:
        """Names of the pod's containers that use a claim of this agent."""
        prepared = {(claim.namespace, claim.name) for claim in self._state.claims.prepared.values()}
        containers: set[str] = set()
        for claim, users in pod.claims.items():
            if (pod.name.namespace, claim) in prepared:
                containers.update(users)
        return containers

    def _unfit_container(self, pod: Pod, book: "_Book", name: str, units: int) -> _No | None:
        """Why the limit of a container cannot be that many units."""
        on_gpus = book.lasting.get(name)
        if on_gpus is None:
            if name in self._claimed_containers(pod):
                return _No("claim", f"container {name}: {IMMUTABLE_CLAIM}")
            others = ", ".join(sorted(book.lasting))
            return _No("container", f"container {name} has no {GPU_MEM} by kubelet's allocations; {others} has")
        if units % len(on_gpus):
            text = f"{name}={units} cannot be spread evenly over the {len(on_gpus)} GPUs of the container"
            return _No("spread", f"{text}: write a multiple of {len(on_gpus)}")
        for (key, kind), limit in spread(on_gpus, units).items():
            problem = self._unfit_mode(kind.mode) or self._unfit_gpu(key, kind, name, limit)
            if problem:
                return problem
        return None

    def _unfit_gpu(self, key: str, kind: Kind, name: str, limit: int) -> _No | None:
        """Why a container cannot have that many units of one of its GPUs."""
        gpu = self._by_key.get(key)
        if gpu is None:
            return _No("gpu", f"container {name} has units of a GPU that the driver does not list")
        has = units_of(gpu, kind, self._state.policy.unit)
        if limit <= has:
            return None
        return _No("size", f"{self._words(limit)} for {name} is more than GPU {gpu.index} has: {self._words(has)}")

    def _unfit_mode(self, mode: Mode) -> _No | None:
        """Why no limit can be changed in a mode."""
        layer = self._state.layer_of(mode)
        if layer.limits_pods:
            return None
        text = f"isolation driver {layer.driver} of mode {mode} cannot change the limit of a container that runs"
        return _No("driver", f"{text}: driver limits can, which needs NVIDIA's driver 615 or later")

    # -- towards the goal ----------------------------------------------------------------------------------------

    def _current(self, uid: str) -> Resize | None:
        return self.to_store.get(uid)

    def _give_up_lost_units(self, pod: Pod) -> None:
        """Kubelet's allocations decide: units that a container holds are no pod's extra units.

        This happens after the agent ran without its stored resizes, for example when its state directory was lost.
        """
        uid = pod.uid
        current = self._current(uid)
        if current is not None and not current.extra.isdisjoint(self._held):
            # What is left covers no limit above kubelet's allocations for certain.
            self.to_store[uid] = Resize(pod.name, {}, {}, current.extra - self._held)

    def _move(self, pod: Pod, book: "_Book", goal: Limits) -> _No | None:
        """One step towards the limits in `goal`. Returns why they cannot be reached now."""
        uid = pod.uid
        current = self._current(uid)
        most = book.larger(goal, current.most if current else {})
        extra = current.extra if current else frozenset[str]()
        lacking = _lacking(book.beyond(most), extra)
        if not lacking:
            self.growing.pop(uid, None)
            self._set(uid, Resize(pod.name, goal, most, extra))
            return None
        if current is not None:
            # What the pod gives up must not wait for what it gets.
            lower = book.smaller(current.limits, goal)
            self._set(uid, replace(current, limits=lower))
        if pod.deleting:
            self.growing.pop(uid, None)
            return None
        return self._grow(pod, Resize(pod.name, goal, most, extra), lacking)

    def _set(self, uid: str, resize: Resize) -> None:
        """Have this stored, unless nothing is left to be stored."""
        if resize.is_over:
            self.to_store.pop(uid, None)
        else:
            self.to_store[uid] = resize

    def _trim(self, pod: Pod, book: "_Book") -> None:
        """Give back the extra units that no limit in force needs any more."""
        current = self._current(pod.uid)
        if current is None or not self._is_applied(pod.uid, current):
            return
        # Only a limit above the allocation takes extra units.
        most = book.larger(current.limits, {})
        extra = _enough(book.beyond(most), current.extra)
        self._set(pod.uid, Resize(pod.name, current.limits, most, extra))

    def _is_applied(self, uid: str, resize: Resize) -> bool:
        """Whether the isolation driver has brought just these limits into force."""
        if self._resizes.stored.get(uid) != resize:
            return False
        expected = shares_in_force(self._state, self._modes).get(uid)
        applied = [self._state.layer_of(mode).applied.get(uid) for mode in self._modes]
        return expected is not None and expected in applied

    # -- growth --------------------------------------------------------------------------------------------------

    def _grow(self, pod: Pod, resize: Resize, lacking: Units) -> _No | None:
        """Get the lacking units for a pod: the next of the steps that the module describes."""
        uid = pod.uid
        growth = self.growing.pop(uid, None)
        for key, kind in lacking:
            problem = self._unusable(key, kind)
            if problem:
                return problem
        is_same = growth is not None and _is_for(growth, resize)
        if growth is None or not is_same or not growth.ids.isdisjoint(self._held):
            return self._begin(uid, resize, lacking)
        self.growing[uid] = growth
        allocates = self._state.allocates
        if growth.closed_at is None:
            has_been_read = self._state.holdings.read_at > growth.since
            if has_been_read and self._at >= growth.since + LEAVE_S:
                self.growing[uid] = replace(growth, closed_at=self._at)
            return None
        # A call that began before the units were closed may still get them.
        is_idle = allocates.in_flight == 0 and allocates.counted_at > growth.closed_at
        if is_idle:
            del self.growing[uid]
            self._set(uid, growth.resize)
        return None

    def _begin(self, uid: str, resize: Resize, lacking: Units) -> _No | None:
        """Choose the units."""
        picked: list[str] = []
        for (key, kind), count in lacking.items():
            free = self._free_ids(key, kind)
            promised = self._promised(uid, key)
            spare = len(free) - promised
            if spare < count:
                return self._too_few(key, spare, count)
            # Kubelet and the agent take the lowest numbers first, so these are the last to be taken.
            picked += free[-count:]
        ids = frozenset(picked)
        whole = replace(resize, extra=resize.extra | ids)
        self.growing[uid] = Growth(whole, ids, since=self._at)
        return None

    def _too_few(self, key: str, spare: int, count: int) -> _No:
        gpu = self._by_key[key]
        has = self._words(max(spare, 0))
        text = f"GPU {gpu.index} has {has} that no pod holds or is promised, and {self._words(count)} more are needed"
        return _No(f"units of GPU {gpu.index}", f"{text}; the agent tries again when a pod ends")

    def _words(self, units: int) -> str:
        return f"{units} {self._state.policy.unit.phrase}"

    def _unusable(self, key: str, kind: Kind) -> _No | None:
        """Why a GPU gives no further units now."""
        state = self._state
        gpu = self._by_key[key]
        name = f"GPU {gpu.index}"
        reason = state.unhealthy.get(gpu.uuid)
        if reason:
            return _No(f"health of {name}", f"{name} is unhealthy and gives no more memory: {reason}")
        if gpu.uuid in state.former_units:
            text = f"{name} gives no more memory: containers have units of it from before its units changed"
            return _No(f"units of {name}", text)
        layer = state.layer_of(kind.mode)
        problem = layer.problem_in(kind.mode) or layer.left_out.get(gpu.uuid)
        if problem:
            return _No(f"isolation of {name}", f"{name} gives no more memory: {problem}")
        block = self._block(gpu.uuid, kind)
        if block is None or not block.healthy:
            return _No(f"list of {name}", f"{name} gives no more memory: it is on no device list of mode {kind.mode}")
        return None

    def _block(self, uuid: str, kind: Kind) -> DeviceRange | None:
        """The GPU's units on the device list."""
        for block in self._state.advertised.lists.get(GPU_MEM, ()):
            if block.key == (uuid, kind):
                return block
        return None

    def _free_ids(self, key: str, kind: Kind) -> list[str]:
        """Ids of the GPU that no container has and none is about to get, in order."""
        block = self._block(self._by_key[key].uuid, kind)
        if block is None:
            return []
        taken = {*self._held, *self._resizes.withheld}
        for resize in self.to_store.values():
            taken |= resize.extra
        for growth in self.growing.values():
            taken |= growth.ids
        ids = [str(UnitId(key, kind, number)) for number in range(block.count)]
        return [device_id for device_id in ids if device_id not in taken]

    def _promised(self, uid: str, key: str) -> int:
        """Units of a GPU that pods may be about to get: they are bound to this node and hold nothing yet.

        A pod for which a scheduler chose GPUs takes them from these. Another one may take them from any GPU.
        """
        minor = self._by_key[key].minor
        waiting = 0
        for pod in self._living.values():
            is_waiting = pod.uid != uid and not pod.deleting and not pod.container_ids
            if not is_waiting or pod.name in self._holders:
                continue
            may_use = pod.share_gpus is None or minor in pod.share_gpus
            if may_use:
                waiting += sum(container.limits.get(GPU_MEM, 0) for container in pod.containers)
        return waiting

    @cached_property
    def _holders(self) -> set[PodName]:
        """Names of the pods that hold devices."""
        return {holding.owner.pod for holding in self._state.living_holdings}

    # -- the verdict ---------------------------------------------------------------------------------------------

    def _judge(self, pod: Pod, book: "_Book", goal: Limits | None, problem: _No | None) -> None:
        """Say what became of the request. While it is on its way, the former verdict stays."""
        uid = pod.uid
        request = pod.annotations.get(LIMIT_ANNOTATION, "")
        current = self._current(uid)
        refused_by_driver = self._refused_by_driver(uid)
        if problem is None and refused_by_driver:
            problem = _No("use", refused_by_driver)
        if problem is None and self._resizes.unsaved and current != self._resizes.stored.get(uid):
            problem = _No("unsaved", self._resizes.unsaved)
        if problem is not None:
            self._refuse(pod, book, request, problem)
            return
        is_reached = goal is not None and dict(current.limits if current else {}) == dict(goal)
        if not book.lasting or not is_reached or uid in self.growing:
            return
        if current is None or self._is_applied(uid, current):
            in_force = limits_text(book.all_units(goal or {}))
            self.verdicts[uid] = Verdict(pod.name, "InForce", in_force, request)

    def _refuse(self, pod: Pod, book: "_Book", request: str, problem: _No) -> None:
        if not problem.text:
            return
        former = self.verdicts.get(pod.uid)
        is_known = former is not None and (former.request, former.cause) == (request, problem.cause)
        if is_known:
            # The same words as before, or each pod that comes and goes would be news.
            return
        text = problem.text
        stored = self._resizes.stored.get(pod.uid)
        if book.lasting:
            in_force = book.all_units(stored.most if stored else {})
            text = f"{text}; in force: {limits_text(in_force)}"
        self.verdicts[pod.uid] = Verdict(pod.name, "Refused", text, request, problem.cause)

    def _refused_by_driver(self, uid: str) -> str:
        for mode in self._modes:
            text = self._state.layer_of(mode).refused.get(uid)
            if text:
                return text
        return ""


@dataclass(frozen=True, slots=True)
class _Book:
    """What kubelet allocated to the containers of a pod.

    Attributes:
        lasting: name of each container with memory, without init containers that end before the others begin.
    """

    lasting: Mapping[str, Units]

    @classmethod
    def of(cls, pod: Pod, state: State) -> "_Book":
        init_names = pod.init_names
        lasting = {}
        for entry in state.holdings.checkpoint:
            is_own = entry.pod_uid == pod.uid and entry.resource == GPU_MEM
            if is_own and entry.container not in init_names:
                units = _memory_units(entry)
                if units:
                    lasting[entry.container] = units
        return cls(lasting)

    def units(self, container: str) -> int:
        """Units of a container in all."""
        return sum(self.lasting.get(container, {}).values())

    def all_units(self, limits: Limits) -> Limits:
        """The units of every container, with these limits in place of the allocations."""
        return {name: limits.get(name, self.units(name)) for name in self.lasting}

    def larger(self, limits: Limits, others: Limits) -> Limits:
        """For each container the larger limit, as far as it is above the allocation."""
        larger = {}
        for name in self.lasting:
            units = self.units(name)
            highest = max(limits.get(name, units), others.get(name, units))
            if highest > units:
                larger[name] = highest
        return larger

    def smaller(self, limits: Limits, others: Limits) -> Limits:
        """For each container the smaller limit, as far as it differs from the allocation."""
        smaller = {}
        for name in self.lasting:
            units = self.units(name)
            lowest = min(limits.get(name, units), others.get(name, units))
            if lowest != units:
                smaller[name] = lowest
        return smaller

    def beyond(self, limits: Limits) -> Units:
        """The units that these limits take beyond the allocations."""
        beyond: Counter[OnGpu] = Counter()
        for name, limit in limits.items():
            on_gpus = self.lasting.get(name)
            if on_gpus:
                beyond.update(spread(on_gpus, limit))
                beyond.subtract(on_gpus)
        return {key: count for key, count in beyond.items() if count > 0}


def _memory_units(entry: CheckpointEntry) -> Units:
    return _count(entry.ids)


def _count(ids: Collection[str]) -> Counter[OnGpu]:
    """Memory units by GPU and kind."""
    counts: Counter[OnGpu] = Counter()
    for unit in map(parse_id, ids):
        if unit is not None and unit.kind.is_memory:
            counts[unit.gpu_key, unit.kind] += 1
    return counts


def _lacking(needed: Units, extra: frozenset[str]) -> Units:
    """The units that are needed and not there."""
    lacking = Counter(needed)
    lacking.subtract(_count(extra))
    return {key: count for key, count in sorted(lacking.items()) if count > 0}


def _enough(needed: Units, extra: frozenset[str]) -> frozenset[str]:
    """As many of the extra units as are needed."""
    missing = Counter(needed)
    kept = set()
    for device_id in sorted(extra):
        unit = parse_id(device_id)
        if unit is not None and missing[unit.gpu_key, unit.kind] > 0:
            missing[unit.gpu_key, unit.kind] -= 1
            kept.add(device_id)
    return frozenset(kept)


def _is_for(growth: Growth, resize: Resize) -> bool:
    """Whether the growth leads to this resize."""
    leads_to = growth.resize
    return (leads_to.limits, leads_to.most, leads_to.extra - growth.ids) == (resize.limits, resize.most, resize.extra)


def _held_ids(state: State) -> frozenset[str]:
    """Ids that containers have by kubelet's allocations, or have got a moment ago."""
    held = [holding.ids for holding in state.living_holdings]
    return state.allocates.recent.union(*held)
