"""Pure functions: what is wrong with the limits of one pod, and what to set."""

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuagent.domain.sharing.memory_shares import BytesByGpu
from gpuagent.host.limits_client import BLOCK, NO_LIMIT, Limit
from gpuagent.isolation.limits.plan import NO_SHARE_BYTES, Backend, PodPlan, Resized

UNLIMITED = frozenset({None, NO_LIMIT})
"""The driver's readings of a cgroup without a limit."""


class Why(enum.StrEnum):
    """Why a limit was set again; the label of a metric."""

    MISSING = "missing"
    """There was none, as after a reset of the GPU."""
    DIFFERENT = "different"
    """There was another one, as that of a dead pod or of a forged environment."""
    RESIZED = "resized"
    """The pod's share has changed."""
    NEW = "new"
    """A new container had none of its own yet, or that of a dead one. It is not counted."""
    FOREIGN = "foreign"
    """A container had the limit of a dead one on a GPU of which its pod has no share."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The cgroup of one container of a pod.

    Attributes:
        name: below the pod's cgroup.
        container: name of the container, or `STRANGER`; None while it is not known which one it is.
        readings: GPU UUID to the driver's reading.
        is_new: it appears just now, so that no program has given it a limit.
        pod_used: GPU UUID to the bytes that count at its pod: those of containers that have no limit of their own.
    """

    name: str
    container: str | None
    readings: Mapping[str, Limit]
    is_new: bool = False
    pod_used: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repair:
    """A limit to set.

    Attributes:
        uuid: of the GPU.
        leaf: name of the container's cgroup; empty for the pod's own.
        limit: in bytes, or `NO_LIMIT`.
        why: for the metric.
        former: the limit in force; None if there is none.
    """

    uuid: str
    leaf: str
    limit: int
    why: Why
    former: int | None = None


def pod_repairs(
    plan: PodPlan, in_force: Mapping[str, Limit], former: BytesByGpu, resized: Resized | None = None
) -> Iterator[Repair]:
    """The limits of a pod's own cgroup that are not as planned.

    Args:
        plan: of the pod.
        in_force: GPU UUID to the reading of the pod's cgroup, without the GPUs that cannot be read.
        former: GPU UUID to the limit that this driver has brought into force for the pod before.
        resized: of a pod whose shares were changed while it runs.
    """
    for uuid, reading in in_force.items():
        limit = plan.pod[uuid]
        if not reading.is_of(limit):
            was_granted = resized is not None and resized.was_granted(uuid, None, reading.hard)
            is_resized = was_granted or (uuid in former and reading.is_of(former[uuid]))
            why = Why.RESIZED if is_resized else _why(reading)
            yield Repair(uuid, "", limit, why, reading.hard)


def leaf_repairs(
    plan: PodPlan, backend: Backend, leaves: Iterable[Leaf], resized: Resized | None = None
) -> Iterator[Repair]:
    """The limits of a pod's containers that are not as planned, as read while the pod's own limits are in force."""
    for leaf in leaves:
        for uuid in leaf.readings:
            repair = _leaf_repair(plan, backend, uuid, leaf, resized)
            if repair is not None:
                yield repair


def short_containers(plan: PodPlan, backend: Backend, leaves: Iterable[Leaf]) -> set[str]:
    """Names of the containers that began to use memory under the smaller limit of their pod, and so keep that."""
    short: set[str] = set()
    for leaf in leaves:
        for uuid, reading in leaf.readings.items():
            own = plan.container_limit(uuid, leaf.container)
            has_own = own is None or reading.is_of(own)
            if backend is Backend.MISC and leaf.container and not has_own and _has_begun(plan, uuid, reading):
                short.add(leaf.container)
    return short


def _has_begun(plan: PodPlan, uuid: str, reading: Limit) -> bool:
    """Whether a container without a limit of its own may use memory, which is counted at its pod."""
    return reading.used > 0 and reading.is_of(plan.pod[uuid])


def is_unreachable(plan: PodPlan, backend: Backend, uuid: str, leaf: Leaf, resized: Resized) -> bool:
    """Whether a container began to use memory under its pod's limit, so that it can get none of its own."""
    own = plan.container_limit(uuid, leaf.container)
    if backend is Backend.DMEM or own is None or leaf.readings[uuid].is_of(own):
        return False
    return _leaf_repair(plan, backend, uuid, leaf, resized) is None


def _leaf_repair(plan: PodPlan, backend: Backend, uuid: str, leaf: Leaf, resized: Resized | None) -> Repair | None:
    reading = leaf.readings[uuid]
    limit = plan.container_limit(uuid, leaf.container)
    if backend is Backend.MISC:
        limit = _limit_on_misc(plan, uuid, leaf, resized)
    # On backend dmem, a container's own limit only decides what it is shown. The pod's limit holds for all of them.
    if limit is None:
        return None
    if reading.is_of(limit) and not _is_to_be_confirmed(plan, backend, uuid, leaf):
        return None
    was_granted = resized is not None and resized.was_granted(uuid, leaf.container, reading.hard)
    why = Why.RESIZED if was_granted else _why_of_leaf(plan, backend, uuid, leaf)
    return Repair(uuid, leaf.name, limit, why, reading.hard)


def _is_to_be_confirmed(plan: PodPlan, backend: Backend, uuid: str, leaf: Leaf) -> bool:
    """Whether a right limit has to be set nevertheless.

    A new container may have inherited just its own. The helper cannot know that, and would give it its pod's.
    """
    has_own = plan.container_limit(uuid, leaf.container) is not None
    return backend is Backend.MISC and leaf.is_new and has_own


def _limit_on_misc(plan: PodPlan, uuid: str, leaf: Leaf, resized: Resized | None) -> int | None:
    """The limit that a container should read on backend misc; None: it is left alone.

    A limit of its own replaces the pod's, wherever it comes from: a dead cgroup at the same address of the kernel, or
    an environment from which NVIDIA's hook has set it.
    """
    reading = leaf.readings[uuid]
    own = plan.container_limit(uuid, leaf.container)
    if own is None:
        return None if _may_be_its_own(plan, uuid, leaf, resized) else _rest_of_pod(plan, uuid, leaf)
    if own == NO_SHARE_BYTES:
        # What it has taken until now counts at the pod, and it gets no more.
        return own
    # If it had a limit of its own before, what it uses is counted there.
    former = resized.former.container_limit(uuid, leaf.container) if resized else None
    had_own_limit = former is not None and reading.is_of(former)
    if _has_begun(plan, uuid, reading) and not had_own_limit:
        # What it has is counted at the pod, and its own limit would come on top of that. So the pod's stays.
        return None
    return own


def _rest_of_pod(plan: PodPlan, uuid: str, leaf: Leaf) -> int:
    """The limit of a container that needs none of its own: its pod's, less what counts at the pod if it has one."""
    whole = plan.pod[uuid]
    reading = leaf.readings[uuid]
    used = leaf.pod_used.get(uuid, 0)
    # If it had none, it would read what counts at the pod.
    has_equal_one = leaf.is_new and reading.used == 0 and used > 0
    if reading.is_of(whole) and not has_equal_one:
        return whole
    # Others may have taken part of the pod's share, and what counts here comes on top of that.
    return max(whole - used, NO_SHARE_BYTES)


def has_unnamed(plan: PodPlan, backend: Backend, leaves: Iterable[Leaf], resized: Resized | None) -> bool:
    """Whether containers whose names are not known yet keep larger limits than the plan has."""
    if backend is Backend.DMEM or resized is None:
        return False
    return any(_waits_for_name(plan, uuid, leaf, resized) for leaf in leaves for uuid in leaf.readings)


def _may_be_its_own(plan: PodPlan, uuid: str, leaf: Leaf, resized: Resized | None) -> bool:
    """Whether a container whose name is not known yet may have just the limit that it should have.

    An agent that starts may hear of kubelet's allocations before the API server tells it the containers. The limits of
    the containers are those that the agent's former run has set. If they were lowered, they could not be raised again.
    """
    if leaf.container is not None or leaf.is_new:
        return False
    if _is_at_most(leaf.readings[uuid], plan.most(uuid)):
        return True
    return resized is not None and _waits_for_name(plan, uuid, leaf, resized)


def _waits_for_name(plan: PodPlan, uuid: str, leaf: Leaf, resized: Resized) -> bool:
    """Whether a container whose name is not known yet uses memory under a limit that was granted before."""
    reading = leaf.readings[uuid]
    is_larger = leaf.container is None and not _is_at_most(reading, plan.most(uuid))
    # One that uses nothing, such as the pod's sandbox, loses nothing with a smaller one.
    return is_larger and reading.used > 0 and _is_at_most(reading, resized.most.most(uuid))


def _is_at_most(reading: Limit, size: int) -> bool:
    return reading.hard is not None and reading.hard < size + BLOCK


def foreign_repairs(leaves: Iterable[Leaf], limited: Collection[str]) -> Iterator[Repair]:
    """Limits in force for containers of a pod without a share: on backend `misc`, new cgroups inherit them.

    A container is given back what it should have, which is no limit. Its heirs are found in the same way.

    Args:
        leaves: new containers.
        limited: UUIDs of the GPUs on which the pod's own cgroup has inherited a limit. A container that has "no limit"
            of its own there is set nevertheless: the helper cannot know that it has no share, and would limit it.
    """
    for leaf in leaves:
        for uuid, reading in leaf.readings.items():
            if reading.hard not in UNLIMITED or uuid in limited:
                yield Repair(uuid, leaf.name, NO_LIMIT, Why.FOREIGN, reading.hard)


def _why_of_leaf(plan: PodPlan, backend: Backend, uuid: str, leaf: Leaf) -> Why:
    reading = leaf.readings[uuid]
    own = plan.container_limit(uuid, leaf.container)
    # Until it has a limit of its own, a container reads none on backend dmem, and that of its pod on misc.
    has_none = reading.hard in UNLIMITED if backend is Backend.DMEM else reading.is_of(plan.pod[uuid])
    if own is not None and has_none:
        return Why.NEW
    return _why(reading)


def _why(reading: Limit) -> Why:
    return Why.MISSING if reading.hard in UNLIMITED else Why.DIFFERENT
