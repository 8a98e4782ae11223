"""Checks of a mode's promises before a container starts, against kubelet's allocations.

At admission, the agent can check a rule that depends on the pod only if it has identified the pod. Kubelet's
allocations need neither an API server nor annotations, and their owner is certain. A refusal here fails no pod: kubelet
retries the start.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuagent.domain.deviceplugin.admission.admission_tracker import AdmissionTracker
from gpuagent.domain.deviceplugin.admission.recent_allocations import all_ids
from gpuagent.domain.deviceplugin.allocation_rules import apart
from gpuagent.domain.deviceplugin.located import Located, locate
from gpuagent.domain.deviceplugin.mode_rules import gpu_count
from gpuagent.domain.pods.holdings import Allocation, Record, Recorded
from gpuagent.domain.pods.pod import ContainerRef, Holding, Pod, PodName
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Mode, other_resource
from gpuagent.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Start:
    """A container that is about to start.

    Attributes:
        resource: name of a resource that it has.
        ids: its units of `resource`.
        located: the GPUs of these units.
        snap: the current snapshot.
    """

    resource: str
    ids: frozenset[str]
    located: Located
    snap: Snapshot

    def owner(self, tracker: AdmissionTracker) -> ContainerRef | None:
        """The container by kubelet's allocations as last read, unless the ids were allocated again since."""
        holdings_at = self.snap.allocations.read_at
        # Such an allocation may be another container's, which the allocations as last read do not show yet.
        later = [allocation for allocation in tracker.recent if allocation.at >= holdings_at]
        if not all_ids(later).isdisjoint(self.ids):
            return None
        for holding in self.snap.holdings:
            if holding.resource != self.resource or holding.ids != self.ids:
                continue
            # An entry of the checkpoint alone has no pod name: the list may be from just before it had the container.
            if holding.owner.pod.namespace:
                return holding.owner
        return None


def check_start(
    start: Start,
    recorded: Recorded,
    order: Sequence[Allocation],
) -> None:
    """Check kubelet's allocations of the containers that have these units.

    `order` has the node's allocations, the last one given or repeated last. It may lack old ones.

    Raises:
        Refusal: it breaks a promise of the mode.
    """
    kind = start.located.kind
    # The limit on sharers is that of the mode in force. Containers of a former mode keep what they have.
    is_shared_now = kind.mode is start.snap.mode and not kind.is_whole
    for record in recorded.containers.get((start.resource, start.ids), ()):
        if kind.mode is Mode.CORE_MEM:
            _check_pair(start, record)
        if kind.is_memory and record.pod:
            _check_spread(start, record, record.pod)
        if is_shared_now:
            _check_sharers(start, record.container, recorded, order)


def _check_pair(start: Start, record: Record) -> None:
    """A container has memory and compute, or neither, and has both on one GPU."""
    snap = start.snap
    resource = start.resource
    other = other_resource(resource)
    units = record.units.get(other)
    if units:
        gpus = start.located.counts.keys()
        other_gpus = locate(other, units, snap).counts.keys()
        if other_gpus != gpus:
            raise apart(resource, other, other_gpus, gpus, snap)
    elif snap.policy.core_mem_both:
        text = f"{resource}: by kubelet's allocations {record.container} has it and nothing of {other}"
        advice = "in mode core_mem a container has both, or neither. Delete the pod, and ask for both"
        raise Refusal(Reason.CORE_MEM_BOTH, f"{text}; {advice}")


def _check_spread(
    start: Start,
    record: Record,
    pod: Pod,
) -> None:
    """The container has as many GPUs as the pod's label says. A restart is exempt: the label may have changed since."""
    counts = start.located.counts
    has_started = record.container.container in pod.container_ids.values()
    if has_started:
        return
    size = sum(counts.values())
    wanted = gpu_count(pod, start.resource, size, {start.resource: start.located.kind})
    is_even = len(set(counts.values())) == 1
    if wanted == len(counts) and is_even:
        return
    on_gpus = [f"{units} on {start.snap.names[uuid]}" for uuid, units in counts.items()]
    gpus = "1 GPU" if wanted == 1 else f"{wanted} GPUs, evenly"
    text = f"{start.resource}: {record.container} is to have {gpus} (label {GPU_COUNT_LABEL} of its pod)"
    text = f"{text}, and has by kubelet's allocations {', '.join(on_gpus)}"
    raise Refusal(Reason.GPU_COUNT, f"{text}. Delete the pod, so that it is admitted again")


def _check_sharers(
    start: Start,
    own: ContainerRef,
    recorded: Recorded,
    order: Sequence[Allocation],
) -> None:
    """The GPU was not full before this container came. The latest container is refused, not the earlier ones."""
    snap = start.snap
    overfull = []
    for uuid in start.located.counts:
        pods, containers = recorded.sharers[uuid]
        if _too_many(pods, containers, snap):
            overfull.append(uuid)
    # Without a place in the order, nothing tells whether this container came last: then it starts.
    own_allocation = start.resource, start.ids
    if not overfull or own_allocation not in order:
        return
    place = order.index(own_allocation)
    later = {*order[place + 1 :]}
    earlier = _living_holdings(recorded, later, snap)
    for uuid in overfull:
        containers_before = {holding.owner for holding in earlier if uuid in recorded.gpus_of(holding)}
        containers_before.add(own)
        pods_before = {owner.pod for owner in containers_before}
        if _too_many(pods_before, containers_before, snap):
            had = f"{snap.names[uuid]} had {snap.most_sharers} before {own}, the most allowed"
            text = f"{start.resource}: by kubelet's allocations {had}"
            raise Refusal(Reason.TOO_MANY_PODS, f"{text}. Delete the pod, so that it gets another GPU")


def _too_many(
    pods: Collection[PodName],
    containers: Collection[ContainerRef],
    snap: Snapshot,
) -> bool:
    """Whether these are more than may share one GPU."""
    if len(pods) > snap.policy.max_pods_per_gpu:
        return True
    most = snap.max_sharers
    return most is not None and len(containers) > most


def _living_holdings(
    recorded: Recorded,
    later: Collection[Allocation],
    snap: Snapshot,
) -> list[Holding]:
    """Holdings of pods that have not ended, without the `later` allocations."""
    ended = {pod.name for pod in snap.pods if pod.ended}
    living = [holding for holding in recorded.holdings if holding.owner.pod not in ended]
    return [holding for holding in living if (holding.resource, holding.ids) not in later]
