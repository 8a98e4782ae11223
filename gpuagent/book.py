"""Kubelet's own account of who holds what, and the questions that it settles."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuagent.domain.admission import Candidate, beginning
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.honour import alike, own_role
from gpuagent.domain.pods import Holding, PodName

MOST_LOOKS = 32
"""Pods that kubelet is asked about for one question: it answers 10 such calls at once, and 100 a second in all."""


@dataclass(frozen=True, slots=True)
class Look:
    """One pod as kubelet knows it: not at all, or with what it holds now."""

    known: bool
    holdings: Sequence[Holding] = ()


class Book(Protocol):
    """Kubelet's own account of who holds what (pod-resources)."""

    def look(self, pod: PodName) -> Look | None:
        """The pod as kubelet knows it, also during its admission; None if kubelet cannot be asked."""

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
    look = book.look(candidate.pod.name)
    first = candidate.first
    if look is None or first is None:
        return None
    return any(h.owner == candidate.owner and h.ids == first.ids for h in look.holdings)


def told_apart(
    book: Book, candidates: tuple[Candidate, ...], resource: str, claims: Claims, *, gone: bool
) -> tuple[Candidate, ...] | None:
    """Where pods that may be asking are to get different GPUs, now or next, kubelet's book tells which one it is.

    Kubelet hears of pods one by one and admits each before it hears of the next. So the asker is the one that it knows
    and that has nothing yet. Empty where it is none of the candidates, None where kubelet knows none of them; all of
    them where it cannot say.

    `gone`: the asker may be a pod that was deleted, of which kubelet has not heard yet.
    """
    role = own_role(candidates[0], resource, claims) if candidates else None
    others = candidates[1:]
    if candidates and all(candidate.first for candidate in candidates):
        # Kubelet may have given that container up, and begun with another.
        begun = beginning(resource, candidates[0].container.limits[resource], claims)
        others += tuple(c for c in begun if own_role(c, resource, claims) is not None)
    same = all(own_role(candidate, resource, claims) == role for candidate in others) and alike(candidates, claims)
    if same and not (gone and role):
        return candidates
    every = (candidates[0], *others)
    sold = claims.snapshot.sold
    pods = list(dict.fromkeys(candidate.pod.name for candidate in every))
    known = False
    for pod in pods[:MOST_LOOKS]:
        look = book.look(pod)
        if look is None:
            return candidates
        known |= look.known
        held = {i for holding in look.holdings if holding.resource in sold for i in holding.ids}
        here = tuple(c for c in every if c.pod.name == pod and c.lasting <= held <= c.given)
        if look.known and here:
            return here
    left = tuple(candidate for candidate in every if candidate.pod.name in pods[MOST_LOOKS:])
    return left if left or known else None


def check_doubt(book: Book, resource: str, doubt: Collection[str], claims: Claims) -> str:
    """Says that kubelet offers `doubt`, given out a moment ago, and nothing else.

    Raises:
        Refusal: its own book gives them to a pod.
    """
    for pod in {claim.owner.pod for claim in claims.doubted if claim.owner and not claim.ids.isdisjoint(doubt)}:
        look = book.look(pod)
        if look and not all(h.ids.isdisjoint(doubt) for h in look.holdings):
            text = f"{resource}: kubelet offers units that pod {pod} still holds, and no others are free"
            raise Refusal(Reason.STILL_HELD, f"{text}; try again when a pod has ended")
    holders = ", ".join(sorted({str(claim.owner) for claim in claims.doubted if not claim.ids.isdisjoint(doubt)}))
    text = f"{resource}: kubelet offers {len(doubt)} units again that {holders or 'a container'} got a moment ago"
    return f"{text}, and no others are free; if that container still runs, they are held twice"
