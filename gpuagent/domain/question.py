"""Kubelet's question, which of these ids a container should get, with everything known besides put to it."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.domain.admission import Candidate, gpu_count
from gpuagent.domain.checks import most_sharers
from gpuagent.domain.choose import Request
from gpuagent.domain.claims import Claims
from gpuagent.domain.mode import GPU_CORE


@dataclass(frozen=True, slots=True)
class Question:
    """One GetPreferredAllocation: `free` is GPU UUID to the ids offered there, `size` counts `must_include` too."""

    resource: str
    size: int
    free: Mapping[str, frozenset[str]]
    must_include: frozenset[str]


def request_for(question: Question, candidates: tuple[Candidate, ...], claims: Claims) -> Request:
    """The request to choose for: the first candidate is taken for the asker, room is kept for all of them.

    Raises:
        Refusal: the asker's label `aliyun.com/gpu-count` cannot be honoured.
    """
    snap, resource = claims.snapshot, question.resource
    kind = snap.sold[resource]
    who = candidates[0] if candidates else None
    first = who.first if who else claims.ledger.awaiting_partner(resource, claims.now)
    need = max((c.other(resource, snap.sold) for c in candidates), default=0)
    return Request(
        resource=resource,
        size=question.size,
        unit="" if kind.is_whole else "%" if resource == GPU_CORE else snap.policy.unit.phrase,
        free=question.free,
        order=snap.indexes,
        must_include=question.must_include,
        placement=snap.placement,
        doubtful=frozenset[str]().union(*(claim.ids for claim in claims.doubted)) - question.must_include,
        gpu_count=gpu_count(who.pod, resource, question.size, snap.sold) if who else 1,
        room=max((c.room(resource) for c in candidates), default=0),
        pinned=who.pinned if who else (),
        short=() if first else claims.short_gpus(resource, need),
        only=first.uuids if first else None,
        leaving={block.gpu.uuid for block in snap.lists.get(resource, ()) if not block.healthy},
        full=() if kind.is_whole else claims.full_gpus(who.owner if who else None),
        most=most_sharers(snap),
        asker=str(who.owner if who else "this container"),
    )
