"""YAML, the only importer of its library."""

from typing import Any

import yaml
from yaml import YAMLError

__all__ = ["YAMLError", "dump", "load"]


def dump(value: Any) -> str:  # noqa: ANN401 (plain values, as for JSON)
    """Block style, in the order of the value's keys. Where something cannot be shown, it is ASCII."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True))
    if text.replace("\n", "").isprintable():
        return text
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=False))


def load(text: str) -> Any:  # noqa: ANN401 (anything)
    """Parse YAML. Raises ValueError."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise ValueError(str(err)) from err
