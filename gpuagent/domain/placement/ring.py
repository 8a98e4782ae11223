"""The best ring through a set of GPUs: the order in which a collective library such as NCCL passes data on."""

from collections.abc import Collection, Iterator, Sequence

EXACT_GPUS = 8
"""Up to this number of GPUs, the ring is the best one. Beyond it, the search returns the best of `MOST_STEPS` steps."""
MOST_STEPS = 2_000


def best_ring(
    mbps: Sequence[Sequence[int]],
    members: Collection[int],
) -> tuple[int, ...]:
    """`members` in the order of the ring with the best weakest link, then the highest total, then the lowest indexes.

    It begins with the lowest index, in the direction in which the lower of its two neighbors comes second.
    """
    gpus = sorted(members)
    if len(gpus) <= 3:
        # All orders are the same ring.
        return tuple(gpus)
    search = _Search(mbps, gpus)
    if len(gpus) > EXACT_GPUS:
        search.steps_left = MOST_STEPS
    start = gpus[0]
    search.go_on([start], set(gpus[1:]), search.limit, 0)
    return search.best


class _Search:
    """Depth first, lowest index first; leaves a path when it cannot become better than the best ring so far.

    Totals are counted twice, so that half a link is a whole number.
    """

    def __init__(
        self,
        mbps: Sequence[Sequence[int]],
        gpus: Sequence[int],
    ) -> None:
        self._mbps = mbps
        # A ring has two links of every GPU: no better than its two best.
        self._fastest = {}
        self._fastest_two = {}
        self._second = {}
        for gpu in gpus:
            of_gpu = mbps[gpu]
            speeds = [of_gpu[other] for other in gpus if other != gpu]
            speeds.sort(reverse=True)
            fastest = speeds[0]
            second = speeds[1]
            self._fastest[gpu] = fastest
            self._fastest_two[gpu] = fastest + second
            self._second[gpu] = second
        # So the weakest link of a ring is no faster than this.
        self.limit = min(self._second.values())
        self.best = tuple(_greedy(mbps, gpus))
        self._worth = _worth(mbps, self.best)
        self._seen = False
        self.steps_left: int | None = None

    def go_on(
        self,
        path: list[int],
        remaining: set[int],
        weakest: int,
        twice: int,
    ) -> None:
        """Try every ring that begins with `path`; `weakest` and `twice` (the total) are those of its links."""
        start = path[0]
        speeds = self._mbps[path[-1]]
        if not remaining:
            back = speeds[start]
            worth = min(weakest, back), twice + 2 * back
            self._take(path, worth)
            return
        # At most, a ring gains this: two links of each GPU ahead, and one back to the start.
        most_ahead = self._fastest[start]
        for gpu in remaining:
            most_ahead += self._fastest_two[gpu]
        for gpu in sorted(remaining):
            if self.steps_left is not None:
                if not self.steps_left:
                    return
                self.steps_left -= 1
            speed = speeds[gpu]
            slower = min(weakest, speed)
            longer = twice + 2 * speed
            # With this link taken, `gpu` has only one left.
            most_then = longer + most_ahead - self._second[gpu]
            if self._is_better((slower, most_then)):
                self.go_on([*path, gpu], remaining - {gpu}, slower, longer)

    def _is_better(self, worth: tuple[int, int]) -> bool:
        """Whether a ring of that worth replaces the best one. The greedy ring goes to the first that is equal."""
        if worth == self._worth:
            return not self._seen
        return worth > self._worth

    def _take(self, path: list[int], worth: tuple[int, int]) -> None:
        if self._is_better(worth):
            self.best = tuple(path)
            self._worth = worth
            self._seen = True


def _greedy(mbps: Sequence[Sequence[int]], gpus: Sequence[int]) -> Iterator[int]:
    """A ring that always continues with the nearest GPU."""
    gpu = gpus[0]
    remaining = set(gpus[1:])
    yield gpu
    while remaining:
        speeds = mbps[gpu]
        gpu = _nearest(speeds, remaining)
        remaining.remove(gpu)
        yield gpu


def _nearest(speeds: Sequence[int], gpus: Collection[int]) -> int:
    """The GPU with the fastest link; of several, the one with the lowest index."""
    return max(gpus, key=lambda gpu: (speeds[gpu], -gpu))


def _worth(mbps: Sequence[Sequence[int]], ring: Sequence[int]) -> tuple[int, int]:
    """The weakest link of a ring, and twice its total."""
    following = (*ring[1:], ring[0])
    links = []
    for gpu, next_gpu in zip(ring, following, strict=True):
        speeds = mbps[gpu]
        links.append(speeds[next_gpu])
    weakest = min(links)
    return weakest, 2 * sum(links)
