"""The list `usage` of an agent's status page: what each container holds of each GPU, and has used of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mappings, text
from gpuagent.domain.pods.pod import PodName

MOST_BYTES = 1 << 50
MOST_SECONDS = 1 << 40


@dataclass(frozen=True, slots=True)
class HeldUse:
    """One container on one GPU. None for what the agent does not know.

    Attributes:
        pod: its pod.
        held_bytes: memory that no other container can get.
        used_bytes: memory that it stayed below for 95 % of its time.
        idle_s: for how long the GPU has not worked for it.
        peak_bytes: the most memory that a reading found in use.
    """

    pod: PodName
    held_bytes: int | None
    used_bytes: int | None
    idle_s: int | None
    peak_bytes: int | None = None


def read_held_uses(page: Mapping[str, Any]) -> tuple[HeldUse, ...] | None:
    """All of the page; None if the agent is of a version that does not report it."""
    if "usage" not in page:
        return None
    uses = []
    for use in mappings(page["usage"]):
        pod = PodName(text(use.get("namespace")), text(use.get("pod")))
        if all(pod):
            held_bytes = _amount(use.get("held_bytes"), MOST_BYTES)
            used_bytes = _amount(use.get("used_p95_bytes"), MOST_BYTES)
            idle_s = _amount(use.get("idle_s"), MOST_SECONDS)
            peak_bytes = _amount(use.get("used_peak_bytes"), MOST_BYTES)
            uses.append(HeldUse(pod, held_bytes, used_bytes, idle_s, peak_bytes))
    return tuple(uses)


def _amount(value: object, most: int) -> int | None:
    """A number that an agent may report."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= most else None
