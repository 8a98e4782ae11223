"""What containers have held and used of GPUs, as a part of the status page."""

from typing import Any

from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.usage.over_time import ContainerUsage, NodeUsage

Json = dict[str, Any]


def usage(node_usage: NodeUsage, at: float) -> list[Json]:
    """Every container that holds a GPU now, once for each GPU.

    Args:
        node_usage: of all containers, also of those that have ended, which are left out.
        at: the time now, in monotonic seconds.
    """
    rows = []
    for (uuid, owner), of_container in node_usage.by_container.items():
        # Until its pod is seen, a reader could not tell whose it is.
        if of_container.ended is None and all(owner.pod):
            rows.append(_row(uuid, owner, of_container, at))
    return rows


def _row(uuid: str, owner: ContainerRef, of_container: ContainerUsage, at: float) -> Json:
    """One container on one GPU. Bytes, seconds, byte-seconds; null for what is not known."""
    reading = of_container.reading
    sums = of_container.sums
    idle_s = of_container.idle_for(at)
    return {
        "uuid": uuid,
        "namespace": owner.pod.namespace,
        "pod": owner.pod.name,
        "container": owner.container,
        "held_bytes": reading.held_bytes,
        "used_bytes": reading.used_bytes,
        "used_p95_bytes": of_container.memory.usual_bytes(reading.held_bytes or 0),
        "used_peak_bytes": of_container.memory.peak_bytes,
        "busy": reading.busy,
        "idle_s": _rounded(idle_s),
        "held_s": round(sums.allocated_s),
        "used_s": _rounded(sums.used_s),
        "busy_s": _rounded(sums.busy_s),
        "held_byte_s": round(sums.allocated_byte_s),
        "used_byte_s": _rounded(sums.used_byte_s),
        "unused_byte_s": _rounded(sums.unused_byte_s),
    }


def _rounded(amount: float | None) -> int | None:
    return None if amount is None else round(amount)
