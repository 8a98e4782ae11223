"""The published part of the state, indexed so that RPC handlers answer in microseconds."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.topology import Topology
from gpuagent.domain.node_state.device_lists import DeviceRange, Lists
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.placement.ring import best_ring
from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    DECIDED_ANNOTATION,
    MEMORY_ANNOTATION,
    V1_ASSIGNED,
    V1_GPU,
)
from gpuagent.domain.pods.exchange import Exchanged
from gpuagent.domain.pods.holdings import Recorded, of_another_pod
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerSpec, Holding, Pod, PodName
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
from gpuagent.domain.sharing.units import device_ids, units_of
from gpuagent.domain.state import State

Decisions = Mapping[PodName, Decision | Ignored]
Decided = Mapping[PodName, tuple[DecidedContainer, ...]]
Blocks = Mapping[tuple[str, str, Kind], frozenset[str]]
"""Resource, GPU UUID and kind to device ids."""


@dataclass(frozen=True)
class Snapshot:
    """One moment of the agent, immutable.

    `units` maps every advertised device id to its GPU's UUID. `blocks` maps resource, GPU UUID and kind to the
    advertised ids. `sets` chooses among the GPUs of `topology` if the mode in force advertises whole GPUs. `exchanged`
    maps ids in kubelet's allocations to the units in their place. `kubelet` is kubelet's version. `checkpoint` is from
    the same moment as `holdings`.

    `pods` have the annotations and labels that decided on them; `seen_pods` are as the API server has them now.
    `published_pods` is what the agent says of some of them on the Node.

    `pods_known`: all pods were read in this run. `pods_watched`: the agent follows their changes now. `pods_awaited`:
    the first list of pods is still to come, also while the API server fails. `living_pods` are in the order in which
    the agent saw them; of one name, the newest. Kubelet may have got `unordered_pods` (UIDs) in another order.
    `decided` maps living pods to containers with a scheduler's decision. `scheduler_seen`: a scheduler has decided on a
    pod of this node, in this run or an earlier one; None if that is not known. `schedulers`: whether to assume so.
    `may_be_decided`: a scheduler may have decided on a pod that the agent
    has not seen. `claimed` are UUIDs of the GPUs that prepared ResourceClaims have.
    """

    policy: Policy
    mode: Mode
    placement: Placement
    gpus: Mapping[str, Gpu]
    topology: Topology
    sets: BestSets | None
    lists: Lists
    units: Mapping[str, str]
    blocks: Blocks
    holdings: tuple[Holding, ...]
    holdings_at: float
    checkpoint: tuple[CheckpointEntry, ...]
    exchanged: Exchanged
    kubelet: str
    pods: tuple[Pod, ...]
    seen_pods: tuple[Pod, ...]
    published_pods: PodsHeld
    pods_known: bool
    pods_watched: bool
    pods_awaited: bool
    device_nodes: frozenset[str]
    layers: Mapping[str, Layer]
    bound: Mapping[Mode, str]
    living_pods: Mapping[PodName, Pod]
    unordered_pods: frozenset[str]
    decisions: Decisions
    decided: Decided
    scheduler_seen: bool | None
    schedulers: bool
    may_be_decided: bool
    claimed: frozenset[str]

    @property
    def unread_pods(self) -> bool:
        """Whether a pod that the agent has not read may be the one that asks, and may be decided."""
        return self.may_be_decided and not self.pods_known

    @property
    def holdings_known(self) -> bool:
        """The agent has read kubelet's allocations in this run."""
        return self.holdings_at > float("-inf")

    @cached_property
    def resource_kinds(self) -> dict[str, Kind]:
        """Resource name to kind of unit for the mode in force."""
        return self.policy.resources.in_mode(self.mode)

    @cached_property
    def unit_words(self) -> dict[str, str]:
        """Resource name to the words after a number of its units in messages: ``GiB``, ``%``."""
        return {name: "%" if name == GPU_CORE else self.policy.unit.phrase for name in self.resource_kinds}

    def layer(self, mode: Mode) -> Layer:
        """The isolation driver for containers of `mode`; `NO_LAYER` if none serves it and the policy allows that."""
        layer = chosen(mode, self.policy.isolation, self.layers, self.bound)
        if self.policy.allow_unisolated and not layer.keeps(mode):
            return NO_LAYER
        return layer

    @cached_property
    def serving(self) -> dict[Mode, tuple[Layer, str]]:
        """Mode to the isolation driver for its containers, and why that does not serve it now; empty if it does."""
        serving: dict[Mode, tuple[Layer, str]] = {}
        for mode in Mode:
            layer = self.layer(mode)
            why = ""
            if not layer.keeps(mode) and not self.policy.allow_unisolated:
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
        return pods if self.max_sharers is None else f"{pods} or {self.max_sharers} containers"

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

    @cached_property
    def decided_pods(self) -> tuple[Pod, ...]:
        """Living pods with a scheduler's decision in their annotations."""
        return tuple(pod for pod in self.living_pods.values() if pod.annotations)

    @cached_property
    def arrival(self) -> dict[PodName, int]:
        """Number of each living pod in the order in which the agent saw them."""
        return {name: number for number, name in enumerate(self.living_pods)}

    def came_before(self, pod: Pod, other: Pod) -> bool:
        """Whether kubelet certainly got the living pod `pod` before `other`."""
        if other.uid in self.unordered_pods:
            return False
        return self.arrival[pod.name] < self.arrival[other.name]

    @cached_property
    def pod_by_uid(self) -> dict[str, Pod]:
        """Living pods by UID."""
        return {pod.uid: pod for pod in self.living_pods.values()}

    @cached_property
    def with_devices(self) -> frozenset[str]:
        """UIDs of the pods for which kubelet has recorded something.

        The checkpoint has UIDs, but for a static pod its UID differs from the API server's. Without UIDs, devices that
        a pod does not request are those of a former pod of its name.
        """
        recorded = frozenset([entry.pod_uid for entry in self.checkpoint])
        by_name: dict[PodName, list[Holding]] = defaultdict(list)
        for holding in self.holdings:
            by_name[holding.owner.pod].append(holding)
        named = []
        for name, held in by_name.items():
            pod = self.living_pods.get(name)
            if pod is None or (recorded and not pod.static):
                continue
            if not of_another_pod(pod, held, self.policy.resources.names):
                named.append(pod.uid)
        return recorded.union(named)

    @cached_property
    def unstarted(self) -> tuple[Pod, ...]:
        """Living pods with devices recorded by kubelet, and without a started container."""
        waiting = [pod for pod in self.living_pods.values() if not pod.container_ids]
        return tuple([pod for pod in waiting if pod.uid in self.with_devices])

    @cached_property
    def placed(self) -> list[tuple[Holding, frozenset[str]]]:
        """Holdings, each with the UUIDs of the GPUs of its advertised units."""
        placed = []
        for holding in self.holdings:
            uuids = map(self.units.get, holding.ids)
            placed.append((holding, frozenset(uuid for uuid in uuids if uuid)))
        return placed

    @cached_property
    def recorded(self) -> Recorded:
        """Kubelet's allocations, indexed by container and GPU."""
        return Recorded(self.holdings, self.checkpoint, self.pods, self.units)

    def ring(self, uuids: Collection[str]) -> tuple[str, ...]:
        """GPUs in the order of the best ring through them; any that the topology does not have come last."""
        known = [uuid for uuid in uuids if uuid in self.positions]
        gone = sorted(uuid for uuid in uuids if uuid not in self.positions)
        return (*self._ring(known), *gone)

    def _ring(self, uuids: Collection[str]) -> tuple[str, ...]:
        if len(uuids) < 4:  # every order is the same ring
            return tuple(sorted(uuids, key=self.positions.__getitem__))
        positions = frozenset(self.positions[uuid] for uuid in uuids)
        ring = self.sets.ring(positions) if self.sets else best_ring(self.topology.mbps, positions)
        return tuple(self.topology.gpus[position] for position in ring)

    @cached_property
    def first_asks(self) -> dict[tuple[str, int | None], list[tuple[Pod, ContainerSpec]]]:
        """Resource and units to the living pods whose first container with a share requests them.

        Units are None if they could not be read. The pods are in the order in which the agent saw them, which is also
        the order of kubelet's own watch.
        """
        asks: dict[tuple[str, int | None], list[tuple[Pod, ContainerSpec]]] = defaultdict(list)
        for pod in self.living_pods.values():
            for container in pod.containers:
                resources = self._asks(container)
                for resource in resources:
                    asks[resource, container.limits.get(resource)].append((pod, container))
                if resources:
                    break
        return asks

    def _asks(self, container: ContainerSpec) -> list[str]:
        """The resources of the mode that the container requests."""
        return [resource for resource in self.resource_kinds if container.asks(resource)]


def ids_of(block: DeviceRange) -> Iterator[str]:
    """The device ids of a block, in order."""
    return device_ids(block.gpu.key, block.kind, block.count)


def snapshot(state: State, former: Snapshot | None = None) -> Snapshot:
    """Publish `state`; the snapshot reuses the id index of `former` if the lists are the same."""
    lists = state.advertised.lists
    if former is not None and former.lists == lists:
        units = former.units
        blocks = former.blocks
    else:
        blocks = _blocks(lists)
        units = _units(blocks)
    pods = _as_decided(state, former)
    living = former.living_pods if former is not None and former.pods is pods else _living(pods)
    decisions, decided = _decisions(state, living, former)
    scheduler_seen = _scheduler_seen(state, living, decisions, former)
    # Once the pods are known, it is still open only if some of them look decided.
    presumed = state.pods.known or state.pods.presumed_decided
    schedulers = presumed if scheduler_seen is None else scheduler_seen
    # The API server answers, but its pods are still to come: there may be decisions among them.
    awaits_pods = not state.pods.known and state.pods.problem is None and state.node.object is not None
    after = Snapshot(
        policy=state.policy,
        mode=state.node.mode,
        placement=state.node.placement,
        gpus=state.gpus.by_uuid,
        topology=state.gpus.topology,
        sets=_sets(state, former),
        lists=lists,
        units=units,
        blocks=blocks,
        holdings=state.living_holdings,
        holdings_at=state.holdings.read_at,
        checkpoint=state.holdings.checkpoint,
        exchanged=state.holdings.exchanged,
        kubelet=state.holdings.kubelet,
        pods=pods,
        seen_pods=state.pods.seen,
        published_pods=state.published_pods,
        pods_known=state.pods.known,
        pods_watched=state.pods.watched,
        pods_awaited=not state.pods.known,
        device_nodes=state.gpus.device_nodes,
        layers=state.isolation.layers,
        bound=state.isolation.bound,
        living_pods=living,
        unordered_pods=state.pods.unordered,
        decisions=decisions,
        decided=decided,
        scheduler_seen=scheduler_seen,
        schedulers=schedulers,
        may_be_decided=schedulers or awaits_pods,
        claimed=state.claims.held,
    )
    if former is not None:
        _keep_indexes(after, former)
    return after


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


_OF_PODS = ("first_asks", "decided_pods", "arrival", "pod_by_uid")
_OF_ALLOCATIONS = ("placed", "with_devices", "unstarted", "recorded")
"""Indexes that depend on the pods alone, and on pods, kubelet's allocations and lists alone."""


def _keep_indexes(after: Snapshot, former: Snapshot) -> None:
    """Keep the indexes of `former` that hold on: most events change neither pods nor kubelet's allocations."""
    has_same_living = after.living_pods is former.living_pods and after.mode is former.mode
    if not has_same_living or after.pods is not former.pods:
        return
    kept: tuple[str, ...] = _OF_PODS
    has_same_holdings = after.holdings is former.holdings and after.checkpoint is former.checkpoint
    if has_same_holdings and after.units is former.units:
        kept = (*_OF_PODS, *_OF_ALLOCATIONS)
    computed = vars(former)
    vars(after).update({name: computed[name] for name in kept if name in computed})


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
    if former.seen_pods is seen and former.published_pods is published:
        return former.pods
    known = {pod.uid: (pod, decided) for pod, decided in zip(former.seen_pods, former.pods, strict=True)}
    pods = []
    for pod in seen:
        before, decided = known.get(pod.uid, (None, None))
        held = published.get(pod.uid)
        # Most pods are as they were: comparing their texts would take milliseconds on a node with many pods.
        is_as_before = before is pod and held is former.published_pods.get(pod.uid)
        pods.append(decided if decided and is_as_before else _first_seen(pod, decided, held))
    return former.pods if _are_same(pods, former.pods) else tuple(pods)


def _first_seen(pod: Pod, former: Pod | None, held: Collection[HeldGpu] | None) -> Pod:
    if pod.ended:
        return pod
    first = former or pod
    annotations = first.annotations
    if held and all(gpu.whole for gpu in held):
        group = ",".join(str(gpu.minor) for gpu in held)
        annotations = {**annotations, GROUP_ANNOTATION: group, DECIDED_ANNOTATION: pod.uid}
    if (pod.annotations, pod.labels) == (annotations, first.labels):
        return pod
    decided = replace(pod, annotations=annotations, labels=first.labels)
    return former if former is not None and decided == former else decided


def _are_same(pods: Collection[Pod], others: Collection[Pod]) -> bool:
    if len(pods) != len(others):
        return False
    return all(pod is other for pod, other in zip(pods, others, strict=True))


def _living(pods: Collection[Pod]) -> dict[PodName, Pod]:
    """The living pods by name; of one name, the newest."""
    newest: dict[PodName, Pod] = {}
    for pod in sorted(pods, key=lambda pod: pod.created):
        if not pod.ended:
            newest[pod.name] = pod
    return {pod.name: pod for pod in pods if newest.get(pod.name) is pod}


def _decisions(state: State, living: Mapping[PodName, Pod], former: Snapshot | None) -> tuple[Decisions, Decided]:
    """Decisions of schedulers for the living pods. Each pod's annotations are read once."""
    still_holds = former is not None and _reads_alike(state, former)
    if former and still_holds and former.living_pods is living:
        return former.decisions, former.decided
    before = former.living_pods if former and still_holds else {}
    minors = _minors(state)
    amounts = _amounts(state, minors)
    decisions: dict[PodName, Decision | Ignored] = {}
    decided: dict[PodName, tuple[DecidedContainer, ...]] = {}
    for name, pod in living.items():
        pod_before = before.get(name)
        if former and pod_before and pod_before.uid == pod.uid:
            decision = former.decisions.get(name)
            if name in former.decided:
                decided[name] = former.decided[name]
        else:
            decision = read(pod, state.resource_kinds, minors, amounts)
            if isinstance(decision, Decision) and not decision.unmet:
                decided[name] = decided_containers(pod, decision)
        if decision is not None:
            decisions[name] = decision
    return decisions, decided


def _reads_alike(state: State, former: Snapshot) -> bool:
    """Whether annotations that have not changed would be read as they were for `former`."""
    has_same_gpus = former.gpus == state.gpus.by_uuid and former.topology.gpus == state.gpus.topology.gpus
    return has_same_gpus and former.resource_kinds == state.resource_kinds


def _minors(state: State) -> dict[str, int]:
    """GPU UUID to minor number, for the GPUs that annotations may name."""
    gpus = state.gpus.by_uuid
    minors = {uuid: gpus[uuid].minor for uuid in state.gpus.topology.gpus}
    # A new GPU in the slot of a lost one has its minor number.
    taken = set(minors.values())
    return {uuid: gpu.minor for uuid, gpu in gpus.items() if uuid in minors or gpu.minor not in taken}


def _amounts(state: State, minors: Collection[str]) -> dict[str, dict[str, int]]:
    """Resource to the units of each GPU; none for resources of other modes."""
    unit = state.policy.unit
    amounts: dict[str, dict[str, int]] = {}
    for resource in state.policy.resources.names:
        kind = state.resource_kinds.get(resource)
        amounts[resource] = {}
        if kind is not None:
            amounts[resource] = {uuid: units_of(state.gpus.by_uuid[uuid], kind, unit) for uuid in minors}
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
    known = former.scheduler_seen if former else state.pods.decided_before
    if known or state.pods.decided_before:
        return True
    if _shows_scheduler(state, living, decisions, former):
        return True
    if known is None and state.pods.known and not any(map(_looks_decided, living.values())):
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
        return False  # a pod with annotations of the agent's own would count: it seems to hold nothing
    before = former.living_pods if former and former.holdings_known else {}
    if before is living:
        return False
    held = {holding.owner.pod for holding in state.living_holdings}
    whole = state.node.mode is Mode.TOPOLOGY
    for name, pod in living.items():
        if name in before:
            continue
        decision = decisions.get(name)
        is_decided = isinstance(decision, Decision)
        if whole:
            is_decided = is_decided or any(decided_text(pod, key) is not None for key in _WHOLE)
        # The agent annotates pods that hold devices, so later its own annotations look the same.
        if is_decided and (name not in held or _is_of_scheduler(pod, decision)):
            return True
    return False


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
    return any(decided_text(pod, key) is not None for key in _NAMING_GPUS)


def _sets(state: State, former: Snapshot | None) -> BestSets | None:
    """The chooser of whole GPUs if the mode in force advertises them. Large tables are computed later."""
    if not any(kind.is_whole for kind in state.resource_kinds.values()):
        return None
    if former is not None and former.sets is not None and former.topology.mbps == state.gpus.topology.mbps:
        return former.sets
    return BestSets(state.gpus.topology.mbps)
