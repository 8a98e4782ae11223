"""What moves gain on the trace with departures: pods that fit nowhere have others moved for them, or are lost.

The product's own planner chooses the moves, and the product's own path places the waiting pod and the moved ones. Here
each pod that fits nowhere may have a plan at once. In an installation, one plan is under way at a time.

    python -m bench.trace.moving DIR    # data/csv of github.com/hkust-adsl/kubernetes-scheduler-simulator
"""

import argparse
import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.trace.product import CALL_S, CpuPods, Product, Running, pod_object
from bench.trace.trace import Pod, Trace, read, with_departures
from gpuscheduler.core.defragment.held_places import HeldPlaces
from gpuscheduler.core.defragment.move_plan import MovePlan
from gpuscheduler.core.defragment.new_places import as_made_again
from gpuscheduler.core.defragment.planner import search
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import named

WARM, UNTIL = 2.0, 4.0
"""Mean lifetimes from the empty cluster to the first and the last measured moment."""
POLICY = "strand"
Say = Callable[[str], None]


class Moving(Product):
    """The cluster, in which pods are moved.

    Attributes:
        counted: evictions, plans that made room, and pods without a plan.
        placed_gpus: GPUs of the pods for which others made room.
    """

    def __init__(self, trace: Trace, rng: np.random.Generator, most_moves: int) -> None:
        mix = Mix()
        super().__init__(trace.nodes, named(POLICY, mix), mix, rng, cpu_pods=CpuPods.APART)
        self._most_moves = most_moves
        self._current: dict[str, Running] = {}
        """UID of each pod on a node to how it runs. A moved pod has another UID than the one that it came with."""
        self._first_uid: dict[str, str] = {}
        """UID of a moved pod to the one that it came with."""
        self.counted = Counter[str]()
        self.placed_gpus = 0.0

    def place(self, pod: Pod) -> Running | None:
        """Place a pod, where others make room for it if it fits nowhere; None if that is not possible either."""
        running = super().place(pod)
        if running is None and self._most_moves and pod.demand.gpus:
            running = self._with_moves(pod)
        if running is not None:
            self._current[running.uid] = running
        return running

    def release(self, running: Running) -> None:
        """End a pod, wherever it is by now."""
        current = self._current.pop(running.uid, running)
        self._first_uid.pop(current.uid, None)
        super().release(current)

    def _with_moves(self, pod: Pod) -> Running | None:
        core = self.core
        waiting = pod_facts(pod_object(pod, "waiting"))
        cluster = core.defragmentation.cluster
        if not cluster.ranking.has_in_all(waiting.request):
            return None
        plan = search(waiting, cluster, self._most_moves, self.now)
        if not isinstance(plan, MovePlan):
            self.counted["without a plan"] += 1
            return None
        moved = [self._evicted(move.pod.uid) for move in plan.moves]
        held = HeldPlaces(core.reservations, core.pods)
        held.keep(plan, self.now + 1000 * CALL_S)
        running = super().place(pod)
        assert running is not None, "the plan does not hold"
        for move, (first_uid, former) in zip(plan.moves, moved, strict=True):
            core.reservations.end([as_made_again(move.pod).uid])
            again = super().place(former.pod)
            assert again is not None, "a moved pod has no place"
            self._current[first_uid] = again
            self._first_uid[again.uid] = first_uid
        self.placed_gpus += pod.gpus
        self.counted["plans"] += 1
        self.counted["evictions"] += len(plan.moves)
        return running

    def _evicted(self, uid: str) -> tuple[str, Running]:
        """Evict a pod; the UID that it came with, and how it ran."""
        first_uid = self._first_uid.pop(uid, uid)
        running = self._current[first_uid]
        super().release(running)
        return first_uid, running


@dataclass(frozen=True, slots=True)
class Gained:
    """One run.

    Attributes:
        allocated: percent of all GPUs, the mean over the measured time.
        lost: pods with GPUs that were not placed in that time.
        counted: see `Moving`, in that time.
        placed: points that the pods of the plans added when they were placed.
    """

    allocated: float
    lost: int
    counted: Counter[str]
    placed: float


def simulate(trace: Trace, seed: int, most_moves: int, load: float) -> Gained:
    """Pods come and go. The same seed gives the same pods."""
    rng = np.random.default_rng(seed)
    arrivals = with_departures(trace, load, UNTIL, rng)
    cluster = Moving(trace, rng, most_moves)
    gpus = float(trace.nodes.gpus.sum())
    allocated = total = 0.0
    lost = 0
    before = Counter[str]()
    placed_before = 0.0
    now = WARM
    ends: list[tuple[float, int, Running]] = []
    for number, arrival in enumerate(arrivals):
        while ends and ends[0][0] <= arrival.time:
            end, _, ended = heapq.heappop(ends)
            total += allocated * max(end - now, 0.0)
            now = max(now, end)
            cluster.release(ended)
            allocated -= ended.pod.gpus
        total += allocated * max(arrival.time - now, 0.0)
        now = max(now, arrival.time)
        placed = cluster.place(arrival.pod)
        is_measured = arrival.time > WARM
        if not is_measured:
            before = Counter(cluster.counted)
            placed_before = cluster.placed_gpus
        if placed is not None:
            heapq.heappush(ends, (arrival.time + arrival.lifetime, number, placed))
            allocated += arrival.pod.gpus
        elif is_measured:
            lost += 1
    return Gained(
        allocated=100 * total / (now - WARM) / gpus,
        lost=lost,
        counted=cluster.counted - before,
        placed=100 * (cluster.placed_gpus - placed_before) / gpus,
    )


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each number of moves."""
    parser = argparse.ArgumentParser(prog="python -m bench.trace.moving", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--variant", default="default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", type=float, default=1.0, help="GPUs that pods ask for on average (default: 1.0)")
    parser.add_argument("--moves", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    trace = read(options.folder, options.variant)
    for most_moves in options.moves:
        gained = simulate(trace, options.seed, most_moves, options.load)
        evictions = gained.counted["evictions"]
        plans = f"{evictions} evictions in {gained.counted['plans']} plans"
        per_eviction = f", {gained.placed / evictions:.4f} points placed per eviction" if evictions else ""
        print(
            f"load {options.load}, moves {most_moves}: {gained.allocated:.2f} % allocated, {gained.lost} pods lost, "
            f"{plans}{per_eviction}",
            flush=True,
        )


if __name__ == "__main__":
    main()
