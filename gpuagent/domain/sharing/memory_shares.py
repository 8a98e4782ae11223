"""The GPU memory that the containers of a pod may use, for isolation drivers that limit it from outside."""

from collections.abc import Mapping
from dataclasses import dataclass, field

BytesByGpu = Mapping[str, int]
"""GPU UUID to bytes."""


@dataclass(frozen=True, slots=True)
class PodShares:
    """The shares of one pod that an isolation driver has to limit.

    Attributes:
        total: what all containers together may use. It may be less than the sum of their shares, because kubelet gives
            the units of init containers to later containers of the pod.
        containers: name of each container with a share to its own part.
        pooled: UUIDs of the GPUs of which several containers use one share together, as those that name one claim.
        of_claims: some of them are of claims. Kubelet asks about a claim, and not about the containers that use it.
    """

    total: BytesByGpu = field(default_factory=dict)
    containers: Mapping[str, BytesByGpu] = field(default_factory=dict)
    pooled: frozenset[str] = frozenset()
    of_claims: bool = False

    def joined(self, other: "PodShares") -> "PodShares":
        """Both shares: those that a pod has of devices and of claims."""
        containers = dict(self.containers)
        for name, share in other.containers.items():
            own = containers.get(name, {})
            containers[name] = _sum(own, share)
        return PodShares(
            total=_sum(self.total, other.total),
            containers=containers,
            pooled=self.pooled | other.pooled,
            of_claims=self.of_claims or other.of_claims,
        )


def joined_by_pod(*sources: Mapping[str, PodShares]) -> dict[str, PodShares]:
    """UID to the shares of a pod from several sources."""
    joined: dict[str, PodShares] = {}
    for source in sources:
        for uid, shares in source.items():
            others = joined.get(uid)
            joined[uid] = shares if others is None else others.joined(shares)
    return joined


def _sum(first: BytesByGpu, second: BytesByGpu) -> dict[str, int]:
    total = dict(first)
    for uuid, amount in second.items():
        total[uuid] = total.get(uuid, 0) + amount
    return total
