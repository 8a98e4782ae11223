"""Pod annotations in which schedulers name a pod's GPUs. Only this module reads and writes them.

There are three families. V2 (ACK's scheduler) has JSON, container index to GPU to units, one annotation for each
resource. V1 (the open gpushare scheduler extender) has one GPU for the whole pod. The topology family lists whole GPUs.
Any author of a pod can write annotations: functions here return `Malformed` for invalid text, and never raise.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, VISIBLE_ANNOTATION

MEMORY_ANNOTATION = "scheduler.framework.gpushare.allocation"
"""V2, for `aliyun.com/gpu-mem`: ``{"0":{"1":4}}`` gives container 0 four units of GPU 1."""
CORE_ANNOTATION = "gpushare.alibabacloud.com/core-percentage"
"""V2, for `aliyun.com/gpu-core.percentage`, of the same form."""
DECIDED_ANNOTATION = "gpuagent.io/decided"
"""UID of the pod that a scheduler decided on. A template or a copy carries the UID of another pod."""
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""Marks a mirror pod for kubelet (pkg/kubelet/types/pod_update.go)."""
V1_GPU = "ALIYUN_COM_GPU_MEM_IDX"
V1_UNITS = "ALIYUN_COM_GPU_MEM_POD"
V1_GPU_UNITS = "ALIYUN_COM_GPU_MEM_DEV"
V1_ASSUMED = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
V1_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
V1_KEYS = (V1_GPU, V1_UNITS, V1_GPU_UNITS, V1_ASSUMED, V1_ASSIGNED)
WRITTEN_KEYS = (
    *(MEMORY_ANNOTATION, CORE_ANNOTATION, *V1_KEYS),
    *(GROUP_ANNOTATION, VISIBLE_ANNOTATION, DECIDED_ANNOTATION),
)
"""Annotations that the agent also writes."""
LIMIT_ANNOTATION = "gpuagent.io/gpu-mem-limit"
"""How much GPU memory the containers of a running pod may use, if it is not what they requested."""
LIMIT_STATUS_ANNOTATION = "gpuagent.io/gpu-mem-limit-status"
"""What has become of `LIMIT_ANNOTATION`. The agent writes it."""
KEYS = (*WRITTEN_KEYS, MIRROR_ANNOTATION, LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION)
"""All annotations that the agent reads; it stores no others of a pod."""

MOST_UNITS = 2**31 - 1
"""No GPU has more units, in any unit size."""
MOST_TEXT = 16 * 1024
"""Characters of a V2 annotation that are read: a thousand containers with a share each."""
_MOST = {**dict.fromkeys(KEYS, 1024), MEMORY_ANNOTATION: MOST_TEXT, CORE_ANNOTATION: MOST_TEXT}
_UNREAD = "… (not read: it is too long, or long and not ASCII)"
"""Replaces the rest of the text. No annotation with this end is valid as a decision."""
_SHOWN = 60
_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)
_UNITS = re.compile(r"[0-9]{1,10}", re.ASCII)
_NANOSECONDS = re.compile(r"[0-9]{1,20}", re.ASCII)
_V1_PATTERNS = {V1_UNITS: _UNITS, V1_GPU_UNITS: _UNITS, V1_ASSUMED: _NANOSECONDS}


@dataclass(frozen=True, slots=True)
class Malformed:
    """An invalid annotation. `problem` continues the sentence after "annotation KEY "."""

    key: str
    problem: str

    def __str__(self) -> str:
        return f"annotation {self.key} {self.problem}"


@dataclass(frozen=True, slots=True)
class Shares:
    """V2: index of the container in `spec.containers` to minor number of a GPU to units."""

    containers: Mapping[int, Mapping[int, int]]

    @property
    def by_gpu(self) -> dict[int, int]:
        """Minor number to units, over all containers; GPUs with none are left out."""
        total: dict[int, int] = {}
        for gpus in self.containers.values():
            for gpu, units in gpus.items():
                total[gpu] = total.get(gpu, 0) + units
        return {gpu: units for gpu, units in sorted(total.items()) if units}


@dataclass(frozen=True, slots=True)
class Assumed:
    """V1: the scheduler extender's decision for a pod.

    Attributes:
        gpu: minor number.
        units: of the pod on that GPU; None if absent.
        gpu_units: units that the GPU has in all; None if absent.
        assumed_ns: Unix nanoseconds of the decision, later of the assignment; None if absent.
        assigned: whether the device plugin has assigned the GPU to the pod; None if absent: no scheduler of this family
            wrote the annotations.
    """

    gpu: int
    units: int | None = None
    gpu_units: int | None = None
    assumed_ns: int | None = None
    assigned: bool | None = None


def bounded(annotations: Mapping[str, Any]) -> dict[str, str]:
    """The annotations of `KEYS`. Of one that is too long, a marked beginning, which every reader calls malformed."""
    texts = {}
    for key, most in _MOST.items():
        value = annotations.get(key)
        if isinstance(value, str):
            texts[key] = _bounded(value, most)
    return texts


def _bounded(value: str, most: int) -> str:
    if len(value) <= _SHOWN:
        return value
    # One character beyond ASCII makes Python store each character in up to four bytes.
    is_small = len(value) <= most and value.isascii()
    if is_small:
        return value
    return value[:_SHOWN] + _UNREAD


def shares(
    annotations: Mapping[str, Any],
    key: str,
    numbers: Mapping[str, int] | None = None,
) -> Shares | Malformed | None:
    """Read one V2 annotation (`MEMORY_ANNOTATION` or `CORE_ANNOTATION`); None where it is absent.

    `numbers` maps UUIDs of the node's GPUs to minor numbers, so that annotations may also name GPUs by UUID.
    """
    text = annotations.get(key)
    if text is None:
        return None
    pairs = _pairs(text)
    if pairs is None:
        return Malformed(key, f"is no JSON object: {shown(text)}")
    containers: dict[int, dict[int, int]] = {}
    for name, gpus in pairs:
        container = _number(name)
        # JSON may have a key twice, and readers disagree about which one counts.
        if container is None or container in containers:
            problem = f"has {shown(name)} for the index of a container"
            return Malformed(key, f"{problem}: {shown(text)}")
        units = _read_gpus(gpus, numbers or {})
        if isinstance(units, str):
            return Malformed(key, f"{units} of container {container}: {shown(text)}")
        containers[container] = units
    return Shares(containers)


def _pairs(text: object) -> "_Pairs | None":
    """The JSON object in the text; None if it has none."""
    if not isinstance(text, str):
        return None
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, _Pairs) else None


def _read_gpus(gpus: object, numbers: Mapping[str, int]) -> dict[int, int] | str:
    """The units of one container by minor number, or what is wrong with them."""
    if not isinstance(gpus, _Pairs):
        return "has no GPUs"
    read: dict[int, int] = {}
    for name, units in gpus:
        gpu = numbers[name] if name in numbers else _number(name)
        if gpu is None or gpu in read:
            return f"has {shown(name)} for the number of a GPU"
        if not _is_units(units):
            return f"has no whole number of units for GPU {gpu}"
        read[gpu] = units
    return read


def _is_units(value: object) -> bool:
    # In Python a bool is an int, but it cannot be a number of units.
    if type(value) is not int:
        return False
    return 0 <= value <= MOST_UNITS


def shares_text(decision: Shares) -> str:
    """The annotation's text, as schedulers write it; `shares` reads the same back."""
    texts: dict[str, dict[str, int]] = {}
    for container, gpus in decision.containers.items():
        # In JSON, keys are text.
        of_container = {str(gpu): units for gpu, units in gpus.items()}
        texts[str(container)] = of_container
    return json.dumps(texts, separators=(",", ":"))


def assumed(
    annotations: Mapping[str, Any],
    numbers: Mapping[str, int] | None = None,
) -> Assumed | Malformed | None:
    """Read the V1 annotations; None where the pod has no GPU by them. `numbers` as for `shares`."""
    text = annotations.get(V1_GPU)
    # "-1" is the old plugin's word for none.
    if text is None or text == "-1":
        return None
    gpu = _number(text)
    if numbers and isinstance(text, str):
        gpu = numbers.get(text, gpu)
    if gpu is None:
        return Malformed(V1_GPU, f"is no number of a GPU: {shown(text)}")
    values: dict[str, int | None] = {}
    for key, pattern in _V1_PATTERNS.items():
        written = annotations.get(key)
        value = _read_number(key, written, pattern)
        if isinstance(value, Malformed):
            return value
        values[key] = value
    word = annotations.get(V1_ASSIGNED)
    if word not in (None, "true", "false"):
        return Malformed(V1_ASSIGNED, f"is neither true nor false: {shown(word)}")
    return Assumed(
        gpu=gpu,
        units=values[V1_UNITS],
        gpu_units=values[V1_GPU_UNITS],
        assumed_ns=values[V1_ASSUMED],
        assigned=None if word is None else word == "true",
    )


def _read_number(
    key: str,
    value: object,
    pattern: re.Pattern[str],
) -> int | Malformed | None:
    """The number in a V1 annotation; None where it is absent."""
    if value is None:
        return None
    is_number = isinstance(value, str) and pattern.fullmatch(value)
    if not is_number:
        return Malformed(key, f"is no whole number: {shown(value)}")
    number = int(str(value))
    is_amount = pattern is _UNITS
    if is_amount and number > MOST_UNITS:
        return Malformed(key, f"is more than any GPU has: {shown(value)}")
    return number


def named_for_shares(annotations: Mapping[str, Any]) -> frozenset[int] | None:
    """Minor numbers of the GPUs that a scheduler named for a pod's shares, V2 before V1; None where none did."""
    v2 = shares(annotations, MEMORY_ANNOTATION)
    if isinstance(v2, Shares) and v2.by_gpu:
        return frozenset(v2.by_gpu)
    v1 = assumed(annotations)
    return frozenset({v1.gpu}) if isinstance(v1, Assumed) else None


def assumed_texts(decision: Assumed) -> dict[str, str]:
    """The V1 annotations; `assumed` reads the same back."""
    values = {
        V1_GPU: decision.gpu,
        V1_UNITS: decision.units,
        V1_GPU_UNITS: decision.gpu_units,
        V1_ASSUMED: decision.assumed_ns,
    }
    known = {key: value for key, value in values.items() if value is not None}
    texts = {key: str(value) for key, value in known.items()}
    if decision.assigned is not None:
        texts[V1_ASSIGNED] = str(decision.assigned).lower()
    return texts


def gpu_names(
    annotations: Mapping[str, Any],
    key: str,
) -> tuple[str, ...] | Malformed | None:
    """Names in an annotation of the topology family, minor numbers or UUIDs, none twice; None where it is absent.

    The caller checks that the node has such GPUs.
    """
    text = annotations.get(key)
    if text is None or text == "":
        return None
    is_whole_text = isinstance(text, str) and not text.endswith(_UNREAD)
    if not is_whole_text:
        return Malformed(key, f"is no list of GPUs: {shown(text)}")
    parts = text.split(",")
    names = [part.strip() for part in parts]
    different = set(names)
    if len(different) < len(names):
        return Malformed(key, f"names a GPU twice: {shown(text)}")
    return tuple(names)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written, so that a key that comes twice is seen."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs)


def _number(text: object) -> int | None:
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        return None
    return int(text)


def shown(value: object) -> str:
    """A value from a pod, for messages: quoted, and cut if it is long."""
    text = value if isinstance(value, str) else f"<{type(value).__name__}>"
    if text.endswith(_UNREAD):
        # It is cut already, and the mark is not the pod's own text.
        return repr(text[:_SHOWN]) + _UNREAD
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}…"
    return repr(text)
