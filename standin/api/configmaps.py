"""An API server's checks of a ConfigMap: names, keys, label values, sizes, changes of an immutable one."""

import re
from typing import Any

from standin.api.refusal import Refusal

Json = dict[str, Any]

_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DNS = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_LABEL_KEY = re.compile(f"({_DNS}/)?{_LABEL}")
_LABEL_VALUE = re.compile(f"({_LABEL})?")
_NAME = re.compile(_DNS)
_DATA_KEY = re.compile(r"(?!\.\.)[-._a-zA-Z0-9]+")
_NAME_CHARS = 253
_MAX_BYTES = 1_048_576


def check_config_map(before: Json | None, after: Json) -> None:
    """Raise Refusal 400 for what is no ConfigMap, 422 for one that breaks a rule; ``before`` is None for a new one."""
    labels, data = after["metadata"].get("labels") or {}, after.get("data") or {}
    for part in (labels, data):
        for value in part.values():
            if not isinstance(value, str):
                kind = type(value).__name__
                raise Refusal(400, "BadRequest", f"json: cannot unmarshal {kind} into Go value of type string")
    name = after["metadata"]["name"]
    if len(name) > _NAME_CHARS or not _NAME.fullmatch(name):
        raise _invalid(name, f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of')
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise _invalid(name, f'metadata.labels: Invalid value: "{key}={value}": a valid label must be')
    for key in data:
        if len(key) > _NAME_CHARS or key == "." or not _DATA_KEY.fullmatch(key):
            raise _invalid(name, f'data[{key}]: Invalid value: "{key}": a valid config key must consist of')
    if sum(len(value.encode()) for value in data.values()) > _MAX_BYTES:
        raise _invalid(name, f"[]: Too long: may not be more than {_MAX_BYTES} bytes")
    if before is not None and before.get("immutable") and data != (before.get("data") or {}):
        raise _invalid(name, "data: Forbidden: field is immutable when `immutable` is set")


def _invalid(name: str, text: str) -> Refusal:
    return Refusal(422, "Invalid", f'ConfigMap "{name}" is invalid: {text}')
