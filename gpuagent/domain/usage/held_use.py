"""One reading of what each container holds of each GPU and uses of it, from the driver's samples and the shares."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.mode import PROMISES, Isolates, Mode
from gpuagent.domain.state import State
from gpuagent.domain.usage.by_container import GpuSample, Samples, Use, Used
from gpuagent.domain.usage.guarantee import Share
from gpuagent.domain.usage.over_time import HeldUse, OnGpu


def held_uses(state: State, shares: Mapping[OnGpu, Share], use: Use, samples: Samples) -> dict[OnGpu, HeldUse]:
    """What is held and used now, of every container that holds a GPU.

    Args:
        state: has the pods.
        shares: what each container holds.
        use: what each container uses.
        samples: what `use` was made from.
    """
    uids = {pod.name: pod.uid for pod in state.pods.seen}
    holders = Counter(uuid for uuid, _ in shares)
    users = _users_of_claims(shares)
    uses: dict[OnGpu, HeldUse] = {}
    for (uuid, owner), share in shares.items():
        used = Used(None, None)
        sample = samples.by_uuid.get(uuid)
        # The last sample before the GPU stopped to answer says nothing about now.
        if sample is not None and uuid not in samples.failing:
            # Without the host's processes it is not known which container uses what.
            used = use.by_container.get((uuid, owner), used)
            if used.busy is None:
                used = replace(used, busy=_busy_of_gpu(sample, holders[uuid]))
        uses[uuid, owner] = HeldUse(
            pod_uid=uids.get(owner.pod, ""),
            held_bytes=_held_bytes(share, users),
            used_bytes=used.memory_bytes,
            busy=used.busy,
            limited=_is_limited(share),
        )
    return uses


def _is_limited(share: Share) -> bool:
    """Whether the container cannot get more memory than its share."""
    if share.mode is None:
        return False
    if share.claims:
        has_whole_gpu = all(part.mode is Mode.DEFAULT for part in share.of_claims.values())
        return has_whole_gpu or all(claim.layer != NONE for claim in share.claims)
    is_whole = share.mode in (Mode.DEFAULT, Mode.TOPOLOGY)
    return is_whole or Isolates.MEMORY in PROMISES[share.mode]


def _busy_of_gpu(sample: GpuSample, holders: int) -> float | None:
    """What follows for a container from the work of the whole GPU; None if nothing does.

    Many drivers report the work of MPS clients for their server only. A GPU that does not work at all works for none of
    its containers, and the work of a GPU that one container holds alone is that container's.
    """
    if sample.busy == 0 or holders == 1:
        return sample.busy
    return None


def _users_of_claims(shares: Mapping[OnGpu, Share]) -> Counter[tuple[str, int]]:
    """How many containers have each share of a claim together."""
    users: Counter[tuple[str, int]] = Counter()
    for share in shares.values():
        users.update(share.of_claims.keys())
    return users


def _held_bytes(share: Share, users: Mapping[tuple[str, int], int]) -> int | None:
    if share.mode is None:
        return None
    if not share.of_claims:
        return share.taken_bytes
    return sum(part.taken_bytes // users[key] for key, part in share.of_claims.items())
