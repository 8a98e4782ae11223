"""Pure functions: the limits that NVIDIA's driver should have for one pod.

The driver accounts memory by cgroup, in one of two ways. On backend `dmem`, the limit of a pod holds for everything
below it, and that of a container only shows the container its own size. On backend `misc`, only the nearest cgroup with
a limit counts: a container with a limit of its own is no longer bounded by its pod.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuagent.domain.sharing.memory_shares import BytesByGpu, PodShares
from gpuagent.host.limits_client import BLOCK, Limit
from gpuagent.isolation.interface import CannotIsolateError

NO_SHARE_BYTES = 64 * 1024
"""The limit of a container without a share, where its pod's limit is that of another container. It comes on top of what
the others may use, so it is less than any program can use. It is not 0, which a driver may take for no limit."""
STRANGER = ""
"""In place of the name of a container about which kubelet did not ask, so that it has no share."""
_BELOW_CONTAINERS = 2 * BLOCK
"""By so much, the limit of a pod is less than those of its containers. Otherwise a container that reads its pod's limit
could not be told from one that has its own, and several containers would use the pod's together."""

POOLED = (
    "several containers of the pod use one share of memory together. This node's driver can limit a pod or each "
    "container, and not some containers together: give each container a share of its own"
)


class Backend(enum.StrEnum):
    """How NVIDIA's driver accounts memory."""

    DMEM = "dmem"
    """By the kernel's controller of device memory; limits nest."""
    MISC = "misc"
    """By the driver itself; the nearest limit alone counts."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The limits of one pod.

    Attributes:
        pod: GPU UUID to the limit of the pod's cgroup in bytes.
        containers: name of a container to its own limits. A container that is not named has none of its own.
        own_limits: UUIDs of the GPUs on which containers have limits of their own that replace the pod's.
        users: UUID of each GPU to the names of the containers with a share of it, where a container without one has to
            be kept from it: it may have a limit that replaces the pod's, and so comes on top of it.
    """

    pod: BytesByGpu = field(default_factory=dict)
    containers: Mapping[str, BytesByGpu] = field(default_factory=dict)
    own_limits: frozenset[str] = frozenset()
    users: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def container_limit(self, uuid: str, container: str | None) -> int | None:
        """The limit that a container should have of its own; None if its pod's is the one that counts.

        Args:
            uuid: of the GPU.
            container: its name; `STRANGER`, or None while it is not known which one it is.
        """
        if container is None:
            return None
        users = self.users.get(uuid)
        if users is not None and container not in users:
            return NO_SHARE_BYTES
        return self.containers.get(container, {}).get(uuid)

    def on_pod(self, in_force: Mapping[str, Limit]) -> "PodPlan":
        """The plan with the limits that the pod's own cgroup has, where it has any."""
        has_now = {uuid: reading.hard for uuid, reading in in_force.items() if reading.hard is not None}
        return replace(self, pod={**self.pod, **has_now})

    def most(self, uuid: str) -> int:
        """The largest limit on a GPU that any cgroup of the pod should have; 0 if it has none there."""
        own = [share[uuid] for share in self.containers.values() if uuid in share]
        return max([self.pod.get(uuid, 0), *own])


@dataclass(frozen=True, slots=True)
class Resized:
    """What is known of a pod whose shares were changed while it runs.

    Attributes:
        former: the limits that were in force before the change; empty if the agent has been restarted since.
        most: the largest limits that were granted. If the driver cannot lower one of these yet, that is not an escape.
    """

    former: PodPlan = field(default_factory=PodPlan)
    most: PodPlan = field(default_factory=PodPlan)

    def was_granted(self, uuid: str, container: str | None, limit: int | None) -> bool:
        """Whether a limit that is in force was granted to a container, or to the pod (None)."""
        own = self.most.container_limit(uuid, container)
        most = self.most.pod.get(uuid, 0) if own is None else own
        return limit is not None and limit < most + BLOCK


def pod_plan(shares: PodShares, backend: Backend) -> PodPlan:
    """The limits for a pod with these shares.

    Raises:
        CannotIsolateError: the backend cannot express them.
    """
    if backend is Backend.DMEM:
        return PodPlan(shares.total, shares.containers)
    limits: dict[str, int] = {}
    own_limits: set[str] = set()
    users: dict[str, frozenset[str]] = {}
    for uuid, total in shares.total.items():
        if uuid in shares.pooled:
            # One of them may get a limit of its own at any time, from a dead pod or from its environment. It would then
            # have the whole share beside the others.
            raise CannotIsolateError(POOLED)
        parts = {name: share[uuid] for name, share in shares.containers.items() if uuid in share}
        users[uuid] = frozenset(parts)
        if list(parts.values()) in ([], [total]):
            # One container uses the GPU, and the pod's limit is enough. If it gets another share while it runs, the
            # pod's changes. Of several, even one after another, each needs a limit that can change by itself.
            limits[uuid] = total
            continue
        # The pod's limit bounds what has none of its own, and a container before its own limit is set.
        smallest = min(parts.values())
        limits[uuid] = max(smallest - _BELOW_CONTAINERS, NO_SHARE_BYTES)
        own_limits.add(uuid)
    containers = {}
    for name, share in shares.containers.items():
        own = {uuid: amount for uuid, amount in share.items() if uuid in own_limits}
        if own:
            containers[name] = own
    return PodPlan(limits, containers, frozenset(own_limits), users)
