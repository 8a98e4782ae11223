"""Schedulers' decisions on shares, for one request of kubelet's: where it is to go, and why not."""

from collections.abc import Collection
from dataclasses import dataclass

from gpuagent.domain.admission import Candidate
from gpuagent.domain.annotations import V1_GPU
from gpuagent.domain.claims import Claims
from gpuagent.domain.decision import Decision, Ignored
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.mode import GROUP_ANNOTATION, JOB_LABEL, VISIBLE_ANNOTATION
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
    role = _role(who, resource, decision, claims)
    if role is None:
        return None
    gpus = " and ".join(sorted(claims.snapshot.name_of(uuid) for uuid in role))
    return Turn(role, f"a scheduler chose {gpus} for it (annotation {decision.key})")


def turn_of_size(resource: str, size: int, claims: Claims) -> Turn | None:
    """Where somebody unknown is to go: a pod that has all it may begin with was taken for this one's before."""
    role = claims.role_of_size(resource, size)
    return Turn(role, "a scheduler chose it for a pod of this size") if role else None


def own_role(who: Candidate, resource: str, claims: Claims) -> Role | str | None:
    """The GPUs that a scheduler chose for it, or why it cannot get any."""
    if who.first:
        return Role(who.first.uuids)
    decision = claims.snapshot.decisions.get(who.pod.name)
    if not isinstance(decision, Decision):
        return None
    return decision.unmet or _role(who, resource, decision, claims)


def wish(who: Candidate, resource: str, claims: Claims) -> tuple[object, ...]:
    """What the choice of its GPUs goes by, besides the amount."""
    pod = who.pod
    named = (pod.annotations.get(key) for key in (GROUP_ANNOTATION, VISIBLE_ANNOTATION))
    job = pod.labels.get(JOB_LABEL)
    return own_role(who, resource, claims), pod.gpu_count_label, *named, job and (pod.name.namespace, job)


def alike(candidates: Collection[Candidate], claims: Claims) -> bool:
    """Whether it is all the same which of them asks: no promise is open, or their pods want the same from here on."""
    return not claims.roles or len({_to_come(who, claims) for who in candidates}) < 2


def _to_come(who: Candidate, claims: Claims) -> tuple[object, ...]:
    """What the containers after this one ask for, and the GPUs that they are to get."""
    rest = who.pod.containers[who.pod.containers.index(who.container) + 1 :]
    asking = ((c, tuple(c.limits.get(name, 0) for name in claims.snapshot.sold)) for c in rest)
    return tuple((c.init, sizes, claims.roles.get(Owner(who.pod.name, c.name))) for c, sizes in asking if any(sizes))


def not_kept(who: Candidate, resource: str, chosen: Collection[str], claims: Claims) -> str | None:
    """Says that the container got other GPUs than a scheduler chose, where that is so; `chosen` are device ids."""
    decision = claims.snapshot.decisions.get(who.pod.name)
    if claims.snapshot.policy.keep_decisions or who.first or not isinstance(decision, Decision):
        return None
    uuids = {claims.snapshot.units[device_id] for device_id in chosen}
    if decision.unmet:
        why = f"annotation {decision.key} {decision.unmet}"
    elif (found := turn(who, resource, claims)) and found.role != uuids:
        why = f"{found.said}, which is full or gone"
    else:
        return None
    names = " and ".join(sorted(map(claims.snapshot.name_of, uuids)))
    return f"{resource}: {who.owner} gets {names}: {why}, and --decided-gpu-full is choose"


def _role(who: Candidate, resource: str, decision: Decision, claims: Claims) -> Role | None:
    name = decision.follows.get((who.container.name, resource), who.container.name)
    ask = claims.snapshot.decided_asks.get(Owner(who.pod.name, name))
    return claims.roles.get(ask.owner, ask.role) if ask and resource in ask.units else None


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
