"""The shares of pods and containers by their ResourceClaims."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.gpu_share import ALL_PERCENT, GpuShare
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.units import MIB, MemoryUnit


def claim_shares(claims: Iterable[PreparedClaim], pods: Iterable[Pod]) -> dict[str, PodShares]:
    """UID to the shares of each pod that has some of these claims.

    Whole GPUs and monitors have no share. A claim counts once for a pod, also if several of its containers use it.
    """
    by_name = {(claim.namespace, claim.name): claim for claim in claims}
    shares: dict[str, PodShares] = {}
    for pod in pods:
        of_pod = PodShares() if pod.ended else _of_pod(pod, by_name)
        # A pod that only watches GPUs, or has whole ones, is not limited.
        if of_pod.total:
            shares[pod.uid] = of_pod
    return shares


def _of_pod(pod: Pod, claims: Mapping[tuple[str, str], PreparedClaim]) -> PodShares:
    """The shares that a pod has of all its claims."""
    shares = PodShares()
    for name, containers in pod.claims.items():
        claim = claims.get((pod.name.namespace, name))
        if claim is not None:
            of_claim = _of_claim(claim, pod, containers)
            shares = shares.joined(of_claim)
    return shares


def _of_claim(claim: PreparedClaim, pod: Pod, containers: Collection[str]) -> PodShares:
    """The shares that a pod has of one claim."""
    total: Counter[str] = Counter()
    by_container: defaultdict[str, Counter[str]] = defaultdict(Counter)
    pooled: set[str] = set()
    for gpu in claim.used:
        if gpu.unlimited:
            continue
        amount = gpu.memory_mib * MIB
        total[gpu.uuid] += amount
        users = [container for container in containers if _uses(pod, claim, container, gpu.request)]
        for container in users:
            by_container[container][gpu.uuid] += amount
        if len(users) > 1:
            pooled.add(gpu.uuid)
    return PodShares(total, by_container, frozenset(pooled), of_claims=True)


def _uses(pod: Pod, claim: PreparedClaim, container: str, request: str) -> bool:
    """Whether a container uses a request of a claim. Without requests of its own, it uses all of them."""
    requests = pod.claim_requests.get((claim.name, container))
    return not requests or request in requests


def claimed_shares(
    claim: PreparedClaim,
    gpus: Mapping[str, Gpu],
    unit: MemoryUnit,
    *,
    limits_compute: bool,
) -> dict[str, GpuShare]:
    """GPU UUID to what a container with this claim may use.

    Args:
        claim: the claim.
        gpus: of the node, by UUID.
        unit: of memory.
        limits_compute: claims are limited in compute, too.
    """
    shares = {}
    for claimed in claim.used:
        gpu = gpus.get(claimed.uuid)
        if gpu is None:
            continue
        memory_mib = gpu.memory_mib
        if not claimed.unlimited:
            # As for a container with so many units, to which the rest that makes no whole unit is spread.
            units = claimed.memory_mib // unit.mib
            of_gpu = gpu.memory_mib // unit.mib
            memory_mib = gpu.memory_mib * units // max(of_gpu, 1)
        has_percent = limits_compute and claimed.cores
        shares[gpu.uuid] = GpuShare(memory_mib, claimed.cores if has_percent else ALL_PERCENT)
    return shares
