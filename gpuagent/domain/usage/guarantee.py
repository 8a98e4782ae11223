"""Shares of containers on each GPU, in bytes and parts of its compute."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuagent.domain.deviceplugin.resize.resizing import most_in_force
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.holdings import foreign
from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, PROMISES, Isolates, Kind, Mode
from gpuagent.domain.sharing.units import MIB, MemoryUnit, units_of
from gpuagent.domain.state import State


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one container on one GPU.

    Attributes:
        memory_bytes: its memory limit; None without a limit, or if another device plugin assigned the GPU.
        compute: part of the GPU's compute that it may use, 0 to 1; None without a limit.
        mode: the mode of its units; None if another device plugin assigned the GPU. A whole GPU of a claim counts as
            one of mode `default`.
        of_claims: UID of a ResourceClaim and place of the GPU in it to the share of that; empty for a share by device
            ids. All containers that use the same request of a claim have one share together.
        claims: the ResourceClaims.
        lowered_from: bytes that kubelet allocated, if the limit was lowered since; other containers cannot get them.
    """

    memory_bytes: int | None
    compute: float | None
    mode: Mode | None
    of_claims: Mapping[tuple[str, int], "Share"] = field(default_factory=dict)
    claims: tuple[PreparedClaim, ...] = ()
    lowered_from: int | None = None

    @property
    def taken_bytes(self) -> int:
        """Memory that no other container can get for its sake."""
        return self.lowered_from or self.memory_bytes or 0


def shares(state: State) -> dict[tuple[str, ContainerRef], Share]:
    """GPU UUID and container to its share, for every container that holds devices or uses a claim."""
    shares_ = {}
    held = _held(state)
    resized = most_in_force(state)
    gpu_counts = Counter(owner for _, owner in held)
    for (uuid, owner), counts in held.items():
        gpu = state.gpus.by_uuid[uuid]
        share = _share(gpu, counts, state.policy.unit)
        if owner in resized:
            units = resized[owner] // gpu_counts[owner]
            share = _resized(share, gpu, counts, units, state.policy.unit)
        shares_[uuid, owner] = share
    return shares_ | _of_claims(state)


def _of_claims(state: State) -> dict[tuple[str, ContainerRef], Share]:
    """GPU UUID and container to its share by claims."""
    by_key: dict[tuple[str, ContainerRef], Share] = {}
    for claim in state.claims.prepared.values():
        for place, claimed in enumerate(claim.gpus):
            gpu = state.gpus.by_uuid.get(claimed.uuid)
            if gpu is None or claimed.admin:
                continue
            share = _claimed(claim, place, gpu, state.policy.unit)
            for owner, parts in state.claim_parts(claim, claimed.uuid).items():
                if claimed not in parts:
                    continue
                key = claimed.uuid, owner
                earlier = by_key.get(key)
                by_key[key] = share if earlier is None else _joined(earlier, share)
    return by_key


def _joined(first: Share, second: Share) -> Share:
    """Two shares of one GPU that a container has by claims."""
    compute = (first.compute or 0) + (second.compute or 0)
    return Share(
        memory_bytes=(first.memory_bytes or 0) + (second.memory_bytes or 0),
        compute=compute or None,
        mode=first.mode,
        of_claims={**first.of_claims, **second.of_claims},
        claims=tuple(dict.fromkeys((*first.claims, *second.claims))),
    )


def _claimed(claim: PreparedClaim, place: int, gpu: Gpu, unit: MemoryUnit) -> Share:
    """The share of one GPU of a claim."""
    claimed = claim.gpus[place]
    kind = Kind.MEMORY_SHARE if claim.layer == NONE else Kind.MEMORY_CGPU
    if claimed.whole:
        share = Share(_all_memory(gpu), 1.0, Mode.DEFAULT)
    else:
        memory = _claimed_limit(gpu, kind, claimed.memory_mib, unit)
        compute = claimed.cores / CORE_PERCENT_PER_GPU or None
        share = Share(memory, compute, Mode.DRA)
    return replace(share, of_claims={(claim.uid, place): share}, claims=(claim,))


def _claimed_limit(gpu: Gpu, kind: Kind, memory_mib: int, unit: MemoryUnit) -> int:
    """Bytes of a claim's share."""
    units, rest_mib = divmod(memory_mib, unit.mib)
    # The claim was prepared with another unit. Its memory is recorded, so it stays known.
    if rest_mib:
        return memory_mib * MIB
    return memory_limit(gpu, kind, units, unit)


def _held(state: State) -> Mapping[tuple[str, ContainerRef], "Counter[Kind | str]"]:
    """Units by kind; of other plugins by resource."""
    by_key = {gpu.key: uuid for uuid, gpu in state.gpus.by_uuid.items()}
    held: dict[tuple[str, ContainerRef], Counter[Kind | str]] = defaultdict(Counter)
    for holding in state.living_holdings:
        for unit, count in holding.units:
            uuid = by_key.get(unit.gpu_key)
            if uuid:
                held[uuid, holding.owner][unit.kind] += count
        for device_id in holding.foreign_ids:
            for uuid in foreign(holding, device_id, state.gpus.by_uuid):
                held[uuid, holding.owner][holding.resource] += 1
    return held


def _share(gpu: Gpu, counts: "Counter[Kind | str]", unit: MemoryUnit) -> Share:
    kinds = {kind: count for kind, count in counts.items() if isinstance(kind, Kind)}
    if not kinds:
        return Share(None, None, None)
    mode = next(iter(kinds)).mode
    if any(kind.is_whole for kind in kinds):
        return Share(_all_memory(gpu), 1.0, mode)
    memory_bytes = None
    percent = 0
    for kind, count in kinds.items():
        if not kind.is_memory:
            percent += count
        elif memory_bytes is None:
            memory_bytes = memory_limit(gpu, kind, count, unit)
    compute = percent / CORE_PERCENT_PER_GPU if percent else None
    return Share(memory_bytes, compute, mode)


def _resized(share: Share, gpu: Gpu, counts: "Counter[Kind | str]", units: int, unit: MemoryUnit) -> Share:
    """The share of a container whose memory limit was changed to that many units of the GPU."""
    for kind in counts:
        if isinstance(kind, Kind) and kind.is_memory and share.memory_bytes is not None:
            limit = memory_limit(gpu, kind, units, unit)
            lowered_from = share.memory_bytes if limit < share.memory_bytes else None
            return replace(share, memory_bytes=limit, lowered_from=lowered_from)
    return share


def _all_memory(gpu: Gpu) -> int | None:
    """Bytes of the GPU's memory; None if the driver does not report them."""
    return gpu.memory_mib * MIB or None


def memory_limit(gpu: Gpu, kind: Kind, count: int, unit: MemoryUnit) -> int:
    """Bytes of `count` units of GPU memory, at most those of the GPU.

    With memory isolation, a container gets its units' proportion of the whole GPU memory, so that no memory is left
    over. Without isolation, the limit is the requested amount.
    """
    limit_mib = count * unit.mib
    # A running container may have units of a GPU that has none now: the unit was raised above the GPU's memory, or the
    # driver no longer reports the memory.
    units = units_of(gpu, kind, unit)
    if units and Isolates.MEMORY in PROMISES[kind.mode]:
        limit_mib = gpu.memory_mib * count // units
    # After a change of the unit, the same units may be more than the GPU.
    if gpu.memory_mib:
        limit_mib = min(limit_mib, gpu.memory_mib)
    return limit_mib * MIB
