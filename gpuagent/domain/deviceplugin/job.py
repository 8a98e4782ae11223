"""Pods of one distributed job on this node, and schedulers' decisions for pods in mode `topology`."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin.admission.recent_allocations import InUse
from gpuagent.domain.deviceplugin.admission.requester import Requester
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION, Malformed, gpu_names, shown
from gpuagent.domain.pods.pod import ContainerRef, Holding, Pod, PodName, asked, count_of
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.scheduling.decision import for_another_pod
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL, VISIBLE_ANNOTATION, Kind
from gpuagent.domain.snapshot import Snapshot

MOST_PODS = 64
"""Maximum number of a job's future pods that placement plans for."""


def same_job(pod: Pod, other: Pod) -> bool:
    """Whether both belong to one job, by the label `gpu-topology`; a pod without it is a job of its own."""
    if pod.name == other.name:
        return True
    job = pod.labels.get(JOB_LABEL)
    if not job or job != other.labels.get(JOB_LABEL):
        return False
    return pod.name.namespace == other.name.namespace


def gpus_of_job(
    pod: Pod,
    resource: str,
    occupancy: Occupancy,
) -> dict[PodName, set[str]]:
    """Pod name to UUIDs of the whole GPUs it has, for the pods of the job that have some, `pod` included."""
    living = occupancy.snapshot.living_pods
    held: dict[PodName, set[str]] = {}
    for allocation, uuids in occupancy.in_use:
        # Without a name, the agent cannot tell whether the container is of the job.
        owner = allocation.owner
        if owner is None or allocation.resource != resource:
            continue
        other = living.get(owner.pod)
        if other and same_job(pod, other):
            held.setdefault(other.name, set()).update(uuids)
    return held


def together(
    pod: Pod,
    resource: str,
    held: Mapping[PodName, Collection[str]],
) -> tuple[int, ...]:
    """Numbers of GPUs that this pod and future pods of its job need together, largest first.

    The first number is for all of them, each next one is for one pod less, and the last is for this pod alone. All pods
    of a job request the same amount, and no node has GPUs for more than `MOST_PODS` of them.
    """
    gpus_per_pod = asked(pod, resource)
    held_by_pod = set(held.get(pod.name, ()))
    # Kubelet asks container by container, so the pod may have some of its GPUs already.
    still_needed = max(gpus_per_pod - len(held_by_pod), 0)
    pods_of_job = count_of(pod.labels.get(REPLICAS_LABEL)) or 1
    pods_here = held.keys() | {pod.name}
    # The label is the tenant's, so it may say anything.
    pods_to_come = min(max(pods_of_job - len(pods_here), 0), MOST_PODS)
    alone_last = range(pods_to_come, -1, -1)
    return tuple([still_needed + others * gpus_per_pod for others in alone_last])


def named_gpus(
    pod: Pod,
    resource: str,
    snapshot: Snapshot,
) -> frozenset[str] | None:
    """UUIDs of the GPUs a scheduler chose for the pod in mode `topology`; None without its annotation.

    Raises:
        Refusal: the annotation names no GPUs of this node, or another number than the pod requests.
    """
    if snapshot.resource_kinds.get(resource) is not Kind.WHOLE_TOPOLOGY:
        return None
    named = _annotated(pod, GROUP_ANNOTATION, snapshot)
    if named is None:
        return None
    wanted = asked(pod, resource)
    if len(named) != wanted:
        problem = f"names {len(named)} GPUs, and the pod asks for {wanted} of {resource}"
        raise _refusal(pod, GROUP_ANNOTATION, problem)
    return named


def named_for_others(
    pod: Pod | None,
    resource: str,
    occupancy: Occupancy,
) -> frozenset[str]:
    """UUIDs of GPUs that a scheduler chose for other pods of the node that do not hold all their GPUs yet."""
    held: Counter[PodName] = Counter()
    for allocation, _ in occupancy.in_use:
        owner = allocation.owner
        if owner and allocation.resource == resource:
            held[owner.pod] += len(allocation.ids)
    named = frozenset[str]()
    for other in occupancy.snapshot.pod_index.decided:
        if pod is not None and other.name == pod.name:
            continue
        if held[other.name] < asked(other, resource):
            # What a pod's annotations say wrongly is for its own call: they must not fail this one.
            with suppress(Refusal):
                named |= named_gpus(other, resource, occupancy.snapshot) or frozenset()
    return named


def _strangers(
    pod: Pod,
    uuids: Collection[str],
    occupancy: Occupancy,
) -> Iterator[tuple[str, ContainerRef | None]]:
    """GPU and container of each allocation on one of these GPUs by a container that is not of the pod's job."""
    living = occupancy.snapshot.living_pods
    for allocation, gpus in occupancy.in_use:
        owner = allocation.owner
        holder = living.get(owner.pod) if owner else None
        if holder and same_job(pod, holder):
            continue
        for uuid in sorted(gpus.intersection(uuids)):
            yield uuid, owner


def differences(
    pod: Pod,
    uuids: Collection[str],
    visible_gpus: Collection[str],
    snapshot: Snapshot,
) -> Iterator[str]:
    """Texts about annotations of the pod that name other GPUs than it gets or sees.

    Args:
        pod: with its annotations.
        uuids: UUIDs of the GPUs it gets.
        visible_gpus: UUIDs of other GPUs that it sees.
        snapshot: the current snapshot.
    """
    gets = frozenset(uuids)
    sees = gets.union(visible_gpus)
    uncertain = "the agent cannot identify the requesting pod for certain"
    group = _named_or_none(pod, GROUP_ANNOTATION, snapshot)
    # A container may get a part of the pod's GPUs.
    if group is not None and not group >= gets:
        yield _difference(pod, GROUP_ANNOTATION, f"got {_names(gets, snapshot)}: {uncertain}")
    visible = _named_or_none(pod, VISIBLE_ANNOTATION, snapshot)
    # A container may see more than the annotation says: its own GPUs need not be named.
    if visible is None or visible <= sees:
        return
    why = uncertain
    if not snapshot.policy.trust_visible:
        if pod.annotations.get(DECIDED_ANNOTATION) == pod.uid:
            # gpuscheduler always names the job's GPUs, for agents that trust it.
            return
        why = "--trust-gpu-visible is off"
    yield _difference(pod, VISIBLE_ANNOTATION, f"sees {_names(sees, snapshot)}: {why}")


def _named_or_none(
    pod: Pod,
    key: str,
    snapshot: Snapshot,
) -> frozenset[str] | None:
    """UUIDs of the GPUs in an annotation; none of them if it is wrong."""
    try:
        return _annotated(pod, key, snapshot)
    except Refusal:
        return frozenset()


def _names(uuids: Collection[str], snapshot: Snapshot) -> str:
    return ", ".join([snapshot.names[uuid] for uuid in sorted(uuids)])


def _difference(
    pod: Pod,
    key: str,
    what: str,
) -> str:
    return _text(pod, key, f"names {shown(pod.annotations[key])}, and it {what}")


class Visible(NamedTuple):
    """UUIDs of GPUs that a container sees as well, and warnings to its pod."""

    uuids: tuple[str, ...]
    warnings: Sequence[Announcement] = ()


NONE_VISIBLE = Visible(())


def visible_gpus(
    requester: Requester,
    before: InUse | None,
    own: Collection[str],
    occupancy: Occupancy,
) -> Visible:
    """The GPUs that the requesting container sees beside its `own`: none, unless its pod is certain.

    `before` is the allocation that has the same ids already. Raises Refusal, as `visible_gpus_of`.
    """
    snap = occupancy.snapshot
    pod = requester.pod
    certain = requester.certain
    if before and before.owner:
        pod = snap.living_pods.get(before.owner.pod)
        certain = isinstance(before, Holding) or before.certain
    # Of a pod that the agent does not know, it knows no annotations.
    if pod is None:
        return NONE_VISIBLE
    # If the pod were another one, the container would see GPUs of strangers. The same holds for annotations that may
    # have changed while the watch was broken.
    uuids: tuple[str, ...] = ()
    if certain and snap.pod_list.watched:
        uuids = visible_gpus_of(pod, own, occupancy)
    warnings = []
    for text in differences(pod, own, uuids, snap):
        warning = Announcement("GPUGroupDiffers", text, warning=True, pods=(pod.name,))
        warnings.append(warning)
    return Visible(uuids, warnings)


def visible_gpus_of(
    pod: Pod,
    own: Collection[str],
    occupancy: Occupancy,
) -> tuple[str, ...]:
    """UUIDs of GPUs of the job that a scheduler makes visible to the pod's containers, without the container's `own`.

    Empty where the policy does not trust the annotation: any author of a pod can write it.

    Raises:
        Refusal: the annotation names no GPUs of this node, a GPU that is not advertised, or a GPU that a pod outside
            the job holds.
    """
    snap = occupancy.snapshot
    if not snap.policy.trust_visible:
        return ()
    visible = _annotated(pod, VISIBLE_ANNOTATION, snap)
    if visible is None:
        return ()
    others = visible.difference(own)
    # Every GPU that is not advertised is unhealthy, in MIG mode, or used by another mode or plugin.
    strange = others - _advertised(snap)
    if strange:
        problem = f"shows it {snap.names[min(strange)]}, which is not advertised"
        raise _refusal(pod, VISIBLE_ANNOTATION, problem)
    for uuid, holder in _strangers(pod, others, occupancy):
        problem = f"shows it {snap.names[uuid]}, which {holder or 'another container'} has; it is not of the same job"
        raise _refusal(pod, VISIBLE_ANNOTATION, problem)
    return tuple(sorted(others, key=snap.positions.__getitem__))


def _advertised(snap: Snapshot) -> set[str]:
    """UUIDs of the GPUs with healthy units of any resource."""
    advertised = set()
    for blocks in snap.lists.values():
        advertised.update([block.gpu.uuid for block in blocks if block.healthy])
    return advertised


def _annotated(
    pod: Pod,
    key: str,
    snapshot: Snapshot,
) -> frozenset[str] | None:
    """UUIDs of the GPUs in an annotation: minor numbers, or UUIDs. Raises Refusal."""
    if for_another_pod(pod):
        return None
    names = gpu_names(pod.annotations, key)
    if names is None:
        return None
    if isinstance(names, Malformed):
        raise _refusal(pod, key, names.problem)
    # Schedulers name GPUs by minor number, people often by UUID.
    by_name = {}
    for uuid in snapshot.topology.gpus:
        gpu = snapshot.gpus[uuid]
        by_name[str(gpu.minor)] = uuid
        by_name[uuid] = uuid
    strangers = [name for name in names if name not in by_name]
    if strangers:
        problem = f"names {shown(strangers[0])}, and this node has no such GPU"
        raise _refusal(pod, key, problem)
    uuids = frozenset([by_name[name] for name in names])
    if len(uuids) < len(names):
        # For example, once by its number and once by its UUID.
        raise _refusal(pod, key, f"names a GPU twice: {shown(pod.annotations[key])}")
    return uuids


def _refusal(
    pod: Pod,
    key: str,
    problem: str,
) -> Refusal:
    return Refusal(Reason.GPU_GROUP, _text(pod, key, problem))


def _text(
    pod: Pod,
    key: str,
    what: str,
) -> str:
    return f"pod {pod.name}: annotation {key} {what}"
