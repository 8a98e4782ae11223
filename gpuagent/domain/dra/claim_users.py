"""How containers use a ResourceClaim. Only the pods show it: kubelet names the claim, and no container of it."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuagent.domain.dra.prepare import ClaimedGpus, reserved_for
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.pods.json_values import mapping_at
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.isolation_layers import NONE

OF_LIMITS = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of the claims that the scheduler makes for the limits of pods. Any author of a claim can write it."""
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
    if not _depends_on_users(resource_claim, claim, others):
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
                f"pod {pod.name} has too many containers that use several claims, and a container can have one: "
                "give each container one claim"
            )
            raise Refusal(Reason.MIXED_RESOURCES, text)


def _depends_on_users(resource_claim: Json, claim: PreparedClaim, others: Iterable[PreparedClaim]) -> bool:
    """Whether another use of the claim could void limits, or give a container the GPUs of another one."""
    if claim.layer != NONE or _may_be_split(resource_claim, claim.gpus):
        return True
    # Its GPUs would void the limits of a share in the same container.
    return any(
        other.layer != NONE and other.namespace == claim.namespace and other.uid != claim.uid for other in others
    )


def _may_be_split(resource_claim: Json, gpus: ClaimedGpus) -> bool:
    """Whether a container may get some of the claim's GPUs only."""
    annotations = mapping_at(resource_claim, "metadata", "annotations")
    requests = {gpu.request for gpu in gpus}
    return annotations.get(OF_LIMITS) == "true" and len(requests) > 1


def check_alone(claim: PreparedClaim, others: Iterable[PreparedClaim], pods: Iterable[Pod]) -> None:
    """Check that no container uses the claim and another one. Raises Refusal."""
    namespace = claim.namespace
    of_namespace = [other for other in others if other.namespace == namespace]
    names = [other.name for other in of_namespace if other.name != claim.name]
    for pod in pods:
        if pod.name.namespace != namespace:
            continue
        containers = frozenset(pod.claims.get(claim.name, ()))
        for name in names:
            with_both = containers.intersection(pod.claims.get(name, ()))
            if with_both:
                text = (
                    f"container {min(with_both)} of pod {pod.name} has claim {name} as well, "
                    "and a container can have one: make one claim for both"
                )
                raise Refusal(Reason.MIXED_RESOURCES, text)


def container_parts(resource_claim: Json, claim: PreparedClaim, pods: Iterable[Pod]) -> tuple[ClaimedGpus, ...]:
    """The claim's GPUs, by those that a container gets together.

    The scheduler makes one claim for all GPUs in a pod's limits, and writes to the pod's status which container has
    which requests of it. A container that names a claim itself gets all of it.
    """
    groups: list[frozenset[str]] = []
    for pod in users_of(resource_claim, pods):
        for container in pod.claims.get(claim.name, ()):
            requests = pod.claim_requests.get((claim.name, container))
            if requests is None:
                return (claim.gpus,)
            groups = _joined(groups, requests)
    of_somebody = frozenset[str]().union(*groups)
    requests_of_nobody = frozenset(gpu.request for gpu in claim.gpus) - of_somebody
    parts = []
    for group in (*groups, requests_of_nobody):
        part = tuple([gpu for gpu in claim.gpus if gpu.request in group])
        if part:
            parts.append(part)
    return tuple(parts)


def _joined(groups: list[frozenset[str]], requests: frozenset[str]) -> list[frozenset[str]]:
    """The groups, with `requests` in one of them."""
    apart = [group for group in groups if group.isdisjoint(requests)]
    touched = [group for group in groups if not group.isdisjoint(requests)]
    return [*apart, requests.union(*touched)]
