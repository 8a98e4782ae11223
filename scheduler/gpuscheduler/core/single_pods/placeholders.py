"""Which pods need a larger pod in their place, so that a cluster autoscaler adds a node for them.

An autoscaler compares totals of nodes. A pod that waits only because free units are scattered over GPUs seems to fit,
so that no node is added. A placeholder asks for one unit more than any of these nodes has free in total, so it does not
seem to fit. A new node like those of the cluster does have as much, because it is empty.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import GPU_MEM
from gpuscheduler.core.calls import Report
from gpuscheduler.core.choose_gpus import fits
from gpuscheduler.core.constraints.resources import NO_RESOURCES
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

PLACEHOLDER_SCHEDULER = "gpuagent.io-placeholder"
"""`spec.schedulerName` of placeholders. No scheduler has this name, so no placeholder is ever bound."""
AFTER_S = 30.0
"""How long a pod waits because of scattered units before it gets a placeholder: others may end meanwhile."""
MOST = 10
"""Placeholders at one time."""
MOST_RATED = 8
"""Different kinds of pods that are compared with all nodes in one call."""
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

    def wanted(self, now: float) -> list[Placeholder]:
        """The placeholders that are to be there now: for pods of the highest priority first, then the oldest."""
        candidates = sorted(filter(self.may_need, self._pods.values()), key=_order)
        sizes: dict[Hashable, int | None] = {}
        since: dict[str, float] = {}
        wanted: list[Placeholder] = []
        for pod in candidates:
            alike = pod.request, pod.requests, pod.rules
            if alike not in sizes:
                if len(sizes) == MOST_RATED:
                    continue
                sizes[alike] = self.units(pod)
            units = sizes[alike]
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

    def units(self, pod: PodFacts) -> int | None:
        """Units of memory that a placeholder for the pod asks for: none of the nodes that seem to fit has them free.

        None if no placeholder is needed. Either a node takes the pod, or no node seems to, so that one is added anyway.
        None as well if an empty node would not have as many.
        """
        tries = Tries()
        most_free = 0
        most_of_helpful = 0
        helpful: dict[Hashable, bool] = {}
        for node in self._accepted(pod):
            facts = node.facts
            if facts.kind not in helpful:
                helpful[facts.kind] = fits(pod.request, NodeUsage(facts), tries)
            (total,) = facts.allocatable.amounts(_MEMORY)
            can_take_it_empty = not pod.requests.short_in(facts.allocatable, NO_RESOURCES)
            if helpful[facts.kind] and can_take_it_empty:
                most_of_helpful = max(most_of_helpful, total)
            if pod.requests.short_in(facts.allocatable, node.used):
                continue
            if fits(pod.request, node, tries) or tries.gave_up:
                return None
            (used,) = node.used.amounts(_MEMORY)
            most_free = max(most_free, total - used)
        units = most_free + 1
        return units if most_free and units <= most_of_helpful else None

    def _accepted(self, pod: PodFacts) -> Iterable[NodeUsage]:
        """Nodes that the pod may be on by its selector, affinity and tolerations."""
        for node in self._nodes.values():
            if not node.facts.unready and not pod.rules.obstacle(node.facts.site):
                yield node


def _order(pod: PodFacts) -> tuple[int, str, str]:
    return -pod.priority, pod.created, pod.uid


def scale_up_report(placeholder: Placeholder, name: str) -> Report:
    """The Event of the waiting pod."""
    text = (
        f"The pod waits only because free units are scattered over GPUs. Pod {name} asks for {placeholder.units} of "
        f"{GPU_MEM}, which no node has free, so that a cluster autoscaler adds one"
    )
    return Report(placeholder.pod, placeholder.uid, "ScaleUpRequested", text)
