"""What a container may use of one GPU, for isolation drivers that limit all programs on it together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuagent.domain.gpus.gpu import Gpu

ALL_PERCENT = 100


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Memory in MiB, and compute in percent. All of the GPU where a container has no limit."""

    memory_mib: int = 0
    percent: int = 0

    def or_more(self, other: "GpuShare") -> "GpuShare":
        """The larger of both, for memory and for compute."""
        return GpuShare(
            max(self.memory_mib, other.memory_mib),
            max(self.percent, other.percent),
        )

    def with_all_memory(self, gpu: Gpu) -> "GpuShare":
        """The share of a container whose memory another driver limits."""
        return replace(self, memory_mib=gpu.memory_mib)


NO_SHARE = GpuShare()


def whole_of(gpu: Gpu) -> GpuShare:
    """All of a GPU."""
    return GpuShare(gpu.memory_mib, ALL_PERCENT)


def largest(of_containers: Iterable[Mapping[str, GpuShare]]) -> dict[str, GpuShare]:
    """GPU UUID to the largest share that a container has.

    Args:
        of_containers: GPU UUID to the share of each container.
    """
    most: dict[str, GpuShare] = {}
    for shares in of_containers:
        for uuid, share in shares.items():
            most[uuid] = share.or_more(most.get(uuid, NO_SHARE))
    return most
