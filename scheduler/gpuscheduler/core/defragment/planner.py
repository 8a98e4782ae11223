"""Searches the fewest pods whose moves make room for a pod that waits.

Of plans with equally many moves, the cheapest evicts the lowest priority, then the fewest units, then the youngest
pods. A plan counts only if each evicted pod fits elsewhere once the pod that waits has its place. For that, further
pods may be moved within the same number.
"""

from collections.abc import Generator

from gpuscheduler.core.choose_gpus import fit
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.defragment.acceptance import has_resources
from gpuscheduler.core.defragment.candidates import Candidates
from gpuscheduler.core.defragment.leavers import Leavers, LeaverSearch
from gpuscheduler.core.defragment.move_plan import MovePlan, NoPlan
from gpuscheduler.core.defragment.new_places import NewPlaces, Trial
from gpuscheduler.core.defragment.surroundings import Surroundings, why_not_served
from gpuscheduler.core.pod_facts import PodFacts

SEARCH_TRIES = 20_000
"""Work of one search, see `Tries`. Calls come in between."""
SET_TRIES = 500
"""Work for the new places of one set of pods. Calls wait meanwhile."""
MOST_TARGETS = 256
"""Nodes on which room is looked for, those with the most free units on a GPU first."""
MOST_SETS = 512
"""Sets of pods, of one number of moves, for which new places are searched."""
Steps = Generator[None, None, MovePlan | NoPlan]
"""A search in steps. Between two of them the cluster may change, so a plan may no longer hold when it is found."""


def search(
    pod: PodFacts,
    cluster: Surroundings,
    most_moves: int,
    now: float,
    tries: int = SEARCH_TRIES,
) -> MovePlan | NoPlan:
    """The cheapest plan with the fewest moves for a pod that waits, or why there is none, in one go."""
    steps = search_steps(pod, cluster, most_moves, now, tries)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: MovePlan | NoPlan = end.value
            return result


def search_steps(
    pod: PodFacts,
    cluster: Surroundings,
    most_moves: int,
    now: float,
    tries: int = SEARCH_TRIES,
) -> Steps:
    """The same step by step, each of which takes a few milliseconds."""
    why_not = why_not_served(pod)
    if why_not:
        return NoPlan(f"it {why_not}")
    plan = yield from _Search(pod, cluster, now, Tries(tries)).steps(most_moves)
    return plan


class _Search:
    def __init__(self, pod: PodFacts, cluster: Surroundings, now: float, tries: Tries) -> None:
        self._pod = pod
        self._cluster = cluster
        self._tries = tries
        self._candidates = Candidates(cluster, pod, now, tries)
        self._leavers = LeaverSearch(pod, cluster.links, tries)
        self._is_certain = True

    def steps(self, most_moves: int) -> Steps:
        names = self._candidates.nodes_for(self._pod, MOST_TARGETS)
        yield
        for name in names:
            node = self._cluster.usage.nodes.get(name)
            if node and has_resources(self._pod, node) and fit(self._pod.request, node, tries=self._tries):
                return NoPlan(f"it fits on node {name} as it is")
        candidates: list[Leavers] = []
        for count in range(1, most_moves + 1):
            # Those with fewer pods come first, and may have more of them moved elsewhere.
            candidates += yield from self._of_count(names, count)
            for candidate in candidates:
                yield
                plan = self._with_new_places(candidate, count)
                if plan:
                    return plan
                if self._tries.gave_up:
                    break
        if self._tries.gave_up or not self._is_certain:
            return NoPlan("the search ended before it was certain", gave_up=True)
        plural = "s" if most_moves > 1 else ""
        return NoPlan(f"at most {most_moves} move{plural} of pods that may be moved make no room for it")

    def _of_count(self, names: list[str], count: int) -> Generator[None, None, list[Leavers]]:
        """Sets of so many pods without which the pod fits, the cheapest first."""
        candidates: list[Leavers] = []
        for name in names:
            if self._tries.gave_up or len(candidates) >= MOST_SETS:
                break
            yield
            node = self._cluster.usage.nodes.get(name)
            if node:
                candidates += self._leavers.of(node, self._candidates.movable_on(node), count)
        return sorted(candidates, key=lambda candidate: candidate.price)

    def _with_new_places(self, candidate: Leavers, count: int) -> MovePlan | None:
        """The plan of exactly so many moves that begins with these pods; None if they have no new places."""
        if self._cluster.budgets.obstacle(candidate.pods):
            return None
        name = candidate.node.facts.name
        spare = count - len(candidate.pods)
        trial = Trial({name: candidate.node}, candidate.pods, spare)
        tries = Tries(SET_TRIES)
        moves = NewPlaces(self._cluster, self._candidates, tries).of(candidate.pods, trial)
        self._tries.spend(SET_TRIES - tries.left)
        self._is_certain = self._is_certain and not tries.gave_up
        return MovePlan(self._pod, name, candidate.choice, moves) if moves else None
