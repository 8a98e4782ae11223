"""The plan of a defragmentation: which pods move where, so that one pod that waits starts."""

from dataclasses import dataclass

from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.pod_facts import PodFacts


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that leaves its GPUs, and where there is room for the pod that its controller makes in its place.

    Attributes:
        pod: that is evicted.
        node: where the new pod fits.
        choice: the GPUs there.
    """

    pod: PodFacts
    node: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What makes room for one pod.

    Attributes:
        pod: that waits.
        node: where it fits after the moves.
        choice: its GPUs there.
        moves: in the order of the evictions.
    """

    pod: PodFacts
    node: str
    choice: Choice
    moves: tuple[Move, ...]

    @property
    def evicted(self) -> list[PodFacts]:
        """The pods that are evicted."""
        return [move.pod for move in self.moves]


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Why nothing is moved for a pod.

    Attributes:
        why: in words, with a lower case letter first.
        gave_up: the search ended for lack of tries, so that there may be a plan.
    """

    why: str
    gave_up: bool = False
