"""Finds places for the pods that are moved, all of them together, or none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscheduler.core.choose_gpus import Choice, fit
from gpuscheduler.core.constraints.pod_rules import PodRules
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.defragment.acceptance import has_resources
from gpuscheduler.core.defragment.candidates import Candidates
from gpuscheduler.core.defragment.leavers import Leavers, LeaverSearch
from gpuscheduler.core.defragment.move_plan import Move
from gpuscheduler.core.defragment.surroundings import Surroundings
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

_LAST = "9999-12-31T23:59:59Z"
"""The controller makes the new pod after all others, so that pods which wait come before it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a part of a plan makes of the cluster.

    Attributes:
        nodes: by name, those that it changes.
        evicted: pods that have left their GPUs.
        spare: how many more pods may be moved.
    """

    nodes: Mapping[str, NodeUsage]
    evicted: tuple[PodFacts, ...]
    spare: int

    def changed(self, name: str, node: NodeUsage, evicted: tuple[PodFacts, ...] = ()) -> "Trial":
        """With another state of a node, from which these pods were evicted as well."""
        return Trial(
            nodes={**self.nodes, name: node},
            evicted=(*self.evicted, *evicted),
            spare=self.spare - len(evicted),
        )


class NewPlaces:
    """Places in the order in which the scheduler itself would take them.

    Args:
        cluster: as it is.
        candidates: nodes and pods that come into question.
        tries: of the search.
    """

    def __init__(self, cluster: Surroundings, candidates: Candidates, tries: Tries) -> None:
        self._cluster = cluster
        self._candidates = candidates
        self._tries = tries

    def of(self, pods: Sequence[PodFacts], trial: Trial) -> tuple[Move, ...] | None:
        """The moves of these pods, and of others that have to be moved for them; None if they do not all fit."""
        if not pods:
            return ()
        pod, *others = pods
        made_again = as_made_again(pod)
        for node, choice in self._places(made_again, trial):
            name = node.facts.name
            taken = node.copy()
            taken.use(made_again.uid, choice.used)
            taken.used += made_again.requests
            moves = self.of(others, trial.changed(name, taken))
            if moves is not None:
                return (Move(pod, name, choice), *moves)
            if self._tries.gave_up:
                return None
        return self._with_room_made(pod, others, trial)

    def _with_room_made(
        self,
        pod: PodFacts,
        others: Sequence[PodFacts],
        trial: Trial,
    ) -> tuple[Move, ...] | None:
        """The same, where further pods leave so that the first one fits."""
        for name, leavers in self._leavers_for(as_made_again(pod), trial):
            further = trial.changed(name, leavers.node, leavers.pods)
            # Those that leave need places, too.
            moves = self.of([*others, *leavers.pods], further)
            if moves is not None:
                return (Move(pod, name, leavers.choice), *moves)
            if self._tries.gave_up:
                return None
        return None

    def _leavers_for(self, pod: PodFacts, trial: Trial) -> Iterator[tuple[str, Leavers]]:
        """Names of nodes, each with pods that may leave it so that the pod fits. The fewest pods come first."""
        search = LeaverSearch(pod, self._cluster.links, self._tries)
        for count in range(1, trial.spare + 1):
            for name in self._candidates.to_empty(pod):
                node = self._node(name, trial)
                if node is None:
                    continue
                for leavers in search.of(node, self._candidates.movable_on(node), count):
                    evicted = (*trial.evicted, *leavers.pods)
                    if not self._cluster.budgets.obstacle(evicted):
                        yield name, leavers

    def _node(self, name: str, trial: Trial) -> NodeUsage | None:
        return trial.nodes.get(name) or self._cluster.usage.nodes.get(name)

    def _places(self, pod: PodFacts, trial: Trial) -> Iterator[tuple[NodeUsage, Choice]]:
        """Nodes and GPUs for a pod, the cheapest nodes first."""
        fitting = self._candidates.fitting(pod)
        # It may fit on a node of the trial although it does not fit there now.
        others = [name for name in trial.nodes if name not in fitting and self._candidates.may_have(pod, name)]
        for name in (*fitting, *others):
            node = self._node(name, trial)
            if node is not None and has_resources(pod, node):
                yield from ((node, choice) for choice in self._choices(pod, node))

    def _choices(self, pod: PodFacts, node: NodeUsage) -> Iterator[Choice]:
        """The GPUs of a node that the pod may get; of a share, each GPU with another amount free."""
        request = pod.request
        if not request.is_single_share:
            choice = fit(request, node, links=self._cluster.links, tries=self._tries)
            if choice:
                yield choice
            return
        known = set()
        for position, _ in node.usable():
            free = node.free[position]
            if free in known or not request.need.within(free):
                continue
            known.add(free)
            choice = fit(request, node, [position], tries=self._tries)
            if choice:
                yield choice


def as_made_again(pod: PodFacts) -> PodFacts:
    """The pod that the controller of a pod makes in its place, as far as it is known before."""
    return replace(
        pod,
        uid=f"{pod.uid}-moved",
        node="",
        used=None,
        created=_LAST,
        rules=PodRules(nodes=pod.mobility.nodes),
    )
