"""Kubelet's own account of who holds what, and the questions that it settles."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuagent.domain.admission import Candidate, at_book, beginning, may_ask
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.honour import alike, own_role, wish
from gpuagent.domain.pods import CheckpointEntry, Holding, Pod, PodName, requests


@dataclass(frozen=True, slots=True)
class Look:
    """A pod that kubelet knows, and what it holds now."""

    pod: PodName
    holdings: Sequence[Holding] = ()


@dataclass(frozen=True, slots=True)
class Allocated:
    """Everything held: by pod-resources, and by the checkpoint, which alone has ordinary init containers."""

    holdings: tuple[Holding, ...]
    checkpoint: tuple[CheckpointEntry, ...] = ()


Ask = Callable[[Collection[PodName]], Sequence[Look] | None]
"""Asks kubelet for pods, as `Book.look` does."""


class Book(Protocol):
    """Kubelet's own account of who holds what (pod-resources)."""

    def look(self, pods: Collection[PodName], *, listing: bool) -> Sequence[Look] | None:
        """Those of the pods that kubelet knows, also during their admission; None if it does not say.

        Args:
            pods: their names.
            listing: kubelet may be asked for its whole list. It loses what it has only reserved for this call, then.
        """

    def read(self, timeout_s: float) -> Allocated | None:
        """Everything held, read after this call began; None if it took too long or kubelet cannot be asked."""


def settled(ask: Ask, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Where a call may go on with one container or begin another, kubelet's book tells which."""
    going_on = [c for c in candidates if c.first]
    if not going_on or len(going_on) == len(candidates):
        return candidates
    for candidate in going_on:
        held = holds_first(ask, candidate)
        if held is None:
            # On the GPU of what was given last, both readings are served; anywhere else, only one.
            return tuple(sorted(candidates, key=lambda c: c.first is None))
        if held:
            return (candidate,)
    return tuple(c for c in candidates if not c.first)


def holds_first(ask: Ask, candidate: Candidate) -> bool | None:
    """Whether kubelet's book gives the candidate what it was given first; None if kubelet does not say."""
    looks = ask([candidate.pod.name])
    first = candidate.first
    if looks is None or first is None:
        return None
    return any(h.owner == candidate.owner and h.ids == first.ids for look in looks for h in look.holdings)


def told_apart(
    ask: Ask, candidates: tuple[Candidate, ...], resource: str, size: int, claims: Claims
) -> tuple[Candidate, ...] | None:
    """Where it is not all the same who asks for `size` of `resource`, kubelet's book tells which pod it is.

    Kubelet hears of pods one by one and admits each before it hears of the next. So the asker is the one that it knows
    and that has nothing yet, or lacks this. None where that is no pod that we have seen; all candidates where kubelet
    cannot say.

    It is not the same on a node where schedulers choose GPUs: the asker may be one that our own watch shows late.
    """
    others = candidates[1:]
    if candidates and all(candidate.first for candidate in candidates):
        # Kubelet may have given that container up, and begun with another.
        begun = beginning(resource, size, claims)
        others += tuple(c for c in begun if own_role(c, resource, claims) is not None)
    every = (*candidates[:1], *others)
    same = len({wish(candidate, resource, claims) for candidate in every}) < 2 and alike(candidates, claims)
    if same and not claims.snapshot.decided_asks:
        return candidates
    for pods in _likely_first(every, resource, size, claims):
        looks = ask(pods.keys()) if pods else ()
        if looks is None:
            return candidates
        known = [(pod, look) for pod in pods.values() for look in looks if look.pod == pod.name]
        may_be = [c for pod, look in known for c in _as_told(pod, look, every, (resource, size), claims)]
        if may_be:
            # Pods that kubelet has rejected linger for a moment, with nothing: the last it can have heard of asks.
            asker = may_be[0] if may_be[0].trail else may_be[-1]
            return tuple(candidate for candidate in may_be if candidate.pod.name == asker.pod.name)
    return None


def _likely_first(
    candidates: Collection[Candidate], resource: str, size: int, claims: Claims
) -> Iterator[dict[PodName, Pod]]:
    """Pods of the candidates, and then, gone through only where it is none of those, all others that may be asking."""
    likely = {candidate.pod.name: candidate.pod for candidate in candidates}
    yield likely
    asking = (pod for pod, _ in requests(claims.snapshot.pods, resource, size) if may_ask(pod, claims))
    yield {pod.name: pod for pod in asking if pod.name not in likely}


def _as_told(
    pod: Pod, look: Look, candidates: Collection[Candidate], asked: tuple[str, int], claims: Claims
) -> list[Candidate]:
    """The pod's containers that may be asking, by what kubelet's book gives it: our own account of it may be wrong."""
    held = {i for holding in look.holdings if holding.resource in claims.snapshot.sold for i in holding.ids}
    ours = [c for c in candidates if c.pod is pod and c.lasting <= held <= c.given]
    return ours or list(at_book(pod, look.holdings, *asked, claims))


def asked_by(ask: Ask, pods: Iterable[Pod], resource: str, size: int, claims: Claims) -> bool:
    """Whether kubelet knows one of the pods that may ask for `size` of `resource`."""
    named = {pod.name: pod for pod in pods if any(c.may_want(resource, size) for c in pod.containers)}
    looks = ask(named.keys()) if named else ()
    return any(any(at_book(named[look.pod], look.holdings, resource, size, claims)) for look in looks or ())


def check_doubt(ask: Ask, resource: str, doubt: Collection[str], claims: Claims) -> str:
    """Says that kubelet offers `doubt`, given out a moment ago, and nothing else.

    Raises:
        Refusal: its own book gives them to a pod.
    """
    for pod in {claim.owner.pod for claim in claims.doubted if claim.owner and not claim.ids.isdisjoint(doubt)}:
        if not all(h.ids.isdisjoint(doubt) for look in ask([pod]) or () for h in look.holdings):
            text = f"{resource}: kubelet offers units that pod {pod} still holds, and no others are free"
            raise Refusal(Reason.STILL_HELD, f"{text}; try again when a pod has ended")
    holders = ", ".join(sorted({str(claim.owner) for claim in claims.doubted if not claim.ids.isdisjoint(doubt)}))
    text = f"{resource}: kubelet offers {len(doubt)} units again that {holders or 'a container'} got a moment ago"
    return f"{text}, and no others are free; if that container still runs, they are held twice"
