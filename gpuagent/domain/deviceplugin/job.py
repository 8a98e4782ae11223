"""Pods of one distributed job on this node, and schedulers' decisions for pods in mode `topology`."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin.identity import Requester
from gpuagent.domain.deviceplugin.occupancy import InUse, Occupancy
from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION, Malformed, gpu_names, shown
from gpuagent.domain.pods.pod import ContainerRef, Holding, Pod, PodName, asked, count_of
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.scheduling.decision import for_another_pod
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL, VISIBLE_ANNOTATION, Kind
from gpuagent.domain.snapshot import Snapshot

MOST_PODS = 64
"""Maximum number of a job's future pods that placement plans for."""


def same_job(one: Pod, other: Pod) -> bool:
    """Whether both belong to one job, by the label `gpu-topology`; a pod without it is a job of its own."""
    if one.name == other.name:
        return True
    job = one.labels.get(JOB_LABEL)
    return bool(job) and job == other.labels.get(JOB_LABEL) and one.name.namespace == other.name.namespace


def gpus_of_job(pod: Pod, resource: str, occupancy: Occupancy) -> dict[PodName, set[str]]:
    """Pod name to UUIDs of the whole GPUs it has, for the pods of the job that have some, `pod` included."""
    living = occupancy.snapshot.living_pods
    found: dict[PodName, set[str]] = {}
    for one, uuids in occupancy.in_use:
        owner = one.owner
        other = living.get(owner.pod) if owner and one.resource == resource else None
        if other and same_job(pod, other):
            found.setdefault(other.name, set()).update(uuids)
    return found


def together(pod: Pod, resource: str, held: Mapping[PodName, Iterable[str]]) -> tuple[int, ...]:
    """Numbers of GPUs that this pod and future pods of its job need together, largest first.

    The first number is for all of them, each next one is for one pod less, and the last is for this pod alone. All pods
    of a job request the same amount, and no node has GPUs for more than `MOST_PODS` of them.
    """
    each = asked(pod, resource)
    own = max(each - len(set(held.get(pod.name, ()))), 0)
    to_come = (count_of(pod.labels.get(REPLICAS_LABEL)) or 1) - len(held.keys() | {pod.name})
    return tuple(own + others * each for others in range(min(max(to_come, 0), MOST_PODS), -1, -1))


def named_gpus(pod: Pod, resource: str, snapshot: Snapshot) -> frozenset[str] | None:
    """UUIDs of the GPUs a scheduler chose for the pod in mode `topology`; None without its annotation.

    Raises:
        Refusal: the annotation names no GPUs of this node, or another number than the pod requests.
    """
    if snapshot.resource_kinds.get(resource) is not Kind.WHOLE_TOPOLOGY:
        return None
    named = _annotated(pod, GROUP_ANNOTATION, snapshot)
    if named is not None and len(named) != (wanted := asked(pod, resource)):
        text = f"names {len(named)} GPUs, and the pod asks for {wanted} of {resource}"
        raise Refusal(Reason.GPU_GROUP, _text(pod, GROUP_ANNOTATION, text))
    return named


def named_for_others(pod: Pod | None, resource: str, occupancy: Occupancy) -> frozenset[str]:
    """UUIDs of GPUs that a scheduler chose for other pods of the node that do not hold all their GPUs yet."""
    held: Counter[PodName] = Counter()
    for one, _ in occupancy.in_use:
        if (owner := one.owner) and one.resource == resource:
            held[owner.pod] += len(one.ids)
    named = frozenset[str]()
    for other in occupancy.snapshot.decided_pods:
        if (pod is None or other.name != pod.name) and held[other.name] < asked(other, resource):
            with suppress(Refusal):
                named |= named_gpus(other, resource, occupancy.snapshot) or frozenset()
    return named


def _strangers(pod: Pod, uuids: Collection[str], occupancy: Occupancy) -> Iterator[tuple[str, ContainerRef | None]]:
    """GPU and container of each allocation on one of these GPUs by a container that is not of the pod's job."""
    for one, gpus in occupancy.in_use:
        owner = one.owner
        holder = occupancy.snapshot.living_pods.get(owner.pod) if owner else None
        if not (holder and same_job(pod, holder)):
            yield from ((uuid, owner) for uuid in sorted(gpus.intersection(uuids)))


def differences(pod: Pod, uuids: Collection[str], visible_gpus: Collection[str], snapshot: Snapshot) -> Iterator[str]:
    """Texts about annotations of the pod that name other GPUs than it gets or sees.

    Args:
        pod: with its annotations.
        uuids: UUIDs of the GPUs it gets.
        visible_gpus: UUIDs of other GPUs that it sees.
        snapshot: the current snapshot.
    """
    got = set(uuids)
    for key, has, word in ((GROUP_ANNOTATION, got, "got"), (VISIBLE_ANNOTATION, got | set(visible_gpus), "sees")):
        try:
            named = _annotated(pod, key, snapshot)
        except Refusal:
            named = frozenset()
        if named is not None and not (named >= has if key == GROUP_ANNOTATION else named <= has):
            names = ", ".join(snapshot.names[uuid] for uuid in sorted(has))
            why = "the agent cannot identify the requesting pod for certain"
            if key == VISIBLE_ANNOTATION and not snapshot.policy.trust_visible:
                if pod.annotations.get(DECIDED_ANNOTATION) == pod.uid:
                    continue  # gpuscheduler always names the job's GPUs, for agents that trust it
                why = "--trust-gpu-visible is off"
            yield _text(pod, key, f"names {shown(pod.annotations[key])}, and it {word} {names}: {why}")


class Visible(NamedTuple):
    """UUIDs of GPUs that a container sees as well, and warnings to its pod."""

    uuids: tuple[str, ...]
    warnings: Sequence[Announcement] = ()


NONE_VISIBLE = Visible(())


def visible_gpus(requester: Requester, before: InUse | None, own: Collection[str], occupancy: Occupancy) -> Visible:
    """The GPUs that the requesting container sees beside its `own`: none, unless its pod is certain.

    `before` is the allocation that has the same ids already. Raises Refusal, as `visible_gpus_of`.
    """
    snap, pod, certain = occupancy.snapshot, requester.pod, requester.certain
    if before and before.owner:
        pod, certain = snap.living_pods.get(before.owner.pod), isinstance(before, Holding) or before.certain
    if pod is None:
        return NONE_VISIBLE
    uuids = visible_gpus_of(pod, own, occupancy) if certain and snap.pods_watched else ()
    texts = differences(pod, own, uuids, snap)
    return Visible(uuids, [Announcement("GPUGroupDiffers", text, warning=True, pods=(pod.name,)) for text in texts])


def visible_gpus_of(pod: Pod, own: Collection[str], occupancy: Occupancy) -> tuple[str, ...]:
    """UUIDs of GPUs of the job that a scheduler makes visible to the pod's containers, without the container's `own`.

    Empty where the policy does not trust the annotation: any author of a pod can write it.

    Raises:
        Refusal: the annotation names no GPUs of this node, a GPU that is not advertised, or a GPU that a pod outside
            the job holds.
    """
    snap = occupancy.snapshot
    visible = _annotated(pod, VISIBLE_ANNOTATION, snap) if snap.policy.trust_visible else None
    if visible is None:
        return ()
    others = visible.difference(own)
    # Every other GPU is unhealthy, in MIG mode, or used by another mode or plugin.
    offered = {block.gpu.uuid for blocks in snap.lists.values() for block in blocks if block.healthy}
    if strange := others - offered:
        text = f"shows it {snap.names[min(strange)]}, which is not advertised"
        raise Refusal(Reason.GPU_GROUP, _text(pod, VISIBLE_ANNOTATION, text))
    for uuid, holder in _strangers(pod, others, occupancy):
        text = f"shows it {snap.names[uuid]}, which {holder or 'another container'} has; it is not of the same job"
        raise Refusal(Reason.GPU_GROUP, _text(pod, VISIBLE_ANNOTATION, text))
    return tuple(sorted(others, key=snap.positions.__getitem__))


def _annotated(pod: Pod, key: str, snapshot: Snapshot) -> frozenset[str] | None:
    """UUIDs of the GPUs in an annotation: minor numbers, or UUIDs. Raises Refusal."""
    names = None if for_another_pod(pod) else gpu_names(pod.annotations, key)
    if isinstance(names, Malformed):
        raise Refusal(Reason.GPU_GROUP, _text(pod, key, names.problem))
    if names is None:
        return None
    present = [snapshot.gpus[uuid] for uuid in snapshot.topology.gpus]
    by_name = {str(gpu.minor): gpu.uuid for gpu in present} | {gpu.uuid: gpu.uuid for gpu in present}
    if strangers := [name for name in names if name not in by_name]:
        raise Refusal(Reason.GPU_GROUP, _text(pod, key, f"names {shown(strangers[0])}, and this node has no such GPU"))
    uuids = frozenset(by_name[name] for name in names)
    if len(uuids) < len(names):  # by its number and by its UUID
        raise Refusal(Reason.GPU_GROUP, _text(pod, key, f"names a GPU twice: {shown(pod.annotations[key])}"))
    return uuids


def _text(pod: Pod, key: str, what: str) -> str:
    return f"pod {pod.name}: annotation {key} {what}"
