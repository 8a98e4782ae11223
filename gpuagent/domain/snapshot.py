"""The published part of the state, indexed so that RPC handlers answer in microseconds."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.topology import Topology
from gpuagent.domain.node_state.allocations import Holdings
from gpuagent.domain.node_state.device_lists import DeviceRange, Lists
from gpuagent.domain.node_state.isolation_drivers import IsolationDrivers
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.node_state.resizes import Resizes
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.placement.ring import best_ring
from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    DECIDED_ANNOTATION,
    MEMORY_ANNOTATION,
    V1_ASSIGNED,
    V1_GPU,
)
from gpuagent.domain.pods.pod import Holding, Pod, PodName
from gpuagent.domain.policy import Policy
from gpuagent.domain.scheduling.decision import (
    DecidedContainer,
    Decision,
    Ignored,
    decided_containers,
    decided_text,
    read,
)
from gpuagent.domain.scheduling.held_gpus import HeldGpu, PodsHeld
from gpuagent.domain.sharing.isolation_layers import NO_LAYER, Layer, chosen
from gpuagent.domain.sharing.mode import GPU_CORE, GROUP_ANNOTATION, VISIBLE_ANNOTATION, Kind, Mode, Placement
from gpuagent.domain.sharing.units import UnitId, device_ids, units_of
from gpuagent.domain.snapshot_indexes import AllocationIndex, PodIndex
from gpuagent.domain.state import State

Decisions = Mapping[PodName, Decision | Ignored]
Decided = Mapping[PodName, tuple[DecidedContainer, ...]]
Blocks = Mapping[tuple[str, str, Kind], frozenset[str]]
"""Resource, GPU UUID and kind to device ids."""


@dataclass(frozen=True, slots=True)
class Schedulers:
    """What schedulers have decided on the pods of the node.

    Attributes:
        decisions: of living pods, by name.
        decided: living pods to their containers with a decision.
        seen: a scheduler has decided on a pod of this node, in this run or an earlier one; None if that is not known.
        assumed: whether to assume so.
        may_have_decided: a scheduler may have decided on a pod that the agent has not seen.
    """

    decisions: Decisions
    decided: Decided
    seen: bool | None
    assumed: bool
    may_have_decided: bool


@dataclass(frozen=True, slots=True)
class ListedIds:
    """The device ids on the lists.

    Attributes:
        units: every advertised id to its GPU's UUID.
        blocks: resource, GPU UUID and kind to the advertised ids.
    """

    units: Mapping[str, str]
    blocks: Blocks


@dataclass(frozen=True)
class Snapshot:
    """One moment of the agent, immutable.

    Attributes:
        sets: chooses among the GPUs of `topology` if the mode in force advertises whole GPUs.
        isolation: the isolation drivers, and those of running containers.
        lists: the advertised devices.
        ids: of these devices.
        allocations: kubelet's, as last read. Its checkpoint is from the same moment as `holdings`.
        holdings: of pods that have not ended.
        pod_list: the pods as the API server has them now, and whether all of them were read.
        pods: the same with the annotations and labels that decided on them.
        pod_index: the living ones of `pods`.
        allocation_index: `holdings`, found by container, pod and GPU.
        published_pods: what the agent says of some pods on the Node.
        resizes: of running pods, with the units that are withheld for them.
        schedulers: their decisions on these pods.
        claimed: UUIDs of the GPUs that prepared ResourceClaims have.
    """

    policy: Policy
    mode: Mode
    placement: Placement
    gpus: Mapping[str, Gpu]
    topology: Topology
    sets: BestSets | None
    device_nodes: frozenset[str]
    isolation: IsolationDrivers
    lists: Lists
    ids: ListedIds
    allocations: Holdings
    holdings: tuple[Holding, ...]
    pod_list: Pods
    pods: tuple[Pod, ...]
    pod_index: PodIndex
    allocation_index: AllocationIndex
    published_pods: PodsHeld
    resizes: Resizes
    schedulers: Schedulers
    claimed: frozenset[str]

    @property
    def units(self) -> Mapping[str, str]:
        """Every advertised device id to its GPU's UUID."""
        return self.ids.units

    @property
    def living_pods(self) -> Mapping[PodName, Pod]:
        """By name, in the order in which the agent saw them; of one name, the newest."""
        return self.pod_index.living

    @property
    def unread_pods(self) -> bool:
        """Whether a pod that the agent has not read may be the one that asks, and may be decided."""
        return self.schedulers.may_have_decided and not self.pod_list.known

    @property
    def holdings_known(self) -> bool:
        """The agent has read kubelet's allocations in this run."""
        return self.allocations.read_at > float("-inf")

    @cached_property
    def resource_kinds(self) -> dict[str, Kind]:
        """Resource name to kind of unit for the mode in force."""
        return self.policy.resources.in_mode(self.mode)

    @cached_property
    def unit_words(self) -> dict[str, str]:
        """Resource name to the words after a number of its units in messages: ``GiB``, ``%``."""
        words = dict.fromkeys(self.resource_kinds, self.policy.unit.phrase)
        if GPU_CORE in words:
            words[GPU_CORE] = "%"
        return words

    def layer(self, mode: Mode) -> Layer:
        """The isolation driver for containers of `mode`; `NO_LAYER` if none serves it and the policy allows that."""
        isolation = self.isolation
        layer = chosen(mode, self.policy.isolation, isolation.layers, isolation.bound)
        if self.policy.allow_unisolated and not layer.keeps(mode):
            return NO_LAYER
        return layer

    @cached_property
    def serving(self) -> dict[Mode, tuple[Layer, str]]:
        """Mode to the isolation driver for its containers, and why that does not serve it now; empty if it does."""
        serving: dict[Mode, tuple[Layer, str]] = {}
        for mode in Mode:
            layer = self.layer(mode)
            is_served = self.policy.allow_unisolated or layer.keeps(mode)
            why = ""
            if not is_served:
                words = layer.problem_in(mode) or "it does not keep what the mode promises"
                why = f"isolation driver {layer.driver} does not serve mode {mode} now: {words}"
            serving[mode] = (layer, why)
        return serving

    @cached_property
    def max_sharers(self) -> int | None:
        """Most containers that the isolation layer of the mode in force takes on one GPU."""
        return self.layer(self.mode).max_sharers

    @cached_property
    def most_sharers(self) -> str:
        """The limits on sharers of one GPU, for messages: ``20 pods``."""
        pods = f"{self.policy.max_pods_per_gpu} pods"
        if self.max_sharers is None:
            return pods
        return f"{pods} or {self.max_sharers} containers"

    @cached_property
    def gpu_by_key(self) -> dict[str, Gpu]:
        return {gpu.key: gpu for gpu in self.gpus.values()}

    @cached_property
    def indexes(self) -> dict[str, int]:
        """GPU UUID to NVML index."""
        return {uuid: gpu.index for uuid, gpu in self.gpus.items()}

    @cached_property
    def positions(self) -> dict[str, int]:
        """GPU UUID to its position in `topology`."""
        return {uuid: position for position, uuid in enumerate(self.topology.gpus)}

    @cached_property
    def names(self) -> dict[str, str]:
        """GPU UUID to its name in messages: ``GPU 3``, with its minor number if that differs."""
        names = {}
        for uuid, gpu in self.gpus.items():
            name = f"GPU {gpu.index}"
            if gpu.minor != gpu.index:
                name = f"{name} (minor {gpu.minor})"
            names[uuid] = name
        return names

    def was_seen_before(self, pod: Pod, other: Pod) -> bool:
        """Whether the agent saw the living pod `pod` before `other`, and not both in one list."""
        if other.uid in self.pod_list.unordered:
            return False
        arrival = self.pod_index.arrival
        return arrival[pod.name] < arrival[other.name]

    def ring(self, uuids: Collection[str]) -> tuple[str, ...]:
        """GPUs in the order of the best ring through them; any that the topology does not have come last."""
        known = [uuid for uuid in uuids if uuid in self.positions]
        gone = [uuid for uuid in uuids if uuid not in self.positions]
        ring = self._ring(known)
        return (*ring, *sorted(gone))

    def _ring(self, uuids: Collection[str]) -> tuple[str, ...]:
        place_of = self.positions
        if len(uuids) < 4:
            # Every order is the same ring.
            in_order = sorted(uuids, key=place_of.__getitem__)
            return tuple(in_order)
        positions = frozenset(place_of[uuid] for uuid in uuids)
        # The chooser of sets keeps the rings that it has searched.
        ring = self.sets.ring(positions) if self.sets else best_ring(self.topology.mbps, positions)
        gpus = self.topology.gpus
        return tuple(gpus[position] for position in ring)


def ids_of(block: DeviceRange) -> Iterator[str]:
    """The device ids of a block, in order."""
    ids = device_ids(block.gpu.key, block.kind, block.count)
    absent = block.absent
    if not absent:
        return ids
    return (device_id for number, device_id in enumerate(ids) if number not in absent)


def leaving_ids(block: DeviceRange) -> frozenset[str]:
    """The device ids of a block that are listed as unhealthy, before they leave the list."""
    if not block.leaving:
        return frozenset()
    key, kind = block.gpu.key, block.kind
    return frozenset([str(UnitId(key, kind, number)) for number in block.leaving])


def snapshot(state: State, former: Snapshot | None = None) -> Snapshot:
    """Publish `state`. The snapshot keeps what `former` has worked out from the same objects."""
    ids = _ids(state.advertised.lists, former)
    pods = _as_decided(state, former)
    pod_index = _pod_index(state, pods, former)
    return Snapshot(
        policy=state.policy,
        mode=state.node.mode,
        placement=state.node.placement,
        gpus=state.gpus.by_uuid,
        topology=state.gpus.topology,
        sets=_sets(state, former),
        device_nodes=state.gpus.device_nodes,
        isolation=state.isolation,
        lists=state.advertised.lists,
        ids=ids,
        allocations=state.holdings,
        holdings=state.living_holdings,
        pod_list=state.pods,
        pods=pods,
        pod_index=pod_index,
        allocation_index=_allocation_index(state, pods, pod_index.living, ids.units, former),
        published_pods=state.published_pods,
        resizes=state.resizes,
        schedulers=_schedulers(state, pod_index.living, former),
        claimed=state.claims.held,
    )


def _ids(lists: Lists, former: Snapshot | None) -> ListedIds:
    """The ids on the lists. Most events change no list, and a node may advertise thousands of ids."""
    if former is not None and former.lists == lists:
        return former.ids
    blocks = _blocks(lists)
    return ListedIds(_units(blocks), blocks)


def _pod_index(
    state: State,
    pods: tuple[Pod, ...],
    former: Snapshot | None,
) -> PodIndex:
    """The index of `former` if pods and mode are the same."""
    resources = tuple(state.resource_kinds)
    if former is None or former.pods is not pods:
        living = _living(pods)
        return PodIndex(living, resources)
    if former.mode is not state.node.mode:
        return PodIndex(former.living_pods, resources)
    return former.pod_index


def _allocation_index(
    state: State,
    pods: tuple[Pod, ...],
    living: Mapping[PodName, Pod],
    units: Mapping[str, str],
    former: Snapshot | None,
) -> AllocationIndex:
    index = AllocationIndex(
        holdings=state.living_holdings,
        checkpoint=state.holdings.checkpoint,
        pods=pods,
        living=living,
        units=units,
        resources=state.policy.resources.names,
    )
    if former is None:
        return index
    before = former.allocation_index
    has_same_allocations = before.holdings is index.holdings and before.checkpoint is index.checkpoint
    has_same_pods = before.pods is pods and before.living is living
    if has_same_allocations and has_same_pods and before.units is units:
        return before
    return index


def _schedulers(
    state: State,
    living: Mapping[PodName, Pod],
    former: Snapshot | None,
) -> Schedulers:
    decisions, decided = _decisions(state, living, former)
    seen = _scheduler_seen(state, living, decisions, former)
    pods = state.pods
    # Once the pods are known, it is still open only if some of them look decided.
    presumed = pods.known or pods.presumed_decided
    assumed = presumed if seen is None else seen
    # The API server answers, but its pods are still to come: there may be decisions among them.
    api_answers = pods.problem is None and state.node.object is not None
    awaits_pods = api_answers and not pods.known
    return Schedulers(
        decisions=decisions,
        decided=decided,
        seen=seen,
        assumed=assumed,
        may_have_decided=assumed or awaits_pods,
    )


def _blocks(lists: Lists) -> Blocks:
    """The device ids of each block on the lists."""
    blocks = {}
    for resource, listed in lists.items():
        for block in listed:
            uuid, kind = block.key
            blocks[resource, uuid, kind] = frozenset(ids_of(block))
    return blocks


def _units(blocks: Blocks) -> dict[str, str]:
    """Device id to GPU UUID."""
    units: dict[str, str] = {}
    for (_, uuid, _), ids in blocks.items():
        units.update(dict.fromkeys(ids, uuid))
    return units


def _as_decided(state: State, former: Snapshot | None) -> tuple[Pod, ...]:
    """The pods with the annotations and labels that they had when the agent first saw them.

    Schedulers decide before they bind. Any author of a pod can edit it later, also while kubelet admits it or while it
    runs: such an edit must not change what others get. For whole GPUs of a pod that no scheduler decided on, or whose
    decision was not followed, kubelet's allocations count instead: kubelet may lose them and ask again.
    """
    seen = state.pods.seen
    published = state.published_pods
    if former is None:
        return tuple([_first_seen(pod, None, published.get(pod.uid)) for pod in seen])
    if former.pod_list.seen is seen and former.published_pods is published:
        return former.pods
    known: dict[str, tuple[Pod, Pod]] = {}
    for pod, decided in zip(former.pod_list.seen, former.pods, strict=True):
        known[pod.uid] = pod, decided
    pods = []
    for pod in seen:
        before, decided_before = known.get(pod.uid, (None, None))
        held = published.get(pod.uid)
        held_before = former.published_pods.get(pod.uid)
        # Most pods are as they were: comparing their texts would take milliseconds on a node with many pods.
        is_as_before = before is pod and held is held_before
        if decided_before and is_as_before:
            pods.append(decided_before)
        else:
            pods.append(_first_seen(pod, decided_before, held))
    return former.pods if _are_same(pods, former.pods) else tuple(pods)


def _first_seen(
    pod: Pod,
    former: Pod | None,
    held: Collection[HeldGpu] | None,
) -> Pod:
    """The pod as it was decided; `held` is what the agent says of it on the Node."""
    if pod.ended:
        return pod
    first = former or pod
    annotations = first.annotations
    if held and all(gpu.whole for gpu in held):
        minors = [str(gpu.minor) for gpu in held]
        annotations = {
            **annotations,
            GROUP_ANNOTATION: ",".join(minors),
            DECIDED_ANNOTATION: pod.uid,
        }
    if (pod.annotations, pod.labels) == (annotations, first.labels):
        return pod
    decided = replace(pod, annotations=annotations, labels=first.labels)
    # The same object as before, so that what follows from it need not be worked out again.
    return former if former is not None and decided == former else decided


def _are_same(pods: Collection[Pod], others: Collection[Pod]) -> bool:
    if len(pods) != len(others):
        return False
    pairs = zip(pods, others, strict=True)
    return all(pod is other for pod, other in pairs)


def _living(pods: Collection[Pod]) -> dict[PodName, Pod]:
    """The living pods by name; of one name, the newest."""
    newest: dict[PodName, Pod] = {}
    by_age = sorted(pods, key=lambda pod: pod.created)
    for pod in by_age:
        if not pod.ended:
            newest[pod.name] = pod
    # In the order of `pods`, which is the one in which the agent saw them.
    living: dict[PodName, Pod] = {}
    for pod in pods:
        if newest.get(pod.name) is pod:
            living[pod.name] = pod
    return living


def _decisions(
    state: State,
    living: Mapping[PodName, Pod],
    former: Snapshot | None,
) -> tuple[Decisions, Decided]:
    """Decisions of schedulers for the living pods. Each pod's annotations are read once."""
    still_holds = former is not None and _reads_alike(state, former)
    if former and still_holds and former.living_pods is living:
        return former.schedulers.decisions, former.schedulers.decided
    before = former if still_holds else None
    minors = _minors(state)
    amounts = _amounts(state, minors)
    decisions: dict[PodName, Decision | Ignored] = {}
    decided: dict[PodName, tuple[DecidedContainer, ...]] = {}
    for name, pod in living.items():
        # What was decided stands, whatever is written on the pod later.
        if before and _has_pod(before, pod):
            decision = before.schedulers.decisions.get(name)
            containers = before.schedulers.decided.get(name)
        else:
            decision = read(pod, state.resource_kinds, minors, amounts)
            containers = None
            if isinstance(decision, Decision) and not decision.unmet:
                containers = decided_containers(pod, decision)
        if decision is not None:
            decisions[name] = decision
        if containers is not None:
            decided[name] = containers
    return decisions, decided


def _has_pod(snap: Snapshot, pod: Pod) -> bool:
    """Whether the pod itself lived already, and not another one of its name."""
    former = snap.living_pods.get(pod.name)
    return former is not None and former.uid == pod.uid


def _reads_alike(state: State, former: Snapshot) -> bool:
    """Whether annotations that have not changed would be read as they were for `former`."""
    gpus = state.gpus
    has_same_gpus = former.gpus == gpus.by_uuid and former.topology.gpus == gpus.topology.gpus
    if not has_same_gpus:
        return False
    return former.resource_kinds == state.resource_kinds


def _minors(state: State) -> dict[str, int]:
    """GPU UUID to minor number, for the GPUs that annotations may name."""
    gpus = state.gpus.by_uuid
    listed = state.gpus.topology.gpus
    # A new GPU in the slot of a lost one has its minor number.
    taken = {gpus[uuid].minor for uuid in listed}
    minors: dict[str, int] = {}
    for uuid, gpu in gpus.items():
        if uuid in listed or gpu.minor not in taken:
            minors[uuid] = gpu.minor
    return minors


def _amounts(state: State, minors: Collection[str]) -> dict[str, dict[str, int]]:
    """Resource to the units of each GPU; none for resources of other modes."""
    unit = state.policy.unit
    gpus = state.gpus.by_uuid
    amounts: dict[str, dict[str, int]] = {}
    for resource in state.policy.resources.names:
        by_gpu: dict[str, int] = {}
        kind = state.resource_kinds.get(resource)
        if kind is not None:
            by_gpu = {uuid: units_of(gpus[uuid], kind, unit) for uuid in minors}
        amounts[resource] = by_gpu
    return amounts


_WHOLE = (GROUP_ANNOTATION, VISIBLE_ANNOTATION)
_NAMING_GPUS = (*_WHOLE, MEMORY_ANNOTATION, CORE_ANNOTATION, V1_GPU)


def _scheduler_seen(
    state: State,
    living: Mapping[PodName, Pod],
    decisions: Decisions,
    former: Snapshot | None,
) -> bool | None:
    """Whether a scheduler has decided on a pod of this node; None if that is not known."""
    known = former.schedulers.seen if former else state.pods.decided_before
    if known or state.pods.decided_before:
        return True
    if _shows_scheduler(state, living, decisions, former):
        return True
    is_open = known is None
    if is_open and state.pods.known and not any(map(_looks_decided, living.values())):
        return False
    return known


def _shows_scheduler(
    state: State,
    living: Mapping[PodName, Pod],
    decisions: Decisions,
    former: Snapshot | None,
) -> bool:
    """Whether a pod that is new to the agent has annotations that the agent itself has not written."""
    if state.holdings.listed is None:
        # A pod with annotations of the agent's own would count: it seems to hold nothing.
        return False
    before = former.living_pods if former and former.holdings_known else {}
    if before is living:
        return False
    held = {holding.owner.pod for holding in state.living_holdings}
    is_whole = state.node.mode is Mode.TOPOLOGY
    for name, pod in living.items():
        if name in before:
            continue
        decision = decisions.get(name)
        is_decided = isinstance(decision, Decision)
        if is_whole and not is_decided:
            is_decided = _names_gpus(pod, _WHOLE)
        if not is_decided:
            continue
        # The agent annotates pods that hold devices, so later its own annotations look the same.
        if name not in held or _is_of_scheduler(pod, decision):
            return True
    return False


def _names_gpus(pod: Pod, annotations: Iterable[str]) -> bool:
    """Whether one of these annotations names GPUs for the pod."""
    return any(decided_text(pod, key) is not None for key in annotations)


def _is_of_scheduler(pod: Pod, decision: Decision | Ignored | None) -> bool:
    """Whether the decision has something that the agent never writes to a pod without a decision."""
    if VISIBLE_ANNOTATION in pod.annotations:
        return True
    if not isinstance(decision, Decision):
        return False
    if pod.annotations.get(V1_ASSIGNED) == "false":
        return True
    # To a pod on one GPU, the agent writes V1 too.
    has_v2_alone = MEMORY_ANNOTATION in pod.annotations and V1_GPU not in pod.annotations
    return has_v2_alone and len(decision.uuids) == 1


def _looks_decided(pod: Pod) -> bool:
    """Whether annotations name GPUs for this pod, in any mode: a scheduler's, or those of the agent."""
    return _names_gpus(pod, _NAMING_GPUS)


def _sets(state: State, former: Snapshot | None) -> BestSets | None:
    """The chooser of whole GPUs if the mode in force advertises them. Large tables are computed later."""
    kinds = state.resource_kinds.values()
    any_whole = any(kind.is_whole for kind in kinds)
    if not any_whole:
        return None
    mbps = state.gpus.topology.mbps
    sets = former.sets if former else None
    # Its tables take up to half a second, and depend on the bandwidths alone.
    if former and sets and former.topology.mbps == mbps:
        return sets
    return BestSets(mbps)
