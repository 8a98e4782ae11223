"""Kubelet's own account of who holds what, and the questions that it settles."""

from collections.abc import Sequence
from typing import Protocol

from gpuagent.domain.admission import Candidate
from gpuagent.domain.pods import Holding, PodName


class Book(Protocol):
    """Kubelet's own account of who holds what (pod-resources)."""

    def of_pod(self, pod: PodName) -> Sequence[Holding] | None:
        """What the pod holds now, also during its admission; None if kubelet cannot be asked."""

    def read(self, timeout_s: float) -> Sequence[Holding] | None:
        """Everything held, read after this call began; None if it took too long or kubelet cannot be asked."""


def settled(book: Book, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Where a call may go on with one container or begin another, kubelet's book tells which."""
    going_on = [c for c in candidates if c.first]
    if not going_on or len(going_on) == len(candidates):
        return candidates
    for candidate in going_on:
        held = holds_first(book, candidate)
        if held is None:
            # On the GPU of what was given last, both readings are served; anywhere else, only one.
            return tuple(sorted(candidates, key=lambda c: c.first is None))
        if held:
            return (candidate,)
    return tuple(c for c in candidates if not c.first)


def holds_first(book: Book, candidate: Candidate) -> bool | None:
    """Whether kubelet's book gives the candidate what it was given first; None if kubelet does not say."""
    held = book.of_pod(candidate.pod.name)
    first = candidate.first
    if held is None or first is None:
        return None
    return any(h.owner == candidate.owner and h.ids == first.ids for h in held)
