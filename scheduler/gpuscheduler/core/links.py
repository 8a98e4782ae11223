"""The links between a node's GPUs, by the hash that the node publishes; searches are kept, as nodes are alike."""

from collections.abc import Collection, Sequence

from gpuagent.domain.placement.best_sets import BestSets
from gpuscheduler.core.node_usage import NodeUsage

MOST_KEPT = 20_000
"""Results of searches that are kept: a node of 8 GPUs has 255 sets of free ones."""


class Links:
    """Chooses sets of GPUs by position. Where a node's links are not known, the first free ones are as good."""

    def __init__(self) -> None:
        self._sets: dict[str, BestSets] = {}
        self._chosen: dict[tuple[str, tuple[int, ...], int], tuple[int, ...]] = {}

    def seen(self, links: str, mbps: Sequence[Sequence[int]]) -> None:
        """Take the bandwidths of the nodes that publish the hash `links`, in MB/s. Raises ValueError (see BestSets)."""
        if not links or links in self._sets:
            return
        sets = BestSets(mbps)
        self._sets[links] = sets
        # Now instead of in the first filter call that needs them.
        sets.work_out()
        # Without links, other sets were as good.
        self._chosen.clear()

    def known(self, links: str) -> bool:
        """Whether the bandwidths for this hash were seen."""
        return links in self._sets

    def choose(
        self,
        node: NodeUsage,
        free: Collection[int],
        size: int,
    ) -> tuple[int, ...]:
        """The best `size` of the GPUs at positions `free`, of which there are enough."""
        links = node.facts.gpus.links
        positions = tuple(sorted(free))
        key = links, positions, size
        chosen = self._chosen.get(key)
        if chosen is None:
            sets = self._sets.get(links)
            chosen = sets.choose(positions, size) if sets else positions[:size]
            if len(self._chosen) >= MOST_KEPT:
                self._chosen.clear()
            self._chosen[key] = chosen
        return chosen

    def weakest(self, node: NodeUsage, members: Collection[int]) -> int:
        """MB/s of the slowest link inside a set; 0 where it is not known, or for a single GPU."""
        links = node.facts.gpus.links
        sets = self._sets.get(links)
        weakest = sets.weakest(members) if sets else None
        return weakest or 0
