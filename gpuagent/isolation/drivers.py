"""The isolation drivers there are, by the name of the setting `--isolation`."""

from gpuagent.isolation import Isolation
from gpuagent.isolation.none import NoIsolation

NAMES = ("auto", "none")


def make(name: str) -> Isolation:
    """The driver of that name; `auto` takes the best that works on this node, which is `none` in this release."""
    if name not in NAMES:
        raise ValueError(name)
    return NoIsolation()
