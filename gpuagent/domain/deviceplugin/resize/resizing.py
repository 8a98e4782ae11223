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
from collections.abc import Collection
from dataclasses import replace

from gpuagent.domain.deviceplugin.memory_shares import device_shares, share_bytes
from gpuagent.domain.deviceplugin.resize.resize_allocations import (
    AllocatedMemory,
    Limits,
    Units,
    enough_units,
    lacking_units,
)
from gpuagent.domain.deviceplugin.resize.resize_request import NotGranted, ResizeRequests, words
from gpuagent.domain.deviceplugin.resize.resize_units import FreeUnits
from gpuagent.domain.node_state.resizes import Growth, Verdict, limits_in_force
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION
from gpuagent.domain.pods.holdings import lists_ended
from gpuagent.domain.pods.memory_limit import limits_text
from gpuagent.domain.pods.pod import ContainerRef, Pod, PodName
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.sharing.resize import Resize
from gpuagent.domain.state import State

LEAVE_S = 0.25
"""How long units are shown as unhealthy before Allocate refuses them: kubelet hears of it within milliseconds."""


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
    resize_pass = _ResizePass(state, at)
    for uid in uids:
        resize_pass.look_at(uid)
    after = replace(
        resizes,
        to_store=resize_pass.to_store,
        growing=resize_pass.growing,
        verdicts=resize_pass.verdicts,
    )
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


class _ResizePass:
    """One pass over all resizes.

    Attributes:
        to_store: as in `Resizes`, after this pass.
        growing: the same.
        verdicts: the same.
    """

    def __init__(self, state: State, at: float) -> None:
        self._state = state
        self._at = at
        self._resizes = state.resizes
        self._living = {pod.uid: pod for pod in state.pods.seen if not pod.ended}
        self._by_key = {gpu.key: gpu for gpu in state.gpus.by_uuid.values()}
        self._requests = ResizeRequests(state, self._by_key)
        self._held = _held_ids(state)
        self._free_units = FreeUnits(state, self._by_key, self._living, self._held)
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
        allocated = AllocatedMemory.of(pod, self._state)
        self._give_up_lost_units(pod)
        goal = self._requests.goal(pod, allocated)
        problem = goal.problem
        if goal.limits is None or not allocated.lasting:
            self.growing.pop(uid, None)
        else:
            self._trim(pod, allocated)
            problem = self._move(pod, allocated, goal.limits) or problem
        self._judge(pod, allocated, goal.limits, problem)

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

    def _move(self, pod: Pod, allocated: AllocatedMemory, goal: Limits) -> NotGranted | None:
        """One step towards the limits in `goal`. Returns why they cannot be reached now."""
        uid = pod.uid
        current = self._current(uid)
        most = allocated.larger(goal, current.most if current else {})
        extra = current.extra if current else frozenset[str]()
        lacking = lacking_units(allocated.beyond(most), extra)
        if not lacking:
            self.growing.pop(uid, None)
            self._set(uid, Resize(pod.name, goal, most, extra))
            return None
        if current is not None:
            # What the pod gives up must not wait for what it gets.
            lower = allocated.smaller(current.limits, goal)
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

    def _trim(self, pod: Pod, allocated: AllocatedMemory) -> None:
        """Give back the extra units that no limit in force needs any more."""
        current = self._current(pod.uid)
        if current is None or not self._is_applied(pod.uid, current):
            return
        # Only a limit above the allocation takes extra units.
        most = allocated.larger(current.limits, {})
        extra = enough_units(allocated.beyond(most), current.extra)
        self._set(pod.uid, Resize(pod.name, current.limits, most, extra))

    def _is_applied(self, uid: str, resize: Resize) -> bool:
        """Whether the isolation driver has brought just these limits into force."""
        if self._resizes.stored.get(uid) != resize:
            return False
        expected = shares_in_force(self._state, self._modes).get(uid)
        applied = [self._state.layer_of(mode).applied.get(uid) for mode in self._modes]
        return expected is not None and expected in applied

    # -- growth --------------------------------------------------------------------------------------------------

    def _grow(self, pod: Pod, resize: Resize, lacking: Units) -> NotGranted | None:
        """Get the lacking units for a pod: the next of the steps that the module describes."""
        uid = pod.uid
        growth = self.growing.pop(uid, None)
        for key, kind in lacking:
            problem = self._free_units.unusable(key, kind)
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

    def _begin(self, uid: str, resize: Resize, lacking: Units) -> NotGranted | None:
        """Choose the units."""
        picked: list[str] = []
        for (key, kind), count in lacking.items():
            free = self._free_units.free_ids(key, kind, self.to_store.values(), self.growing.values())
            promised = self._free_units.promised(uid, key)
            spare = len(free) - promised
            if spare < count:
                return self._too_few(key, spare, count)
            # Kubelet and the agent take the lowest numbers first, so these are the last to be taken.
            picked += free[-count:]
        ids = frozenset(picked)
        whole = replace(resize, extra=resize.extra | ids)
        self.growing[uid] = Growth(whole, ids, since=self._at)
        return None

    def _too_few(self, key: str, spare: int, count: int) -> NotGranted:
        gpu = self._by_key[key]
        has = words(max(spare, 0), self._state)
        needed = words(count, self._state)
        text = f"GPU {gpu.index} has {has} that no pod holds or is promised, and {needed} more are needed"
        return NotGranted(f"units of GPU {gpu.index}", f"{text}; the agent tries again when a pod ends")

    # -- the verdict ---------------------------------------------------------------------------------------------

    def _judge(self, pod: Pod, allocated: AllocatedMemory, goal: Limits | None, problem: NotGranted | None) -> None:
        """Say what became of the request. While it is on its way, the former verdict stays."""
        uid = pod.uid
        request = pod.annotations.get(LIMIT_ANNOTATION, "")
        current = self._current(uid)
        refused_by_driver = self._refused_by_driver(uid)
        if problem is None and refused_by_driver:
            problem = NotGranted("use", refused_by_driver)
        if problem is None and self._resizes.unsaved and current != self._resizes.stored.get(uid):
            problem = NotGranted("unsaved", self._resizes.unsaved)
        if problem is not None:
            self._refuse(pod, allocated, request, problem)
            return
        is_reached = goal is not None and dict(current.limits if current else {}) == dict(goal)
        if not allocated.lasting or not is_reached or uid in self.growing:
            return
        if current is None or self._is_applied(uid, current):
            in_force = limits_text(allocated.all_units(goal or {}))
            self.verdicts[uid] = Verdict(pod.name, "InForce", in_force, request)

    def _refuse(self, pod: Pod, allocated: AllocatedMemory, request: str, problem: NotGranted) -> None:
        if not problem.text:
            return
        former = self.verdicts.get(pod.uid)
        is_known = former is not None and (former.request, former.cause) == (request, problem.cause)
        if is_known:
            # The same words as before, or each pod that comes and goes would be news.
            return
        text = problem.text
        stored = self._resizes.stored.get(pod.uid)
        if allocated.lasting:
            in_force = allocated.all_units(stored.most if stored else {})
            text = f"{text}; in force: {limits_text(in_force)}"
        self.verdicts[pod.uid] = Verdict(pod.name, "Refused", text, request, problem.cause)

    def _refused_by_driver(self, uid: str) -> str:
        for mode in self._modes:
            text = self._state.layer_of(mode).refused.get(uid)
            if text:
                return text
        return ""


def _is_for(growth: Growth, resize: Resize) -> bool:
    """Whether the growth leads to this resize."""
    leads_to = growth.resize
    return (leads_to.limits, leads_to.most, leads_to.extra - growth.ids) == (resize.limits, resize.most, resize.extra)


def _held_ids(state: State) -> frozenset[str]:
    """Ids that containers have by kubelet's allocations, or have got a moment ago."""
    held = [holding.ids for holding in state.living_holdings]
    return state.allocates.recent.union(*held)
