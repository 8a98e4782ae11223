"""How containers use a ResourceClaim. Only the pods show it: kubelet names the claim, and no container of it."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuagent.domain.dra.containers.environments import environments
from gpuagent.domain.dra.containers.union import together
from gpuagent.domain.dra.containers.uses import claim_uses, requests_of
from gpuagent.domain.dra.prepare import reserved_for
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.isolation_layers import NONE

Json = Mapping[str, Any]


def users_of(claim: Json, pods: Iterable[Pod]) -> list[Pod]:
    """Those of the pods that have not ended and that the claim is reserved for."""
    uids = reserved_for(claim)
    return [pod for pod in pods if pod.uid in uids and not pod.ended]


def check_users(resource_claim: Json, claim: PreparedClaim, others: Iterable[PreparedClaim], pods: Pods) -> None:
    """Check that the pods show how containers use the claim, if the answer to kubelet depends on that.

    Args:
        resource_claim: the ResourceClaim.
        claim: the same, with the isolation that it gets.
        others: that are prepared.
        pods: of the node.

    Raises:
        Refusal: they do not, with `Reason.NOT_READY` if they may soon.
    """
    if not _depends_on_users(claim, others):
        return
    uids = reserved_for(resource_claim)
    users = users_of(resource_claim, pods.seen)
    has_seen_all = bool(uids) and len(users) == len(uids)
    problem = ""
    if not pods.known and not has_seen_all:
        problem = "the agent has not read the pods of the node yet"
    elif uids and not users:
        problem = "the agent has not seen the pod of the claim yet"
    if problem:
        text = f"{problem}, and only pods show what else a container of the claim uses: kubelet tries again"
        raise Refusal(Reason.NOT_READY, text)
    for pod in users:
        if pod.claims_left_out:
            text = (
                f"pod {pod.name} has too many containers that use claims, and some of them use several: "
                "give each container one claim"
            )
            raise Refusal(Reason.MIXED_RESOURCES, text)


def _depends_on_users(claim: PreparedClaim, others: Iterable[PreparedClaim]) -> bool:
    """Whether containers may get only a part of the claim, or more than the claim."""
    if claim.layer != NONE:
        return True
    has_several_requests = len(requests_of(claim)) > 1
    # A container may use another claim as well, and has one environment for both.
    return has_several_requests or any(
        other.namespace == claim.namespace and other.uid != claim.uid for other in others
    )


def check_uses(
    resource_claim: Json, claim: PreparedClaim, others: Iterable[PreparedClaim], pods: Pods, coming: Collection[str]
) -> None:
    """Check that each container can get all that it names. Arguments as `check_users`, `claim_uses`. Raises Refusal."""
    of_others = [other for other in others if other.uid != claim.uid]
    uses = claim_uses(claim, reserved_for(resource_claim), of_others, pods.seen, coming)
    environments(uses, claim.name)
    for use in uses.users(claim.name):
        together(uses.gpus(uses.union(use.named)))
