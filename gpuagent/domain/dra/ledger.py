"""What prepared claims have of each GPU, and whether one more claim fits beside them.

The scheduler allots the GPUs by the claims at the API server. A claim that is gone there may still be prepared: its
pod was deleted by force, and its containers are ending. So the agent compares with what it has prepared.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpuagent.domain.dra.isolation import layer_mode
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU
from gpuagent.domain.state import State
from gpuagent.system.printable import first_of

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
    limits = [state.policy.max_pods_per_gpu]
    layer = state.layer_of(layer_mode(state))
    if layer.max_sharers:
        limits.append(layer.max_sharers)
    return min(limits)


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
    for uuid in dict.fromkeys(wanted.uuid for wanted in claim.used):
        users = [other for other in others if _parts(other, uuid)]
        gpu = gpus.get(uuid)
        if not users or gpu is None:
            continue  # no other claim has it, or it is not on the node any more
        shortage = _shortage(_parts(claim, uuid), users, gpu, sharers)
        if shortage:
            advice = _advice(users)
            return Conflict(f"GPU {gpu.index} {shortage}{advice}", tuple(users))
    return None


def is_same(claim: PreparedClaim, known: PreparedClaim | None) -> bool:
    """Whether the claim is prepared with the same parts of the same GPUs: it keeps them, whatever others have."""
    if known is None:
        return False
    return _amounts(claim) == _amounts(known)


def in_use(claims: Iterable[PreparedClaim], pods: Collection[Pod]) -> bool:
    """Whether a living pod uses one of the claims, so that kubelet does not unprepare it soon."""
    names = {(claim.namespace, claim.name) for claim in claims}
    for pod in pods:
        if pod.ended or pod.deleting:
            continue
        used = {(pod.name.namespace, name) for name in pod.claims}
        if used & names:
            return True
    return False


def _amounts(claim: PreparedClaim) -> Counter[tuple[str, int, int, bool]]:
    """What the claim has of each GPU."""
    return Counter((gpu.uuid, gpu.memory_mib, gpu.cores, gpu.whole) for gpu in claim.used)


def _parts(claim: PreparedClaim, uuid: str) -> list[ClaimedGpu]:
    """The claim's parts of a GPU."""
    return [gpu for gpu in claim.used if gpu.uuid == uuid]


def _shortage(wanted: list[ClaimedGpu], users: list[PreparedClaim], gpu: Gpu, sharers: int) -> str:
    """What the GPU lacks for these shares of it; empty if nothing."""
    parts: list[ClaimedGpu] = []
    for user in users:
        parts.extend(_parts(user, gpu.uuid))
    if any(part.whole for part in parts):
        return "is still prepared as a whole GPU"
    if any(part.whole for part in wanted):
        return "is needed whole, and a part of it is still prepared"
    # Below 0 if an earlier agent has prepared claims that need more than the GPU has.
    free_mib = gpu.memory_mib - sum(part.memory_mib for part in parts)
    free_cores = CORE_PERCENT_PER_GPU - sum(part.cores for part in parts)
    wanted_mib = sum(part.memory_mib for part in wanted)
    wanted_cores = sum(part.cores for part in wanted)
    if wanted_mib > free_mib:
        free = _gib(max(0, free_mib))
        needed = _gib(wanted_mib)
        total = _gib(gpu.memory_mib)
        return f"has {free} of memory free of {total}, and the claim needs {needed}: the rest is prepared"
    if wanted_cores > free_cores:
        free_percent = max(0, free_cores)
        return f"has {free_percent} % of compute free, and the claim needs {wanted_cores} %: the rest is prepared"
    count = len(parts)
    if count + len(wanted) > sharers:
        return f"takes {sharers} shares at most, and {count} are prepared"
    return ""


def _advice(users: list[PreparedClaim]) -> str:
    all_names = sorted(str(user) for user in users)
    names = first_of(all_names, MOST_NAMES)
    noun = "claim" if len(users) == 1 else "claims"
    subject = f"{noun} {names}"
    return f" for {subject}. The claim is prepared when that ends: look for the pods that use {subject}"


def _gib(mib: int) -> str:
    gib = mib / 1024
    return f"{gib:.4g} GiB"
