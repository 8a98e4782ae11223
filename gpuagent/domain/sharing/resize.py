"""A resize of a pod: other memory limits for its containers than the units that kubelet allocated."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.domain.pods.pod import PodName


@dataclass(frozen=True, slots=True)
class Resize:
    """What one pod was granted.

    Attributes:
        pod: its name.
        limits: container to its units in all, for the containers that are resized.
        most: container to the most units that may be in force: more than in `limits` until the isolation driver has
            lowered a limit.
        extra: ids of the units that the pod has beyond kubelet's allocations. They cover `most`.
    """

    pod: PodName
    limits: Mapping[str, int]
    most: Mapping[str, int]
    extra: frozenset[str]

    @property
    def is_over(self) -> bool:
        """Whether the pod is as kubelet allocated it."""
        return not self.limits and not self.extra
