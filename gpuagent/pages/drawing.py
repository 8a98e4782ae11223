"""Draws a page that an agent of any version, or another program, may have made."""

from collections.abc import Callable
from typing import Any

from gpuagent import __version__
from gpuagent.system.printable import printable

STATUS_KEYS = frozenset({"node", "mode", "label", "isolation", "switch", "gpus", "resources", "problems", "version"})
"""What the page `/status` has at least."""


class OtherAgentError(Exception):
    """The server that answers lacks the requested page: it is another version of the agent, or another program."""


def drawn(draw: Callable[[dict[str, Any]], str], page: dict[str, Any]) -> str:
    """Draw `page`. Raises OtherAgentError if it lacks a key, as a page of another version may."""
    try:
        return draw(_printable(page))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as err:
        if page["version"] == __version__:
            raise
        versions = f"the page is of gpuagent {page['version']}, and this command of {__version__}"
        raise OtherAgentError(f"{versions}; -o json shows it as it is") from err


def _printable(value: Any) -> Any:  # noqa: ANN401 (whatever JSON has)
    """`value` with printable texts: a page names pods, devices and processes, and another program may have made it."""
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return printable(value) if isinstance(value, str) else value
