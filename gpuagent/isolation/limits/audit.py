"""Pure functions: what is wrong with the limits of one pod, and what to set."""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuagent.domain.sharing.memory_shares import BytesByGpu
from gpuagent.host.limits_client import NO_LIMIT, Limit
from gpuagent.isolation.limits.plan import Backend, PodPlan

_UNLIMITED = frozenset({None, NO_LIMIT})
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
    """A pod that has no share had the limit of a dead one."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The cgroup of one container of a pod.

    Attributes:
        name: below the pod's cgroup.
        container: name of the container; None while nobody knows which one it is.
        readings: GPU UUID to the driver's reading.
    """

    name: str
    container: str | None
    readings: Mapping[str, Limit]


@dataclass(frozen=True, slots=True)
class Repair:
    """A limit to set.

    Attributes:
        uuid: of the GPU.
        leaf: name of the container's cgroup; empty for the pod's own.
        limit: in bytes, or `NO_LIMIT`.
        why: for the metric.
    """

    uuid: str
    leaf: str
    limit: int
    why: Why


def pod_repairs(plan: PodPlan, in_force: Mapping[str, Limit], former: BytesByGpu) -> Iterator[Repair]:
    """The limits of a pod's own cgroup that are not as planned.

    Args:
        plan: of the pod.
        in_force: GPU UUID to the reading of the pod's cgroup.
        former: GPU UUID to the limit that this driver has brought into force for the pod before.
    """
    for uuid, limit in plan.pod.items():
        reading = in_force[uuid]
        if not reading.is_of(limit):
            is_resized = uuid in former and reading.is_of(former[uuid])
            yield Repair(uuid, "", limit, Why.RESIZED if is_resized else _why(reading))


def leaf_repairs(plan: PodPlan, backend: Backend, leaves: Iterable[Leaf]) -> Iterator[Repair]:
    """The limits of a pod's containers that are not as planned, as read while the pod's own limits are in force."""
    for leaf in leaves:
        for uuid in plan.pod:
            yield from _leaf_repairs(plan, backend, uuid, leaf)


def _leaf_repairs(plan: PodPlan, backend: Backend, uuid: str, leaf: Leaf) -> Iterator[Repair]:
    reading = leaf.readings[uuid]
    own = plan.container_limit(uuid, leaf.container)
    if backend is Backend.DMEM:
        # Only what the container is shown depends on it; the pod's limit holds for all of them.
        if own is not None and not reading.is_of(own):
            yield Repair(uuid, leaf.name, own, _why_of_leaf(plan, backend, uuid, leaf))
        return
    # A limit of its own replaces the pod's, wherever it comes from: a dead cgroup at the same address of the kernel,
    # or an environment from which NVIDIA's hook has set it.
    expected = plan.pod[uuid] if own is None else own
    if reading.is_of(expected):
        return
    has_begun = own is not None and reading.used > 0 and reading.is_of(plan.pod[uuid])
    if has_begun:
        # What it has is counted at the pod, and its own limit would come on top of that. So the pod's stays.
        return
    yield Repair(uuid, leaf.name, expected, _why_of_leaf(plan, backend, uuid, leaf))


def foreign_repairs(leaves: Iterable[Leaf]) -> Iterator[Repair]:
    """Limits in force for containers of a pod without a share: on backend `misc`, new cgroups inherit them.

    A container is given back what it should have, which is no limit. Its heirs are found in the same way.
    """
    for leaf in leaves:
        for uuid, reading in leaf.readings.items():
            if reading.hard not in _UNLIMITED:
                yield Repair(uuid, leaf.name, NO_LIMIT, Why.FOREIGN)


def _why_of_leaf(plan: PodPlan, backend: Backend, uuid: str, leaf: Leaf) -> Why:
    reading = leaf.readings[uuid]
    own = plan.container_limit(uuid, leaf.container)
    # Until it has a limit of its own, a container reads none on backend dmem, and that of its pod on misc.
    has_none = reading.hard in _UNLIMITED if backend is Backend.DMEM else reading.is_of(plan.pod[uuid])
    if own is not None and has_none:
        return Why.NEW
    return _why(reading)


def _why(reading: Limit) -> Why:
    return Why.MISSING if reading.hard in _UNLIMITED else Why.DIFFERENT
