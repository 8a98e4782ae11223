"""The memory shares of pods by their ResourceClaims."""

from collections.abc import Iterable

from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.memory_shares import PodShares, joined_by_pod
from gpuagent.domain.sharing.units import MIB


def claim_shares(claims: Iterable[PreparedClaim], pods: Iterable[Pod]) -> dict[str, PodShares]:
    """UID to the shares of each pod that has some of these claims.

    Whole GPUs and monitors have no share. A claim counts once for a pod, also if several of its containers use it.
    """
    by_name = {(claim.namespace, claim.name): claim for claim in claims}
    shares: dict[str, PodShares] = {}
    for pod in pods:
        if pod.ended:
            continue
        for name, containers in pod.claims.items():
            claim = by_name.get((pod.name.namespace, name))
            if claim is not None:
                of_claim = {pod.uid: _shares_of(claim, pod, containers)}
                shares = joined_by_pod(shares, of_claim)
    return {uid: of_pod for uid, of_pod in shares.items() if of_pod.total}


def _shares_of(claim: PreparedClaim, pod: Pod, containers: Iterable[str]) -> PodShares:
    """The shares that a pod has of one claim."""
    total: dict[str, int] = {}
    of_containers: dict[str, dict[str, int]] = {}
    pooled: set[str] = set()
    for gpu in claim.used:
        if gpu.unlimited:
            continue
        amount = gpu.memory_mib * MIB
        total[gpu.uuid] = total.get(gpu.uuid, 0) + amount
        users = [container for container in containers if _uses(pod, claim, container, gpu.request)]
        if len(users) > 1:
            pooled.add(gpu.uuid)
        for container in users:
            own = of_containers.setdefault(container, {})
            own[gpu.uuid] = own.get(gpu.uuid, 0) + amount
    return PodShares(total, of_containers, frozenset(pooled))


def _uses(pod: Pod, claim: PreparedClaim, container: str, request: str) -> bool:
    """Whether a container uses a request of a claim. Without requests of its own, it uses all of them."""
    requests = pod.claim_requests.get((claim.name, container))
    return not requests or request in requests
