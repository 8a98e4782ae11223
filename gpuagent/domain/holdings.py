"""Reading kubelet's book: which GPU a held device id is on, and under which mode it was sold."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from gpuagent.domain.gpu import Gpu
from gpuagent.domain.mode import Mode
from gpuagent.domain.pods import Holding, Owner
from gpuagent.domain.units import parse_id

NVIDIA_GPU = "nvidia.com/gpu"
"""Resource of NVIDIA's own device plugin."""

FOREIGN = "foreign"
"""Stands for a mode where a unit was sold by another device plugin (NVIDIA's own, the old gpushare plugin)."""


def located(holding: Holding, gpus: Mapping[str, Gpu]) -> Iterator[tuple[str, Mode | str]]:
    """GPU UUID and mode (or `FOREIGN`) of each device id of `holding` that is on one of `gpus`.

    Ids of other plugins count when they name a GPU of ours: they carry the UUID (`GPU-…`, `GPU-…::2`,
    `GPU-…-_-7`), or are NVML indexes of `nvidia.com/gpu`. Anything else, a network card say, is no GPU.
    """
    by_key = {gpu.key: gpu.uuid for gpu in gpus.values()}
    for device_id in holding.ids:
        unit = parse_id(device_id)
        if unit is not None:
            if unit.gpu_key in by_key:
                yield by_key[unit.gpu_key], unit.kind.mode
            continue
        for uuid in foreign(holding.resource, device_id, gpus):
            yield uuid, FOREIGN


def foreign(resource: str, device_id: str, gpus: Mapping[str, Gpu]) -> Iterator[str]:
    """UUIDs of the GPUs that a device id of another plugin names."""
    for gpu in gpus.values():
        if gpu.uuid in device_id or (resource == NVIDIA_GPU and device_id == str(gpu.index)):
            yield gpu.uuid


def held_otherwise(
    holdings: Iterable[Holding], gpus: Mapping[str, Gpu], mode: Mode, *, exclusive: bool
) -> dict[str, list[Holding]]:
    """GPU UUID to the holdings on it that were sold under another mode than `mode`, or by another plugin.

    `exclusive`: mode `default` is this agent's to serve; if it is not, other plugins' pods are as they should be there.
    """
    own = {mode, FOREIGN} if mode is Mode.DEFAULT and not exclusive else {mode}
    blocked: dict[str, list[Holding]] = {}
    for holding in holdings:
        for uuid in dict.fromkeys(uuid for uuid, sold_in in located(holding, gpus) if sold_in not in own):
            blocked.setdefault(uuid, []).append(holding)
    return blocked


def holder(resource: str, ids: frozenset[str], holdings: Collection[Holding]) -> Owner | None:
    """Who holds `ids`; for an init container, which kubelet does not list, the pod whose container reuses them."""
    reusers = [h for h in holdings if h.resource == resource and h.ids & ids]
    exact = [h.owner for h in reusers if h.ids == ids]
    if exact:
        return exact[0]
    pods = {h.owner.pod for h in reusers}
    return Owner(pods.pop(), "") if len(pods) == 1 else None
