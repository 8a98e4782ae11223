"""Reading kubelet's book: which GPU a held device id is on, and under which mode it was sold."""

from collections.abc import Iterable, Mapping

from gpuagent.domain.gpu import Gpu
from gpuagent.domain.mode import Mode
from gpuagent.domain.pods import Holding
from gpuagent.domain.units import parse_id

FOREIGN = "foreign"
"""Stands for a mode where a unit was sold by another device plugin (NVIDIA's own, the old gpushare plugin)."""


def modes_by_gpu(holding: Holding, gpus: Mapping[str, Gpu]) -> dict[str, Mode | str]:
    """GPU UUID to the mode (or `FOREIGN`) under which this holding has a unit of it.

    Ids of other plugins count when they name a GPU of ours: they carry the UUID (`GPU-…`, `GPU-…::2`,
    `GPU-…-_-7`), or are NVML indexes of `nvidia.com/gpu`. Anything else, a network card say, is no GPU.
    """
    by_key = {gpu.key: gpu.uuid for gpu in gpus.values()}
    found: dict[str, Mode | str] = {}
    for device_id in holding.ids:
        unit = parse_id(device_id)
        if unit is not None and unit.gpu_key in by_key:
            found[by_key[unit.gpu_key]] = unit.kind.mode
        elif unit is None:
            for gpu in gpus.values():
                by_index = holding.resource == "nvidia.com/gpu" and device_id == str(gpu.index)
                if gpu.uuid in device_id or by_index:
                    found[gpu.uuid] = FOREIGN
    return found


def held_otherwise(holdings: Iterable[Holding], gpus: Mapping[str, Gpu], mode: Mode) -> dict[str, list[Holding]]:
    """GPU UUID to the holdings on it that were sold under another mode than `mode`, or by another plugin."""
    blocked: dict[str, list[Holding]] = {}
    for holding in holdings:
        for uuid, sold_in in modes_by_gpu(holding, gpus).items():
            if sold_in != mode:
                blocked.setdefault(uuid, []).append(holding)
    return blocked
