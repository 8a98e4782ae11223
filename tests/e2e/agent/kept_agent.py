"""The agent that a test leaves running, for the next test that asks for the same.

To start an agent, and to wait until kubelet has its devices, takes seconds in each of a hundred tests. A test that has
ended its agent, injected a fault, changed the node's labels, or failed leaves none.
"""

import os
from typing import Any

from tests.e2e.agent.process import AgentProcess

_kept: list[AgentProcess] = []
"""None or one: two agents on one node would disturb each other."""


def take(box: str, mode: str | None, flags: tuple[str, ...]) -> AgentProcess | None:
    """The kept agent, if it was made for the same. Any other one ends now."""
    if _kept and _kept[0].running and _kept[0].made_for == made_for(box, mode, flags):
        _kept[0].wait(_holds_nothing)
        return _kept.pop()
    end()
    return None


def made_for(box: str, mode: str | None, flags: tuple[str, ...]) -> tuple[object, ...]:
    """What makes an agent the same as another."""
    return (box, mode, flags, os.environ["PATH"])


def leave(agent: AgentProcess) -> None:
    """Keep the agent, unless it is not what the next test would start."""
    if agent.running and not agent.disturbed:
        _kept.append(agent)
    else:
        agent.stop()


def end() -> None:
    """End the kept agent, if there is one."""
    while _kept:
        _kept.pop().stop()


def _holds_nothing(page: dict[str, Any]) -> bool:
    return not any(gpu["containers"] for gpu in page["gpus"])
