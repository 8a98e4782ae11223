"""Where the pods of a job would fit if pods of lower priority had ended."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.resources import NO_RESOURCES
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import NOTHING, RequestKind
from gpuscheduler.core.jobs.places.plan import PLAN_TRIES, Passed, plan
from gpuscheduler.core.jobs.priority.endings import Endings
from gpuscheduler.core.jobs.work_shares import WorkShares
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

LOWEST_PRIORITY = -(2**31)
"""No pod has a lower one in Kubernetes."""
NODES_TRIES = 2 * PLAN_TRIES
"""Work that one choice of nodes may take: it makes a plan for ever more nodes."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pods of a job for which others may end.

    Attributes:
        pods: with what kube-scheduler checks of their requests.
        needed: how many of them have to fit.
        unsuitable: UID of each pod to the nodes that kube-scheduler would not accept for it in any case.
        below: pods of a lower priority than this may end.
    """

    pods: Collection[PodFacts]
    needed: int
    unsuitable: Mapping[str, Passed]
    below: int


class AfterEvictions:
    """The cluster without pods that may end.

    Args:
        usage: nodes and their users.
        links: between the GPUs of nodes.
        pods: by UID, as the watch shows them.
        endings: pods that end without an eviction.
        work: of all namespaces, to which the tries are added.
    """

    def __init__(
        self,
        usage: ClusterUsage,
        links: Links,
        pods: Mapping[str, PodFacts],
        endings: Endings,
        work: WorkShares,
    ) -> None:
        self._work = work
        self._endings = endings
        self._usage = usage
        self._links = links
        self._pods = pods

    def places(
        self,
        waiting: Waiting,
        without: Collection[str] = (),
        proposed: Collection[str] = (),
    ) -> dict[str, str]:
        """UID of each pod to the node where it would fit; empty if not enough of them fit.

        Args:
            waiting: the pods.
            without: nodes that are not for them.
            proposed: the nodes on which kube-scheduler would evict pods; empty for any.
        """
        names = self._cheapest_first(waiting, without, proposed)
        emptied: dict[str, NodeUsage] = {}
        tries = Tries(NODES_TRIES)
        count = self._least_count(waiting, names, emptied)
        while not tries.gave_up:
            places = self._places_on(waiting, names[:count], emptied, tries)
            if places or count >= len(names):
                return places
            # A few nodes more than needed cost less than to try each number.
            count *= 2
        return {}

    def places_on(self, waiting: Waiting, names: Collection[str]) -> dict[str, str]:
        """As `places`, on these nodes alone."""
        if not self._usage.nodes.keys() >= set(names):
            return {}
        return self._places_on(waiting, list(names), {}, Tries(NODES_TRIES))

    def fit_without_evictions(self, waiting: Waiting, without: Collection[str]) -> bool:
        """Whether enough pods fit once those have ended that end anyway. `without` are nodes that are not for them."""
        if not self._endings.any_soon:
            # There is as much room as there was for the last plan, which has failed.
            return False
        return bool(self.places(replace(waiting, below=LOWEST_PRIORITY), without))

    def _cheapest_first(
        self,
        waiting: Waiting,
        without: Collection[str],
        proposed: Collection[str],
    ) -> list[str]:
        """The nodes, those with the fewest pods first, and if possible those that are proposed."""
        # Room that is there already costs no pod its life. It may be reserved for a pod of the job.
        costless = self._endings.by_node()
        for pod in waiting.pods:
            costless.update(self._usage.nodes_of(pod.uid))

        def price(name: str) -> tuple[bool, int, str]:
            others = len(self._usage.nodes[name].users) - costless[name]
            is_left_out = bool(proposed) and others > 0 and name not in proposed
            return is_left_out, others, name

        names = [name for name in self._usage.nodes if name not in without]
        return sorted(names, key=price)

    def _least_count(self, waiting: Waiting, names: Sequence[str], emptied: dict[str, NodeUsage]) -> int:
        """Fewer of these nodes are not enough, because they have too few GPUs in all."""
        gpus = 0
        units = NOTHING
        smallest_first = sorted(waiting.pods, key=lambda pod: (pod.request.gpus, pod.request.need.memory))
        for pod in smallest_first[: waiting.needed]:
            if pod.request.kind is RequestKind.WHOLE:
                gpus += pod.request.gpus
            else:
                units += pod.request.need
        for number, name in enumerate(names, 1):
            room = self._emptied(waiting, name, emptied).room
            gpus -= len(room.unused)
            units -= room.total
            if gpus <= 0 and units.memory <= 0:
                return number
        return len(names)

    def _places_on(
        self,
        waiting: Waiting,
        names: Sequence[str],
        emptied: dict[str, NodeUsage],
        tries: Tries,
    ) -> dict[str, str]:
        left_before = tries.left
        places = plan(
            waiting.pods,
            {name: self._emptied(waiting, name, emptied) for name in names},
            self._links,
            without=waiting.unsuitable,
            tries=tries,
            beside=self._usage.pods,
            min_feasible=self._usage.min_feasible,
        )
        self._work.add(left_before - tries.left)
        if len(places) < waiting.needed:
            return {}
        return {uid: node for uid, (node, _) in places.items()}

    def _emptied(self, waiting: Waiting, name: str, emptied: dict[str, NodeUsage]) -> NodeUsage:
        """The node without the pods that end or may end, and without those that wait.

        `emptied` has what was worked out before. GPUs that other pods freed are reserved for the job's pods one by one.
        """
        node = emptied.get(name)
        if node is not None:
            return node
        own = {pod.uid for pod in waiting.pods}
        node = self._usage.nodes[name].copy()
        emptied[name] = node
        freed = NO_RESOURCES
        for uid in list(node.users):
            pod = self._pods.get(uid)
            leaves = uid in own or self._may_end(uid, waiting.below)
            if not leaves:
                continue
            node.release(uid)
            if pod is not None:
                freed += pod.requests
        node.used -= freed
        return node

    def _may_end(self, uid: str, below: int) -> bool:
        """Whether a pod of the node ends by itself, or could be evicted for pods of this priority."""
        if self._endings.ends_soon(uid):
            return True
        pod = self._pods.get(uid)
        is_lower = pod is not None and pod.priority < below
        # To evict a pod that hangs is of no use.
        return is_lower and not self._endings.hangs(uid)
