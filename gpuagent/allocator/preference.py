"""Which units a container should get: the choice, with everything that tells who is asking."""

import logging
from collections.abc import Collection
from functools import partial

from gpuagent.allocator.memory import Choice, Memory
from gpuagent.allocator.refusalevents import Say
from gpuagent.book import Ask, Book, asked_by, check_doubt, holds_first, settled, told_apart
from gpuagent.domain.admission import Candidate, beginning
from gpuagent.domain.checks import free_by_gpu
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Refusal
from gpuagent.domain.honour import ignored, not_kept
from gpuagent.domain.pods import requests
from gpuagent.domain.question import Question, chosen_for, doubted, for_any
from gpuagent.domain.snapshot import Snapshot

log = logging.getLogger(__name__)

PATIENCE_S, GONE_PATIENCE_S = 1.0, 0.1
"""How long a question of kubelet's waits for its pod to appear in our own watch; less where it may be a deleted one."""

REST_S = 1.0
"""After a wait in vain none begins for so long: a static pod never appears in time, and kubelet admits others."""


NAMING_S = 1.0
"""How long to wait for kubelet's allocations, which name the containers."""


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
        memory, until, named = self._memory, None, bool(must_include)
        while True:
            if not named and (named := self._unknown_fill_gpus(offered)):
                self._have_them_named()
            with memory.lock:
                memory.read_owners()
                claims, candidates = self._look(resource, size, offered)
                # What it has fixed for this call alone, and not handed on from an init container, is in no book yet.
                ask = partial(self._book.look, listing=not must_include or bool(claims.given(resource, must_include)))
                asking = told_apart(ask, candidates, resource, size, claims)
                anew = any(candidate.pod.name in claims.given_back for candidate in asking or ())
                if until is None:
                    until = memory.clock() + self._patience_s(asking, resource, size, claims, ask)
                left_s = until - memory.clock()
                if (asking and not anew) or left_s <= 0:
                    question = _question(resource, size, must_include, claims, asking)
                    return self._chosen(question, asking or (), claims, ask)
            if not self._another_seen(resource, size, claims.snapshot, left_s):
                until = memory.in_vain_at[bool(asking)] = memory.clock()

    def _unknown_fill_gpus(self, offered: frozenset[str]) -> bool:
        """Whether a GPU seems full, and may not be: some of its containers may turn out to be of one pod."""
        with self._memory.lock:
            self._memory.read_owners()
            claims = self._memory.claims(offered)
            return not self._memory.counts_only and claims.some_unknown and bool(claims.full_gpus(None))

    def _have_them_named(self) -> None:
        """Kubelet's allocations include the pod that is being admitted."""
        memory, began = self._memory, self._memory.clock()
        if self._book.read(timeout_s=NAMING_S) is not None:
            memory.wait(lambda: memory.snapshot.holdings_at >= began, NAMING_S)

    def _patience_s(
        self, asking: Collection[Candidate] | None, resource: str, size: int, claims: Claims, ask: Ask
    ) -> float:
        """Kubelet may have heard of the asking pod before our own watch did."""
        memory = self._memory
        if not claims.snapshot.pods_known or memory.clock() - memory.in_vain_at[bool(asking)] < REST_S:
            return 0.0
        return GONE_PATIENCE_S if not asking and asked_by(ask, memory.gone, resource, size, claims) else PATIENCE_S

    def _another_seen(self, resource: str, size: int, before: Snapshot, within_s: float) -> bool:
        """Whether a pod that may be asking appears in that time."""
        seen = {pod.uid for pod, _ in requests(before.pods, resource, size)}

        def another() -> bool:
            return any(pod.uid not in seen for pod, _ in requests(self._memory.snapshot.pods, resource, size))

        return self._memory.wait(another, within_s)

    def _look(self, resource: str, size: int, offered: frozenset[str]) -> tuple[Claims, tuple[Candidate, ...]]:
        claims = self._memory.claims(offered)
        return claims, self._memory.admission.candidates(resource, size, claims)

    def _chosen(
        self, question: Question, candidates: tuple[Candidate, ...], claims: Claims, ask: Ask
    ) -> tuple[str, ...]:
        candidates = settled(ask, candidates)
        try:
            try:
                chosen, candidates = for_any(candidates, lambda order: self._chosen_for(order, question, claims, ask))
            except Refusal:
                fresh = tuple(beginning(question.resource, question.size, claims))
                if not fresh or not candidates or candidates[0].first is None or holds_first(ask, candidates[0]):
                    raise
                # The container we took it for was given up by kubelet: this call begins another pod.
                candidates = fresh
                chosen = self._chosen_for(fresh, question, claims, ask)
        except Refusal as refusal:
            self._memory.give_up()
            if candidates:
                uids = [pod.uid for pod in claims.snapshot.pods]
                self._memory.ledger = self._memory.ledger.having_refused(candidates[0].pod.uid, uids)
                refusal.pod = candidates[0].pod.name
            raise
        self._memory.choice = Choice(question.resource, frozenset(chosen), candidates)
        if candidates and (text := ignored(candidates[0], claims.snapshot)):
            self._say(candidates[0].pod.name, "GpuDecisionIgnored", text)
        if candidates and (text := not_kept(candidates[0], question.resource, chosen, claims)):
            self._say(candidates[0].pod.name, "GpuDecisionNotKept", text)
        return chosen

    def _chosen_for(
        self, candidates: tuple[Candidate, ...], question: Question, claims: Claims, ask: Ask
    ) -> tuple[str, ...]:
        chosen = chosen_for(question, candidates, claims)
        if doubt := doubted(question, claims).intersection(chosen):
            text = check_doubt(ask, question.resource, doubt, claims)
            log.warning("devices given out again soon", extra={"resource": question.resource, "devices": len(doubt)})
            self._say(None, "DevicesGivenOutAgain", text)
        return chosen


def _question(
    resource: str, size: int, must_include: frozenset[str], claims: Claims, asking: Collection[Candidate] | None
) -> Question:
    free = free_by_gpu(resource, claims.offered, claims.snapshot)
    return Question(resource, size, free, must_include, gone=asking is None)
