"""The node annotation `gpuagent.io/held`, in which the agent publishes what pods hold by kubelet's allocations.

Tenants write the annotations of their pods, and no Nodes. So for the pods in it, this annotation decides.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.annotations import MOST_UNITS, Malformed, shown
from gpuagent.domain.pods.json_values import decoded, mapping

HELD_GPUS_ANNOTATION = "gpuagent.io/held"
MOST_TEXT = 32 * 1024
"""Characters of the annotation. Pods beyond are left out: each takes about fifty."""
_VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class HeldGpu:
    """What a pod holds of one GPU.

    Attributes:
        minor: minor number of the GPU.
        memory: units of `aliyun.com/gpu-mem`.
        core: percent of `aliyun.com/gpu-core.percentage`.
        whole: the pod holds all of the GPU.
    """

    minor: int
    memory: int = 0
    core: int = 0
    whole: bool = False


PodsHeld = Mapping[str, tuple[HeldGpu, ...]]
"""UID of a pod to what it holds."""


def held_gpus_text(pods: PodsHeld) -> str:
    """The annotation's text; `held_gpus` reads the same back. Of too many pods, the last ones are left out."""
    start = f'{{"v":{_VERSION},"pods":{{'
    end = "}}"
    entries: list[str] = []
    size = len(start) + len(end)
    for uid, gpus in pods.items():
        values = [_entry(gpu) for gpu in gpus]
        text = json.dumps(values, separators=(",", ":"))
        entry = f"{json.dumps(uid)}:{text}"
        # With the comma after it.
        size += len(entry) + 1
        if size > MOST_TEXT:
            break
        entries.append(entry)
    return start + ",".join(entries) + end


def _entry(gpu: HeldGpu) -> list[int]:
    return [
        gpu.minor,
        gpu.memory,
        gpu.core,
        int(gpu.whole),
    ]


def held_gpus(annotations: Mapping[str, Any]) -> PodsHeld | Malformed | None:
    """Read the annotation; None where it is absent: the agent is too old to write it, or there is none."""
    text = annotations.get(HELD_GPUS_ANNOTATION)
    if text is None:
        return None
    value = mapping(decoded(text))
    pods = value.get("pods")
    is_ours = value.get("v") == _VERSION and isinstance(pods, dict)
    if not is_ours:
        return Malformed(HELD_GPUS_ANNOTATION, f"is not an object of version {_VERSION} with pods: {shown(text)}")
    held: dict[str, tuple[HeldGpu, ...]] = {}
    for uid, entries in mapping(pods).items():
        is_valid = isinstance(entries, list) and all(map(_is_entry, entries))
        if not is_valid:
            return Malformed(HELD_GPUS_ANNOTATION, f"has an invalid list of GPUs for a pod: {shown(text)}")
        held[uid] = tuple(map(_gpu, entries))
    return held


def _gpu(entry: list[int]) -> HeldGpu:
    minor, memory, core, whole = entry
    return HeldGpu(minor, memory, core, bool(whole))


def _is_entry(entry: object) -> bool:
    width = len(HeldGpu.__dataclass_fields__)
    if not isinstance(entry, list) or len(entry) != width:
        return False
    return all(map(_is_number, entry))


def _is_number(value: object) -> bool:
    # The type itself is compared, because True is an int, too.
    if type(value) is not int:
        return False
    return 0 <= value <= MOST_UNITS
