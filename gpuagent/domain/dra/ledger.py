"""What prepared claims have of each GPU, and whether one more claim fits beside them.

The scheduler allots the GPUs by the claims at the API server. A claim that is gone there may still be prepared: its
pod was deleted by force, and its containers are ending. So the agent compares with what it has prepared.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpuagent.domain.dra.isolation import layer_mode
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU
from gpuagent.domain.state import State

MOST_NAMES = 3
"""Claims that a refusal names."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A GPU of a claim that other prepared claims leave no room on.

    Attributes:
        message: what is needed and what the others have, with their names.
        others: the claims that use the GPU.
    """

    message: str
    others: tuple[PreparedClaim, ...]


def most_sharers(state: State) -> int:
    """How many claims may share one GPU."""
    of_layer = state.layer_of(layer_mode(state)).max_sharers
    return min(filter(None, (state.policy.max_pods_per_gpu, of_layer)))


def conflict(
    claim: PreparedClaim, prepared: Iterable[PreparedClaim], gpus: Mapping[str, Gpu], sharers: int
) -> Conflict | None:
    """The first GPU that has no room for the claim; None if it fits.

    Args:
        claim: to be prepared.
        prepared: the claims that are prepared; the claim itself does not count.
        gpus: of the node, by UUID.
        sharers: how many claims may share one GPU.
    """
    others = [other for other in prepared if other.uid != claim.uid]
    for wanted in claim.used:
        users = [other for other in others if _parts(other, wanted.uuid)]
        gpu = gpus.get(wanted.uuid)
        if not users or gpu is None:
            continue
        shortage = _shortage(wanted, users, gpu, sharers)
        if shortage:
            return Conflict(f"GPU {gpu.index} {shortage}{_advice(users)}", tuple(users))
    return None


def is_same(claim: PreparedClaim, known: PreparedClaim | None) -> bool:
    """Whether the claim is prepared with the same parts of the same GPUs: it keeps them, whatever others have."""
    return known is not None and _amounts(claim) == _amounts(known)


def in_use(claims: Iterable[PreparedClaim], pods: Collection[Pod]) -> bool:
    """Whether a living pod uses one of the claims, so that kubelet does not unprepare it soon."""
    living = [pod for pod in pods if not (pod.ended or pod.deleting)]
    used = {(pod.name.namespace, name) for pod in living for name in pod.claims}
    return any((claim.namespace, claim.name) in used for claim in claims)


def _amounts(claim: PreparedClaim) -> set[tuple[str, int, int, bool]]:
    return {(gpu.uuid, gpu.memory_mib, gpu.cores, gpu.whole) for gpu in claim.used}


def _parts(claim: PreparedClaim, uuid: str) -> list[ClaimedGpu]:
    return [gpu for gpu in claim.used if gpu.uuid == uuid]


def _shortage(wanted: ClaimedGpu, users: list[PreparedClaim], gpu: Gpu, sharers: int) -> str:
    """What the GPU lacks for the claim; empty if nothing."""
    parts = [part for user in users for part in _parts(user, gpu.uuid)]
    if any(part.whole for part in parts):
        return "is still prepared as a whole GPU"
    if wanted.whole:
        return "is needed whole, and a part of it is still prepared"
    used_mib = sum(part.memory_mib for part in parts)
    if used_mib + wanted.memory_mib > gpu.memory_mib:
        free_mib = max(0, gpu.memory_mib - used_mib)
        return (
            f"has {_gib(free_mib)} of memory free of {_gib(gpu.memory_mib)}, "
            f"and the claim needs {_gib(wanted.memory_mib)}: the rest is prepared"
        )
    used_cores = sum(part.cores for part in parts)
    if used_cores + wanted.cores > CORE_PERCENT_PER_GPU:
        free_cores = max(0, CORE_PERCENT_PER_GPU - used_cores)
        return f"has {free_cores} % of compute free, and the claim needs {wanted.cores} %: the rest is prepared"
    if len(parts) + 1 > sharers:
        return f"takes {sharers} shares at most, and {len(parts)} are prepared"
    return ""


def _advice(users: list[PreparedClaim]) -> str:
    names = ", ".join(sorted(str(user) for user in users)[:MOST_NAMES])
    if len(users) > MOST_NAMES:
        names += f" and {len(users) - MOST_NAMES} more"
    subject = f"claim {names}" if len(users) == 1 else f"claims {names}"
    return f" for {subject}. The claim is prepared when that ends: look for the pods that use {subject}"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.4g} GiB"
