"""The pods of the node, as the API server has them."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from gpuagent.domain import events as ev
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION
from gpuagent.domain.pods.pod import Pod


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Every pod bound to this node, in `seen`. Some pods that ended earlier are missing.

    Attributes:
        unordered: UIDs of those that the agent got together: it does not know in which order kubelet did.
        known: all of them were read in this run. Before that, `seen` has those that the agent read one by one.
        decided_before: a scheduler decided on a pod of this node in an earlier run; None if nothing tells.
        presumed_decided: what to go by until all pods are known, if `decided_before` is None.
        problem: why the agent does not see changes of pods.
        annotations_problem: why the annotations of pods are not up to date.
        idle_labels_problem: which namespaces of idle pods have a label that is not an idle policy.
    """

    seen: tuple[Pod, ...] = ()
    unordered: frozenset[str] = frozenset()
    known: bool = False
    decided_before: bool | None = False
    presumed_decided: bool = False
    problem: str | None = None
    annotations_problem: str | None = None
    idle_labels_problem: str | None = None

    def taken(self, event: ev.Event) -> Self:
        match event:
            case ev.PodsSeen():
                problem = None if event.followed else self.problem
                return replace(
                    self,
                    seen=event.pods,
                    unordered=event.unordered,
                    known=self.known or event.complete,
                    problem=problem,
                )
            case ev.ApiUnavailable(what="pods"):
                return replace(self, problem=event.reason)
            case ev.AnnotationsKept():
                return replace(self, annotations_problem=event.problem)
            case ev.IdleLabelsRead():
                return replace(self, idle_labels_problem=event.problem)
        return self

    @property
    def watched(self) -> bool:
        """The agent follows the pods' changes now."""
        return self.known and self.problem is None

    @cached_property
    def with_limit(self) -> tuple[Pod, ...]:
        """Living pods with an annotation that asks for another limit of their GPU memory, or says what became of it."""
        keys = {LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION}
        return tuple([pod for pod in self.seen if not pod.ended and not keys.isdisjoint(pod.annotations)])

    @cached_property
    def living_uids(self) -> set[str]:
        """UIDs of the pods that have not ended."""
        return {pod.uid for pod in self.seen if not pod.ended}
