"""Which pods need a larger pod in their place, so that a cluster autoscaler adds a node for them.

An autoscaler compares totals of nodes. A pod that waits only because free units are scattered over GPUs seems to fit,
so that no node is added. A placeholder asks for one unit more than any of these nodes has free in total, so it does not
seem to fit. A new node like those of the cluster does have as much, because it is empty.
"""

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import GPU_MEM
from gpuscheduler.core.calls import Report
from gpuscheduler.core.choose_gpus import fits, tries_without_search
from gpuscheduler.core.constraints.resources import NO_RESOURCES
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import GpuRequest, RequestKind
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

PLACEHOLDER_SCHEDULER = "gpuagent.io-placeholder"
"""`spec.schedulerName` of placeholders. No scheduler has this name, so no placeholder is ever bound."""
AFTER_S = 30.0
"""How long a pod waits because of scattered units before it gets a placeholder: others may end meanwhile."""
MOST = 10
"""Placeholders at one time."""
MOST_RATED = 4
"""Different kinds of pods that are compared with all nodes in one look, besides those that have placeholders."""
NODES_A_STEP = 250
"""Nodes that are compared without another call in between."""
_MEMORY = (GPU_MEM,)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A pod that is to be there for a waiting pod.

    Attributes:
        pod: the waiting pod.
        uid: of the waiting pod.
        units: of GPU memory to ask for.
    """

    pod: PodName
    uid: str
    units: int


Look = Generator[None, None, list[Placeholder]]
"""A look at all nodes in steps of a few milliseconds, after which the placeholders are known that are to be there."""
_Rating = Generator[None, None, int | None]


class Placeholders:
    """Decides for which pods there are placeholders, and of which size.

    Args:
        nodes: by name, with their users.
        pods: by UID, as the watch shows them.
        waits: whether a pod is a single one that this scheduler is to place, and has nothing reserved.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeUsage],
        pods: Mapping[str, PodFacts],
        waits: Callable[[PodFacts], bool],
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._waits = waits
        self._since: dict[str, float] = {}
        self._units: dict[str, int] = {}
        self._rated: dict[Hashable, int | None] = {}
        """Kind of waiting pods to the units of a placeholder for one of them. The kind rated longest ago is first."""

    def look(self, now: float) -> Look:
        """Find the placeholders that are to be there now.

        Those for pods of the highest priority come first, then one for each namespace in turn, then the oldest.
        """
        yield from self._rate(_in_turn(self._candidates()))
        since: dict[str, float] = {}
        wanted: list[Placeholder] = []
        # Some may have been placed meanwhile, and others may have come.
        for pod in _in_turn(self._candidates()):
            units = self._rated.get(_kind(pod))
            if units is None:
                continue
            since[pod.uid] = self._since.get(pod.uid, now)
            if now - since[pod.uid] >= AFTER_S and len(wanted) < MOST:
                # A larger one than needed stays, since to replace it would have the autoscaler begin again.
                wanted.append(Placeholder(pod.name, pod.uid, max(units, self._units.get(pod.uid, 0))))
        self._since = since
        self._units = {placeholder.uid: placeholder.units for placeholder in wanted}
        return wanted

    def may_need(self, pod: PodFacts) -> bool:
        """Whether a pod waits for a share after kube-scheduler has tried it."""
        is_share = pod.request.kind is RequestKind.SHARE and not pod.request.problem
        was_tried = bool(pod.unscheduled) and not pod.node
        can_start = not pod.gated and not pod.deleting
        return is_share and was_tried and can_start and self._waits(pod)

    def _candidates(self) -> list[PodFacts]:
        return [pod for pod in self._pods.values() if self.may_need(pod)]

    def _rate(self, candidates: Iterable[PodFacts]) -> Generator[None, None, None]:
        """Compare some kinds of pods with all nodes.

        A tenant may have pods of any number of kinds that fit nowhere, so each kind has its turn.
        """
        pod_of: dict[Hashable, PodFacts] = {}
        with_placeholders: dict[Hashable, None] = {}
        for pod in candidates:
            kind = _kind(pod)
            pod_of.setdefault(kind, pod)
            if pod.uid in self._units:
                with_placeholders[kind] = None
        self._rated = {kind: units for kind, units in self._rated.items() if kind in pod_of}
        never_rated = [kind for kind in pod_of if kind not in self._rated]
        others = [kind for kind in (*never_rated, *self._rated) if kind not in with_placeholders]
        for kind in (*with_placeholders, *others[:MOST_RATED]):
            units = yield from self._needed_units(pod_of[kind])
            # It goes to the end, as the one that was rated last.
            self._rated.pop(kind, None)
            self._rated[kind] = units

    def _needed_units(self, pod: PodFacts) -> _Rating:
        """Units of memory that a placeholder for the pod asks for: none of the nodes that seem to fit has them free.

        None if no placeholder is needed. Either a node takes the pod, or no node seems to, so that one is added anyway.
        None as well if an empty node would not have as many.
        """
        tries = Tries()
        most_free = 0
        most_of_helpful = 0
        of_empty: dict[Hashable, int] = {}
        for number, name in enumerate(list(self._nodes)):
            if number % NODES_A_STEP == 0:
                yield
            node = self._nodes.get(name)
            if node is None or not _is_accepted(pod, node):
                continue
            facts = node.facts
            # Nodes of one kind share these values.
            kind = facts.kind, id(facts.allocatable)
            if kind not in of_empty:
                of_empty[kind] = _units_if_empty(pod, node, tries)
            most_of_helpful = max(most_of_helpful, of_empty[kind])
            if pod.requests.short_in(facts.allocatable, node.used):
                continue
            if _has_room(pod.request, node, tries) or tries.gave_up:
                return None
            (total,) = facts.allocatable.amounts(_MEMORY)
            (used,) = node.used.amounts(_MEMORY)
            most_free = max(most_free, total - used)
        units = most_free + 1
        return units if most_free and units <= most_of_helpful else None


def _kind(pod: PodFacts) -> Hashable:
    """Equal for pods that fit on the same nodes."""
    return pod.request, pod.requests, pod.rules


def _is_accepted(pod: PodFacts, node: NodeUsage) -> bool:
    """Whether the pod may be on a node by its selector, affinity and tolerations."""
    return not node.facts.unready and not pod.rules.obstacle(node.facts.site)


def _units_if_empty(pod: PodFacts, node: NodeUsage, tries: Tries) -> int:
    """Units of memory of a node that takes the pod if no other is there; 0 of one that does not."""
    facts = node.facts
    is_too_small = pod.requests.short_in(facts.allocatable, NO_RESOURCES)
    if is_too_small or not _has_room(pod.request, NodeUsage(facts), tries):
        return 0
    (total,) = facts.allocatable.amounts(_MEMORY)
    return total


def _has_room(request: GpuRequest, node: NodeUsage, tries: Tries) -> bool:
    # However many nodes there are, each is looked at. Only searches share the tries.
    tries.allow(tries_without_search(request, node))
    return fits(request, node, tries)


def _in_turn(pods: Iterable[PodFacts]) -> list[PodFacts]:
    """The highest priority first, then a pod of each namespace in turn, then the oldest.

    A tenant may have any number of pods that wait, and those of others do not wait for all of these.
    """
    by_age = sorted(pods, key=lambda pod: (-pod.priority, pod.created, pod.uid))
    earlier: Counter[tuple[str, int]] = Counter()
    ranks: dict[str, tuple[int, int]] = {}
    for pod in by_age:
        of_namespace = pod.name.namespace, pod.priority
        ranks[pod.uid] = -pod.priority, earlier[of_namespace]
        earlier[of_namespace] += 1
    # Equal ranks stay in the order of their age.
    return sorted(by_age, key=lambda pod: ranks[pod.uid])


def scale_up_report(placeholder: Placeholder, name: str) -> Report:
    """The Event of the waiting pod."""
    text = (
        f"The pod waits only because free units are scattered over GPUs. Pod {name} asks for {placeholder.units} of "
        f"{GPU_MEM}, which no node has free, so that a cluster autoscaler adds one"
    )
    return Report(placeholder.pod, placeholder.uid, "ScaleUpRequested", text)
