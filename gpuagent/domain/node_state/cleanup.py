"""The deletions of failed pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from gpuagent.domain import events as ev
from gpuagent.domain.pods.failed_pod import ControllerKey, Round


@dataclass(frozen=True, kw_only=True)
class Cleanup:
    """The deletions of failed pods in this run.

    Attributes:
        rounds: by controller, its last round of deletions.
        deleted: cause of failure to the number of pods deleted.
        problem: why pods cannot be deleted.
    """

    rounds: Mapping[ControllerKey, Round] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None

    def taken(self, event: ev.Event) -> Self:
        match event:
            case ev.FailedPodDeleted():
                count = self.deleted.get(event.pod.failure, 0) + 1
                return replace(self, deleted={**self.deleted, event.pod.failure: count})
            case ev.DeletionsSeen():
                return replace(self, problem=event.problem)
        return self
