"""The limits that spread a burst of claims over the GPUs of a node.

The scheduler takes the first GPU that fits, and it may place many claims before the agent has published a new order.
So the slice says that only the least used GPUs take a claim, and one each. When they have taken it, the next slice
raises the level.

The agent cannot see claims that were allocated and are never prepared. While there may be some, every GPU takes a few
more claims than it says.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What new claims can have of a GPU.

    Attributes:
        uuid: of the GPU.
        free_mib: memory that no claim has.
        free_cores: percent of the compute that no claim has.
        accepts_claims: whether a new claim can have a part of it.
        shares: how many claims share it.
        rested: how many did a moment ago.
    """

    uuid: str
    free_mib: int
    free_cores: int
    accepts_claims: bool
    shares: int
    rested: int

    def has_as_much_as(self, other: "GpuUse") -> bool:
        """Whether a claim that fits on the other GPU also fits on this one."""
        return self.free_mib >= other.free_mib and self.free_cores >= other.free_cores


def sharer_limits(
    gpus: Collection[GpuUse],
    most: int,
    patience: int = 0,
) -> dict[str, int]:
    """How many claims may share each GPU now, by UUID.

    A GPU waits only for GPUs that could take the same claims. So memory that is too small for a waiting claim holds no
    other GPU back.

    Args:
        gpus: the node's GPUs whose memory can be shared out.
        most: how many claims may share a GPU at all.
        patience: how many claims a GPU may have that its shares do not show.
    """
    open_gpus = [gpu for gpu in gpus if gpu.accepts_claims and gpu.shares < most]
    if len(open_gpus) < 2:
        # There is nothing to spread over.
        return {gpu.uuid: most for gpu in gpus}
    limits = {}
    for gpu in gpus:
        alternatives = [other for other in open_gpus if other.has_as_much_as(gpu)]
        least = min([other.shares for other in alternatives], default=gpu.shares)
        level = min(least, gpu.shares) + 1
        # What the GPU could take a moment ago, it can take now. But it takes one claim at a time.
        granted = min(gpu.rested, gpu.shares) + 1
        limit = max(level, granted) + patience
        # Below what is used, not even a monitor would get the GPU, which asks for none of it.
        limits[gpu.uuid] = min(most, max(limit, gpu.shares))
    return limits
