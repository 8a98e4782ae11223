"""Calls that carry whole Node objects: autoscalers ask in this way about nodes that do not exist yet.

They are answered from these objects. Nothing is reserved and nothing is remembered, because the caller binds no pod.
"""

from collections.abc import Mapping

from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.core.choose_gpus import fits, tries_without_search
from gpuscheduler.core.constraints.tries import CALL_TRIES, Tries
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reasons import gave_up_words, problem_words, reasons


class CarriedNodes:
    """The nodes of one call, on each of which the pod fits or not.

    A node that the scheduler knows by name counts with the pods that use it, all others as empty. A member of a job is
    asked about alone.

    Args:
        pod: that the call is about.
        known: the nodes of the cluster by name, with their users. They are only read.
    """

    def __init__(self, pod: PodFacts, known: Mapping[str, NodeUsage]) -> None:
        self._pod = pod
        self._known = known
        self._tries = Tries()
        self._nodes: dict[str, NodeUsage] = {}
        self._fitting: list[str] = []
        self._full: list[str] = []

    def add(self, name: str, facts: NodeFacts | None) -> None:
        """Take the next node of the call; None for one without GPUs."""
        request = self._pod.request
        if request.kind is RequestKind.NONE:
            self._fitting.append(name)
            return
        if facts is None:
            self._full.append(name)
            return
        node = self._with_users(name, facts)
        self._nodes[name] = node
        # However many nodes the call carries, each is looked at. Only searches share the tries of the call.
        self._tries.allow(tries_without_search(request, node))
        if fits(request, node, self._tries):
            self._fitting.append(name)
        else:
            self._full.append(name)

    def answer(self) -> FilterAnswer:
        """The nodes on which the pod fits, in the order of the call, and why it does not on the others."""
        request = self._pod.request
        if request.problem:
            why = problem_words(request)
            return FilterAnswer(unresolvable=dict.fromkeys(self._full, why))
        result = reasons(request, self._full, self._nodes, {})
        if self._tries.gave_up:
            result.failed = dict.fromkeys(result.failed, gave_up_words(request, CALL_TRIES))
        return FilterAnswer(
            nodes=tuple(self._fitting),
            failed=result.failed,
            unresolvable=result.unresolvable,
        )

    def _with_users(self, name: str, facts: NodeFacts) -> NodeUsage:
        """The node as the call describes it, with the pods that are known to use it, except for the pod itself."""
        node = NodeUsage(facts)
        existing = self._known.get(name)
        if existing:
            for uid, use in existing.users.items():
                if uid != self._pod.uid:
                    node.use(uid, use)
        return node
