"""The page /hour: the use of each held GPU in the last hour, minute by minute."""

from typing import Any

from gpuagent.domain.usage.last_hour import STEPS, UNKNOWN, LastHour


def hour_page(last_hour: LastHour, at: float) -> dict[str, Any]:
    """By UUID the percent of memory in use and of time busy, the oldest minute first; null for what is not known.

    A GPU that no container has held in this hour is absent.

    Args:
        last_hour: of the GPUs.
        at: the time now, in monotonic seconds.
    """
    gpus = {}
    for uuid, hour in last_hour.shown(at).items():
        gpus[uuid] = {"memory": _percent(hour.memory), "busy": _percent(hour.busy)}
    return {"gpus": gpus}


def _percent(values: bytes) -> list[float | None]:
    return [None if value == UNKNOWN else 100 * value / STEPS for value in values]
