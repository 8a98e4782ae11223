"""Kubelet's own account of who holds what."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuagent.domain.pods.pod import CheckpointEntry, Holding, PodName


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod that kubelet knows, and what it holds now."""

    pod: PodName
    holdings: Sequence[Holding] = ()


@dataclass(frozen=True, slots=True)
class Allocated:
    """Everything held: by pod-resources, and by the checkpoint, which alone has ordinary init containers."""

    holdings: tuple[Holding, ...]
    checkpoint: tuple[CheckpointEntry, ...] = ()


class KubeletAllocations(Protocol):
    """Kubelet's own account of who holds what (pod-resources)."""

    def query(self, pods: Collection[PodName] | None, *, listing: bool) -> Sequence[ListedPod] | None:
        """Those of the pods that kubelet knows, also during their admission; None if it does not say.

        Args:
            pods: their names; None for all.
            listing: kubelet may be asked for its whole list. It loses what it has only reserved for this call, then.
        """

    def read(self, timeout_s: float) -> Allocated | None:
        """Everything held, read after this call began; None if it took too long or kubelet cannot be asked."""
