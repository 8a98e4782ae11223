"""The best ring through a set of GPUs: the order in which a collective library such as NCCL passes data on."""

from collections.abc import Collection, Iterator, Sequence

EXACT_GPUS = 8
"""Up to this number of GPUs, the ring is the best one. Beyond it, the search returns the best of `MOST_STEPS` steps."""
MOST_STEPS = 2_000


def best_ring(mbps: Sequence[Sequence[int]], members: Collection[int]) -> tuple[int, ...]:
    """`members` in the order of the ring with the best weakest link, then the highest total, then the lowest indexes.

    It begins with the lowest index, in the direction in which the lower of its two neighbors comes second.
    """
    gpus = sorted(members)
    if len(gpus) <= 3:
        return tuple(gpus)
    search = _Search(mbps, gpus)
    search.steps_left = None if len(gpus) <= EXACT_GPUS else MOST_STEPS
    search.go_on([gpus[0]], set(gpus[1:]), search.limit, 0)
    return search.best


class _Search:
    """Depth first, lowest index first; leaves a path when it cannot become better than the best ring so far.

    Totals are counted twice, so that half a link is a whole number.
    """

    def __init__(self, mbps: Sequence[Sequence[int]], gpus: Sequence[int]) -> None:
        self._mbps = mbps
        # A ring has two links of every GPU: no better than its two best.
        fastest = {gpu: sorted((mbps[gpu][other] for other in gpus if other != gpu), reverse=True) for gpu in gpus}
        self.limit = min(speeds[1] for speeds in fastest.values())
        self._first = {gpu: speeds[0] for gpu, speeds in fastest.items()}
        self._two = {gpu: speeds[0] + speeds[1] for gpu, speeds in fastest.items()}
        self.best = tuple(_greedy(mbps, gpus))
        self._worth = _worth(mbps, self.best)
        self._seen = False
        self.steps_left: int | None = None

    def go_on(self, path: list[int], left: set[int], weakest: int, twice: int) -> None:
        """Try every ring that begins with `path`; `weakest` and `twice` (the total) are those of its links."""
        here = self._mbps[path[-1]]
        if not left:
            back = here[path[0]]
            self._take(path, (min(weakest, back), twice + 2 * back))
            return
        ahead = sum(self._two[gpu] for gpu in left) + self._first[path[0]]
        for gpu in sorted(left):
            if self.steps_left is not None:
                if not self.steps_left:
                    return
                self.steps_left -= 1
            slower, sum_ = min(weakest, here[gpu]), twice + 2 * here[gpu]
            most = (slower, sum_ + ahead - self._two[gpu] + self._first[gpu])
            if most > self._worth or (most == self._worth and not self._seen):
                self.go_on([*path, gpu], left - {gpu}, slower, sum_)

    def _take(self, path: list[int], worth: tuple[int, int]) -> None:
        if worth > self._worth or (worth == self._worth and not self._seen):
            self.best, self._worth, self._seen = tuple(path), worth, True


def _greedy(mbps: Sequence[Sequence[int]], gpus: Sequence[int]) -> Iterator[int]:
    """A ring that always continues with the nearest GPU."""
    here, left = gpus[0], set(gpus[1:])
    yield here
    while left:
        here = max(left, key=lambda gpu: (mbps[here][gpu], -gpu))
        left.remove(here)
        yield here


def _worth(mbps: Sequence[Sequence[int]], ring: Sequence[int]) -> tuple[int, int]:
    links = [mbps[one][other] for one, other in zip(ring, (*ring[1:], ring[0]), strict=True)]
    return min(links), 2 * sum(links)
