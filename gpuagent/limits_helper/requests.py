"""Requests to the helper: what a line may say. Pure, and strict, since a request may come from a stolen agent."""

import json
import re
from dataclasses import dataclass
from typing import Any

from gpuagent.host.cgroups import container_id, is_pod_uid
from gpuagent.host.limits_client import (
    ERROR_KINDS,
    NO_LIMIT,
    BadRequestError,
    BelowUseError,
    Description,
    Limit,
    LimitDriverError,
    LimitsError,
    Target,
)

MOST_LINE = 4096
"""Bytes of a request, with its line's end."""
_GPU = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MOST_BYTES = 4 << 40
"""No GPU has more memory."""
_FIELDS = {
    "describe": frozenset({"op"}),
    "get": frozenset({"op", "gpu", "pod", "leaf"}),
    "set": frozenset({"op", "gpu", "pod", "leaf", "bytes"}),
}


@dataclass(frozen=True, slots=True)
class Describe:
    """What can be limited here?"""


@dataclass(frozen=True, slots=True)
class Get:
    """Which limit holds there?"""

    target: Target


@dataclass(frozen=True, slots=True)
class Set:
    """Limit it to that many bytes."""

    target: Target
    size: int


Request = Describe | Get | Set


def parse(line: bytes) -> Request:
    """The request on a line. Raises BadRequestError."""
    if len(line) > MOST_LINE:
        raise BadRequestError(f"a request has at most {MOST_LINE} bytes")
    fields = _object(line)
    op = fields.get("op")
    expected = _FIELDS.get(op) if isinstance(op, str) else None
    if expected is None:
        raise BadRequestError(f"op is one of {', '.join(_FIELDS)}")
    if fields.keys() != expected:
        raise BadRequestError(f"{op} has the fields {', '.join(sorted(expected))} and no other")
    if op == "describe":
        return Describe()
    target = _target(fields)
    return Get(target) if op == "get" else Set(target, _size(fields["bytes"], target))


def limit_answer(limit: Limit) -> bytes:
    """The line that reports a limit."""
    return _line({"ok": True, "hard": limit.hard, "used": limit.used})


def description_answer(description: Description) -> bytes:
    """The line that reports what can be limited."""
    root = description.pods_root
    return _line(
        {
            "ok": True,
            "driver": description.driver,
            "pods_root": str(root) if root else None,
            "backend": description.backend,
            "gpus": dict(description.gpus),
            "problem": description.problem,
        }
    )


def error_answer(error: LimitsError) -> bytes:
    """The line that reports an error."""
    answer: dict[str, Any] = {"ok": False, "error": _kind(error), "message": str(error)}
    if isinstance(error, BelowUseError):
        answer["used"] = error.used
    return _line(answer)


def _kind(error: LimitsError) -> str:
    for kind, name in ERROR_KINDS.items():
        if isinstance(error, kind):
            return name
    return ERROR_KINDS[LimitDriverError]


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode(), object_pairs_hook=_without_duplicates)
    # RecursionError: a line of brackets. ValueError: every other mistake, also in UTF-8.
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise BadRequestError("a request is one JSON object on a line")
    return fields


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        # Readers of JSON differ in which of them counts.
        raise ValueError("a field stands twice")
    return fields


def _target(fields: dict[str, Any]) -> Target:
    gpu = fields["gpu"]
    pod = fields["pod"]
    leaf = fields["leaf"]
    if not isinstance(gpu, str) or not _GPU.fullmatch(gpu):
        raise BadRequestError("gpu is a GPU's UUID, such as GPU-5a1c3f0e-...")
    if not isinstance(pod, str) or not is_pod_uid(pod):
        raise BadRequestError("pod is a pod's UID, as in the name of its cgroup")
    if not isinstance(leaf, str) or not _is_leaf(leaf):
        raise BadRequestError("leaf is the name of a container's cgroup, or empty for the pod's")
    return Target(gpu, pod, leaf)


def _is_leaf(leaf: str) -> bool:
    return not leaf or container_id(leaf) is not None


def _size(value: object, target: Target) -> int:
    # Not isinstance: for Python, true and false are numbers.
    if type(value) is not int or not (0 < value <= _MOST_BYTES or value == NO_LIMIT):
        raise BadRequestError(f"bytes is a number from 1 to {_MOST_BYTES}, or {NO_LIMIT} for no limit")
    if value == NO_LIMIT and not target.leaf:
        # On backend misc, the entry would outlive the pod and hide the limit of a later one.
        raise BadRequestError("a pod always has a limit; only a container's cgroup may have none of its own")
    return value
