"""The policies to compare the best set with: first fit, and two published policies, reimplemented from their behavior.

Each uses the points that it would have on a real box. These are not always the bandwidths by which it is judged.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import combinations
from typing import Protocol

from gpuagent.domain.gpus.link_reports import Relation
from gpuagent.domain.gpus.topology import Link, Topology

PCIE_POINTS = {Relation.SYS: 10, Relation.NODE: 20, Relation.PHB: 30, Relation.PXB: 40, Relation.PIX: 50}
NVLINK_POINTS = 100
"""For each NVLink between two GPUs, beside the points for PCIe."""
_PADDING = -1


class Policy(Protocol):
    """Chooses `size` of the GPUs in `free`, of which there are enough."""

    def __call__(self, free: Collection[int], size: int, /) -> tuple[int, ...]: ...


def first_fit(free: Collection[int], size: int) -> tuple[int, ...]:
    """The lowest indexes."""
    return tuple(sorted(free)[:size])


def remembered(policy: Policy) -> Policy:
    """`policy` with a cache: a day repeats many questions."""
    answers: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def choose(free: Collection[int], size: int) -> tuple[int, ...]:
        question = tuple(sorted(free)), size
        if question not in answers:
            answers[question] = policy(*question)
        return answers[question]

    return choose


class PairSum:
    """The highest sum of points over all pairs; of single GPUs the one with the fewest points towards the free ones.

    As HAMi 2.10 with the policy ``topology-aware``, which counts links to NVSwitches (pkg/device/nvidia: links.go,
    device.go). It goes through the GPUs from the last one, and takes the first of equals.
    """

    def __init__(self, topology: Topology) -> None:
        self._points = _square(topology, lambda link: link.nvlinks)

    def __call__(self, free: Collection[int], size: int, /) -> tuple[int, ...]:
        backwards = sorted(free, reverse=True)
        if size == 1:
            return (min(backwards, key=lambda gpu: sum(self._points[gpu][other] for other in backwards)),)
        return tuple(sorted(max(combinations(backwards, size), key=lambda some: _sum(self._points, some))))


class BestPartition:
    """The best set out of the split of all free GPUs that has the highest sum of points inside its sets.

    As the best-effort policy of NVIDIA's go-gpuallocator (gpuallocator/besteffort_policy.go), which NVIDIA's device
    plugin uses. It counts NVLinks between two GPUs, and none through an NVSwitch. A single GPU is the first free one.
    The GPUs that do not fill a set are one smaller set, whose points count and which is not allocated. Of equals it
    takes the first, in the order in which indexes count up.
    """

    def __init__(self, topology: Topology) -> None:
        self._points = _square(topology, lambda link: 0 if link.switched else link.nvlinks)
        self._of_set: dict[tuple[int, ...], int] = {}
        self._splits: dict[tuple[tuple[int, ...], int], tuple[int, tuple[tuple[int, ...], ...]]] = {}

    def __call__(self, free: Collection[int], size: int, /) -> tuple[int, ...]:
        if size == 1:
            return (min(free),)
        padding = -len(free) % size
        _, split = self._best_split((*sorted(free), *[_PADDING] * padding), size)
        return max((some for some in split if _PADDING not in some), key=self.worth)

    def worth(self, some: tuple[int, ...]) -> int:
        """Points of all pairs inside a set."""
        known = self._of_set.get(some)
        if known is None:
            known = self._of_set[some] = _sum(self._points, [gpu for gpu in some if gpu != _PADDING])
        return known

    def _best_split(self, gpus: tuple[int, ...], size: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Points and sets of the best split of `gpus`, padding last; the padding is in one set or used up."""
        if not gpus:
            return 0, ()
        known = self._splits.get((gpus, size))
        if known is None:
            padding = gpus.count(_PADDING)
            best, split = -1, tuple[tuple[int, ...], ...]()
            for others in combinations(gpus[1:], size - 1):
                if others.count(_PADDING) not in {0, padding}:
                    continue
                taken = set(others)
                some = gpus[0], *others
                points, rest = self._best_split(tuple(gpu for gpu in gpus[1:] if gpu not in taken), size)
                points += self.worth(some)
                if points > best:
                    best, split = points, (some, *rest)
            known = self._splits[gpus, size] = best, split
        return known


def _square(topology: Topology, nvlinks: Callable[[Link], int]) -> list[list[int]]:
    return [
        [PCIE_POINTS[link.relation] + NVLINK_POINTS * nvlinks(link) if link else 0 for link in row]
        for row in topology.links
    ]


def _sum(points: Sequence[Sequence[int]], some: Iterable[int]) -> int:
    return sum(points[one][other] for one, other in combinations(some, 2))
