"""Checks of a mode's promises before a container starts, against kubelet's allocations.

At admission, the agent can check a rule that depends on the pod only if it has identified the pod. Kubelet's
allocations need neither an API server nor annotations, and their owner is certain. A refusal here fails no pod: kubelet
retries the start.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuagent.domain.deviceplugin.allocate import Located, apart, locate
from gpuagent.domain.deviceplugin.mode_rules import gpu_count
from gpuagent.domain.deviceplugin.occupancy import AdmissionTracker
from gpuagent.domain.pods.holdings import Allocation, Record, Recorded
from gpuagent.domain.pods.pod import ContainerRef, Pod, PodName
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Mode, other_resource
from gpuagent.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Start:
    """A container that is about to start.

    Attributes:
        resource: name of a resource that it has.
        ids: its units of `resource`.
        at: the GPUs of these units.
        snap: the current snapshot.
    """

    resource: str
    ids: frozenset[str]
    at: Located
    snap: Snapshot

    def owner(self, tracker: AdmissionTracker) -> ContainerRef | None:
        """The container by kubelet's allocations as last read, unless the ids were allocated again since."""
        later = [one for one in tracker.recent if one.at >= self.snap.holdings_at]
        if [one for one in later if not one.ids.isdisjoint(self.ids)]:
            return None
        owners = (h.owner for h in self.snap.holdings if h.resource == self.resource and h.ids == self.ids)
        # An entry of the checkpoint alone has no pod name: the list may be from just before it had the container.
        return next((owner for owner in owners if owner.pod.namespace), None)


def check_start(start: Start, recorded: Recorded, order: Sequence[Allocation]) -> None:
    """Check kubelet's allocations of the containers that have these units.

    `order` has the node's allocations, the last one given or repeated last. It may lack old ones.

    Raises:
        Refusal: it breaks a promise of the mode.
    """
    for record in recorded.containers.get((start.resource, start.ids), ()):
        if start.at.kind.mode is Mode.CORE_MEM:
            _check_pair(start, record)
        if start.at.kind.is_memory and record.pod:
            _check_spread(start, record, record.pod)
        if start.at.kind.mode is start.snap.mode and not start.at.kind.is_whole:
            _check_sharers(start, record.container, recorded, order)


def _check_pair(start: Start, record: Record) -> None:
    """A container has memory and compute, or neither, and has both on one GPU."""
    snap, resource = start.snap, start.resource
    other = other_resource(resource)
    units = record.units.get(other)
    if units and (there := locate(other, units, snap).counts.keys()) != start.at.counts.keys():
        raise apart(resource, other, there, start.at.counts, snap)
    if not units and snap.policy.core_mem_both:
        text = f"{resource}: by kubelet's allocations {record.container} has it and nothing of {other}"
        advice = "in mode core_mem a container has both, or neither. Delete the pod, and ask for both"
        raise Refusal(Reason.CORE_MEM_BOTH, f"{text}; {advice}")


def _check_spread(start: Start, record: Record, pod: Pod) -> None:
    """The container has as many GPUs as the pod's label says. A restart is exempt: the label may have changed since."""
    counts = start.at.counts
    if record.container.container in pod.container_ids.values():
        return
    wanted = gpu_count(pod, start.resource, sum(counts.values()), {start.resource: start.at.kind})
    if wanted != len(counts) or len(set(counts.values())) > 1:
        has = ", ".join(f"{n} on {start.snap.names[uuid]}" for uuid, n in counts.items())
        gpus = "1 GPU" if wanted == 1 else f"{wanted} GPUs, evenly"
        text = f"{start.resource}: {record.container} is to have {gpus} (label {GPU_COUNT_LABEL} of its pod)"
        advice = "Delete the pod, so that it is admitted again"
        raise Refusal(Reason.GPU_COUNT, f"{text}, and has by kubelet's allocations {has}. {advice}")


def _check_sharers(start: Start, own: ContainerRef, recorded: Recorded, order: Sequence[Allocation]) -> None:
    """The GPU was not full before this container came. The latest container is refused, not the earlier ones."""
    snap = start.snap
    most, most_pods = snap.max_sharers, snap.policy.max_pods_per_gpu

    def too_many(pods: Collection[PodName], containers: Collection[ContainerRef]) -> bool:
        return len(pods) > most_pods or (most is not None and len(containers) > most)

    full = [uuid for uuid in start.at.counts if too_many(*recorded.sharers[uuid])]
    if not full or (start.resource, start.ids) not in order:
        return
    later = {*order[order.index((start.resource, start.ids)) + 1 :]}
    ended = {pod.name for pod in snap.pods if pod.ended}
    before = [h for h in recorded.holdings if h.owner.pod not in ended and (h.resource, h.ids) not in later]
    for uuid in full:
        containers = {own, *(h.owner for h in before if uuid in recorded.gpus_of(h))}
        if too_many({owner.pod for owner in containers}, containers):
            text = f"{start.resource}: by kubelet's allocations {snap.names[uuid]} had {snap.most_sharers} before {own}"
            raise Refusal(
                Reason.TOO_MANY_PODS, f"{text}, the most allowed. Delete the pod, so that it gets another GPU"
            )
