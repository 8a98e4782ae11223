"""Schedulers' decisions on shares, for one request of kubelet's: where it is to go, and why not."""

from dataclasses import dataclass

from gpuagent.domain.admission import Candidate
from gpuagent.domain.annotations import V1_GPU
from gpuagent.domain.claims import Claims
from gpuagent.domain.decision import Decision, Ignored
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.pods import Owner
from gpuagent.domain.promised import Role
from gpuagent.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Turn:
    """Where one container is to go by a scheduler's decision. `said` names GPUs and annotation, for messages."""

    role: Role
    said: str


def turn(who: Candidate, resource: str, claims: Claims) -> Turn | None:
    """The GPUs that the container is to get; None where no scheduler chose any, or where they are to be chosen anew.

    Raises:
        Refusal: this node can never keep the decision.
    """
    decision = claims.snapshot.decisions.get(who.pod.name)
    if not isinstance(decision, Decision):
        return None
    if decision.unmet:
        if not claims.snapshot.policy.keep_decisions:
            return None
        raise Refusal(
            Reason.GPU_DECISION, f"{resource}: pod {who.pod.name}: annotation {decision.key} {decision.unmet}"
        )
    name = decision.follows.get((who.container.name, resource), who.container.name)
    ask = claims.snapshot.decided_asks.get(Owner(who.pod.name, name))
    if ask is None or resource not in ask.units:
        return None
    role = claims.roles.get(ask.owner, ask.role)
    if role is None:
        return None
    gpus = " and ".join(sorted(claims.snapshot.name_of(uuid) for uuid in role))
    return Turn(role, f"a scheduler chose {gpus} for it (annotation {decision.key})")


def own_role(who: Candidate, resource: str, claims: Claims) -> Role | str | None:
    """What tells candidates apart: the GPUs that each is to get, or why it cannot get any."""
    if who.first:
        return Role(who.first.uuids)
    try:
        found = turn(who, resource, claims)
    except Refusal as refusal:
        return refusal.message
    return found.role if found else None


def near(who: Candidate, snapshot: Snapshot) -> frozenset[str]:
    """UUIDs of the GPUs that a scheduler chose for other containers of the pod: a sidecar goes there if it fits."""
    decision = snapshot.decisions.get(who.pod.name)
    return decision.uuids if isinstance(decision, Decision) else frozenset()


def ignored(who: Candidate, snapshot: Snapshot) -> str | None:
    """Why annotations of the pod that look like a decision are none; None where that is not so."""
    decision = snapshot.decisions.get(who.pod.name)
    if not isinstance(decision, Ignored):
        return None
    text = f"annotation {decision.why}; the GPU of pod {who.pod.name} is chosen as if the annotation were not there"
    return f"{text}. Do not copy {V1_GPU} and its like into templates: a scheduler writes them"
