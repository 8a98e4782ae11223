"""Plans all pods of a job over nodes and links: the fewest nodes, then the best weakest link.

The plan works on copies of the nodes' free GPUs, and places all pods or none. Equal pods are placed together. What
kube-scheduler will check for each pod is a part of the plan. Where the densest plan leaves a pod out, other orders are
tried, and then a search, before the job is said not to fit.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from gpuscheduler.core.cluster_usage import MIN_FEASIBLE_NODES
from gpuscheduler.core.constraints.admission import Admission
from gpuscheduler.core.constraints.neighborhood import Neighborhood
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.jobs.places.groups import Group, OtherThan, Passed, exchanged_places, groups_of
from gpuscheduler.core.jobs.places.rooms import NODES_A_TRY, Rooms
from gpuscheduler.core.jobs.places.search import Search
from gpuscheduler.core.jobs.places.trial import Places, Trial
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

__all__ = ["PLAN_TRIES", "OtherThan", "Passed", "Places", "plan"]

PLAN_TRIES = 20_000
"""Work that one plan may take, see `Tries`: other calls wait meanwhile."""
MOST_GROUPS = 16
"""Groups of different pods for which places are searched. The work grows with each group."""
_Hardness = Callable[[Group], tuple[object, ...]]


def plan(  # noqa: PLR0913 (by name)
    pods: Collection[PodFacts],
    nodes: Mapping[str, NodeUsage],
    links: Links,
    *,
    near: Collection[str] = (),
    without: Mapping[str, Passed] | None = None,
    tries: Tries | None = None,
    beside: Neighborhood | None = None,
    prefer: Mapping[str, str] | None = None,
    min_feasible: int = MIN_FEASIBLE_NODES,
) -> Places:
    """Nodes and GPUs for the pods; fewer than all if they do not fit together, or the tries are used up.

    Args:
        pods: the members to place.
        nodes: by name, with what is in use.
        links: between the GPUs of each node.
        near: nodes with other members of the job, which are used first.
        without: UID to the nodes that kube-scheduler does not accept for the pod.
        tries: of the plan.
        beside: all nodes and the pods on them, for the rules of pods; None for `nodes` without pods that have any.
        prefer: UID to the node on which the pod stays if it fits there, together with the others.
        min_feasible: among more nodes, each pod is nominated for its own.
    """
    tries = Tries(PLAN_TRIES) if tries is None else tries
    if beside is None:
        beside = Neighborhood(node.facts.site for node in nodes.values())
    groups, admission = groups_of(pods, without or {}, beside, tries)
    planner = _Planner(groups, nodes, links, near, admission, tries, min_feasible)
    most = Places()
    for attempt in planner.attempts(prefer or {}):
        if tries.gave_up:
            # Perhaps in reading the rules of the pods, so that not all are known.
            break
        places = attempt()
        if len(places) > len(most):
            most = places
        if len(most) == len(pods):
            break
    return most


class _Planner:
    """Ways to place the groups, all on the same nodes."""

    def __init__(  # noqa: PLR0913 (what a plan is made of)
        self,
        groups: Sequence[Group],
        nodes: Mapping[str, NodeUsage],
        links: Links,
        near: Collection[str],
        admission: Admission,
        tries: Tries,
        min_feasible: int,
    ) -> None:
        self._groups = groups
        self._nodes = nodes
        self._links = links
        self._near = near
        self._admission = admission
        self._tries = tries
        self._are_nominated = len(nodes) > min_feasible

    def attempts(self, prefer: Mapping[str, str]) -> Sequence[Callable[[], Places]]:
        """The ways, the best first."""
        attempts: list[Callable[[], Places]] = []
        if prefer:
            exchanged = exchanged_places(self._groups, prefer)
            attempts.append(lambda: self._densest(_by_gpus, exchanged))
        attempts.append(lambda: self._densest(_by_gpus))
        if len(self._groups) > 1:
            attempts.append(lambda: self._densest(_by_cpu))
        if len(self._groups) <= MOST_GROUPS:
            attempts.append(self._searched)
        return attempts

    def _densest(self, hardness: _Hardness, prefer: Mapping[str, str] | None = None) -> Places:
        """On the fewest nodes, the groups that are hard to place first."""
        trial = self._trial()
        waiting: deque[tuple[Group, Sequence[PodFacts]]] = deque()
        if prefer:
            self._place_preferred(trial, prefer)
        for group in sorted(self._groups, key=hardness, reverse=True):
            unplaced = [pod for pod in group.pods if pod.uid not in trial.places]
            if unplaced:
                waiting.append((group, unplaced))
        in_vain = 0
        while waiting and in_vain < len(waiting) and not self._tries.gave_up:
            group, pods = waiting.popleft()
            left = self._place(group, pods, trial)
            if left and not self._admission.spans_nodes(group.kind):
                # Pods of other groups only make its room smaller.
                break
            is_in_vain = len(left) == len(pods)
            in_vain = in_vain + 1 if is_in_vain else 0
            if left:
                # They may want to be near pods of a later group.
                waiting.append((group, left))
        trial.undo()
        return trial.places

    def _trial(self) -> Trial:
        return Trial(self._nodes, self._links, self._admission, self._near)

    def _place_preferred(self, trial: Trial, prefer: Mapping[str, str]) -> None:
        """Place pods on the nodes that are preferred for them, in an order in which kube-scheduler accepts them."""
        pods: dict[str, tuple[Group, PodFacts]] = {}
        for group in self._groups:
            for pod in group.pods:
                pods[pod.uid] = group, pod
        waiting: list[tuple[Group, PodFacts, str]] = []
        for uid, name in prefer.items():
            if uid in pods:
                group, pod = pods[uid]
                waiting.append((group, pod, name))
        while waiting and not self._tries.gave_up:
            # A pod may have its place only beside a later one.
            later: list[tuple[Group, PodFacts, str]] = []
            for group, pod, name in waiting:
                is_placed = self._has_room(group, name, trial) and trial.place(group, [pod], name)
                if not is_placed:
                    later.append((group, pod, name))
            if len(later) == len(waiting):
                break
            waiting = later

    def _has_room(self, group: Group, name: str, trial: Trial) -> bool:
        """Whether kube-scheduler accepts a pod of the group on a node, whatever the GPUs."""
        node = trial.nodes.get(name)
        refused = self._admission.refuses(group.kind)
        if node is None or name in refused or name in group.passed:
            return False
        has_resources = group.requests.times_in(node.facts.allocatable, node.used, 1)
        return bool(has_resources) and self._admission.accepts(group.kind, name)

    def _place(
        self,
        group: Group,
        pods: Sequence[PodFacts],
        trial: Trial,
    ) -> Sequence[PodFacts]:
        """Place pods of a group; those without a place are returned."""
        if not pods:
            return pods
        rooms = Rooms(
            group,
            wanted=len(pods),
            nodes=group.accepted(trial.nodes, self._admission),
            links=self._links,
            used=trial.used,
            tries=self._tries,
        )
        if self._admission.depends_on_pods(group.kind):
            return self._place_singly(group, pods, rooms, trial)
        while pods:
            room = rooms.next(len(pods))
            if room is None or self._tries.gave_up:
                break
            name, count = room
            if not trial.place(group, pods[:count], name):
                break
            pods = pods[count:]
        return pods

    def _place_singly(
        self,
        group: Group,
        pods: Sequence[PodFacts],
        rooms: Rooms,
        trial: Trial,
    ) -> Sequence[PodFacts]:
        """Place one pod after another, because each changes which nodes kube-scheduler accepts for the next."""
        order = rooms.best_first()
        left = {room.name: room.pods for room in order}
        names = list(left)
        while pods and not self._tries.gave_up:
            name = self._first_accepted(group, names, left)
            if name is None or not trial.place(group, pods[:1], name):
                break
            left[name] -= 1
            pods = pods[1:]
            names.remove(name)
            # Later pods prefer this node, too, unless each is nominated for its node: kube-scheduler counts a nominated
            # pod there, which then breaks the spread of the next one.
            is_last = bool(group.pods[0].rules.spread) and self._are_nominated
            names.insert(len(names) if is_last else 0, name)
        return pods

    def _first_accepted(
        self,
        group: Group,
        names: Sequence[str],
        left: Mapping[str, int],
    ) -> str | None:
        for number, name in enumerate(names):
            if left[name] > 0 and self._admission.accepts(group.kind, name):
                self._tries.spend(number // NODES_A_TRY)
                return name
        self._tries.spend(len(names) // NODES_A_TRY)
        return None

    def _searched(self) -> Places:
        """By a search, which may leave pods closer together or further apart than they need to be."""
        accepted = [group.accepted(self._nodes, self._admission) for group in self._groups]
        search = Search(self._groups, accepted, self._admission, self._tries)
        if self._tries.gave_up:
            return Places()
        trial = self._trial()
        placed = [0] * len(self._groups)
        for group, count, name in search.filled():
            before = placed[group.number]
            placed[group.number] += count
            if not trial.place(group, group.pods[before : before + count], name):
                break
        trial.undo()
        return self._in_order(trial.places)

    def _in_order(self, places: Places) -> Places:
        """The places in an order in which kube-scheduler accepts them; without those that it does not."""
        if not any(self._admission.spans_nodes(group.kind) for group in self._groups):
            return places
        waiting = [(group.kind, pod.uid) for group in self._groups for pod in group.pods if pod.uid in places]
        ordered = Places()
        placed: list[tuple[int, str]] = []
        any_new = True
        while any_new:
            before = len(placed)
            later: list[tuple[int, str]] = []
            for kind, uid in waiting:
                name, _ = places[uid]
                if self._admission.accepts(kind, name):
                    ordered[uid] = places[uid]
                    self._admission.place(kind, name)
                    placed.append((kind, name))
                else:
                    later.append((kind, uid))
            waiting = later
            any_new = len(placed) > before
        for kind, name in placed:
            self._admission.place(kind, name, -1)
        return ordered


def _by_gpus(group: Group) -> tuple[object, ...]:
    """How hard the pods of a group are to place: by GPUs, then by how many nodes do not accept them."""
    request = group.request
    requests = group.requests
    return request.gpus, request.need, requests.cpu, requests.memory, len(group.passed)


def _by_cpu(group: Group) -> tuple[object, ...]:
    """How hard the pods of a group are to place where CPU or memory is tight."""
    requests = group.requests
    return requests.cpu, requests.memory, group.request.gpus, group.request.need
