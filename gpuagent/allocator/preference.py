"""Which units a container should get: the choice, with everything that tells who is asking."""

import logging
from collections.abc import Callable, Collection

from gpuagent.allocator.memory import Choice, Memory
from gpuagent.book import Book, check_doubt, holds_first, settled, told_apart
from gpuagent.domain.admission import Candidate, beginning
from gpuagent.domain.checks import free_by_gpu
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Refusal
from gpuagent.domain.honour import ignored, not_kept
from gpuagent.domain.pods import PodName
from gpuagent.domain.question import Question, chosen_for, doubted, for_any

log = logging.getLogger(__name__)

PATIENCE_S = 0.1
"""How long a question of kubelet's waits for the pod it is about to appear in our own watch."""

Say = Callable[[PodName | None, str, str], None]
"""Tell people: pod (None for the node), reason, message."""


class Preference:
    """Answers kubelet's question, or the one that a kubelet did not ask."""

    def __init__(self, memory: Memory, book: Book, say: Say) -> None:
        self._memory = memory
        self._book = book
        self._say = say

    def choose(
        self, resource: str, offered: frozenset[str], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """`size` ids of those that are `offered`, `must_include` among them; remembered until they are allocated.

        Raises:
            Refusal: the total may be enough, but no GPU is.
        """
        with self._memory.lock:
            self._memory.read_owners()
            claims, candidates = self._look(resource, size, offered)
            asking = self._told_apart(candidates, resource, claims)
            if asking or not claims.snapshot.pods_watched:
                return self._chosen(resource, size, must_include, asking, claims)
        # Kubelet may have heard of the asking pod a moment before our own watch did.
        others = {candidate.pod.uid for candidate in candidates}
        self._memory.wait(lambda: self._fresh(resource, size, offered, others), PATIENCE_S)
        with self._memory.lock:
            claims, candidates = self._look(resource, size, offered)
            asking = self._told_apart(candidates, resource, claims)
            asking = candidates if asking == () else asking
            return self._chosen(resource, size, must_include, asking, claims)

    def _told_apart(
        self, candidates: tuple[Candidate, ...], resource: str, claims: Claims
    ) -> tuple[Candidate, ...] | None:
        return told_apart(self._book, candidates, resource, claims, gone=self._memory.gone)

    def _fresh(self, resource: str, size: int, offered: frozenset[str], others: Collection[str]) -> bool:
        """A pod that may be asking has appeared."""
        return any(candidate.pod.uid not in others for candidate in self._look(resource, size, offered)[1])

    def _look(self, resource: str, size: int, offered: frozenset[str]) -> tuple[Claims, tuple[Candidate, ...]]:
        claims = self._memory.claims(offered)
        return claims, self._memory.admission.candidates(resource, size, claims)

    def _chosen(
        self,
        resource: str,
        size: int,
        must_include: frozenset[str],
        candidates: tuple[Candidate, ...] | None,
        claims: Claims,
    ) -> tuple[str, ...]:
        free = free_by_gpu(resource, claims.offered, claims.snapshot)
        question = Question(resource, size, free, must_include, gone=candidates is None)
        candidates = settled(self._book, candidates or ())
        try:
            try:
                chosen, candidates = for_any(candidates, lambda order: self._chosen_for(order, question, claims))
            except Refusal:
                fresh = tuple(beginning(question.resource, question.size, claims))
                if not fresh or not candidates or candidates[0].first is None or holds_first(self._book, candidates[0]):
                    raise
                # The container we took it for was given up by kubelet: this call begins another pod.
                candidates = fresh
                chosen = self._chosen_for(fresh, question, claims)
        except Refusal as refusal:
            self._memory.give_up()
            if candidates:
                uids = [pod.uid for pod in claims.snapshot.pods]
                self._memory.ledger = self._memory.ledger.having_refused(candidates[0].pod.uid, uids)
                self._say(candidates[0].pod.name, "GpuRefused", refusal.message)
            raise
        self._memory.choice = Choice(question.resource, frozenset(chosen), candidates)
        if candidates and (text := ignored(candidates[0], claims.snapshot)):
            self._say(candidates[0].pod.name, "GpuDecisionIgnored", text)
        if candidates and (text := not_kept(candidates[0], resource, chosen, claims)):
            self._say(candidates[0].pod.name, "GpuDecisionNotKept", text)
        return chosen

    def _chosen_for(self, candidates: tuple[Candidate, ...], question: Question, claims: Claims) -> tuple[str, ...]:
        chosen = chosen_for(question, candidates, claims)
        if doubt := doubted(question, claims).intersection(chosen):
            text = check_doubt(self._book, question.resource, doubt, claims)
            log.warning("devices given out again soon", extra={"resource": question.resource, "devices": len(doubt)})
            self._say(None, "DevicesGivenOutAgain", text)
        return chosen
