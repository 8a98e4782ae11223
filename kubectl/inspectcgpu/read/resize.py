"""The change of a running pod's memory limit: what is wanted, and what the agent of its node has made of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION
from gpuagent.domain.pods.json_values import sentence

_MOST_SHOWN = 200
"""Characters of a request. Any author of a pod can write more, and no valid one is as long."""
_REFUSED = "Refused: "
_IN_FORCE = "InForce: "
_BUT_IN_FORCE = "; in force: "


@dataclass(frozen=True, slots=True)
class Resize:
    """The resize of one pod.

    Attributes:
        wanted: the pod's annotation; empty if it has none any more.
        in_force: the limits of its containers, such as ``main=12``; empty if the agent has not said.
        refused: why these are not the wanted ones; empty if they are, or the agent has not said.
    """

    wanted: str
    in_force: str = ""
    refused: str = ""


def wanted_limit(annotations: Mapping[str, str]) -> str:
    """The limits that a pod asks for; empty if it asks for none."""
    return sentence(annotations.get(LIMIT_ANNOTATION), _MOST_SHOWN)


def written_answer(annotations: Mapping[str, str]) -> str:
    """The agent's answer as the pod has it. It may be old, and others can write it."""
    return annotations.get(LIMIT_STATUS_ANNOTATION, "")


def read_resize(wanted: str, answer: str) -> Resize | None:
    """The resize of a pod; None if it has the limits that it requested."""
    if answer.startswith(_REFUSED):
        # A reason may contain anything, and the limits stand at the end.
        text = answer.removeprefix(_REFUSED)
        why, has_limits, in_force = text.rpartition(_BUT_IN_FORCE)
        if not has_limits:
            return Resize(wanted, "", sentence(text))
        return Resize(wanted, sentence(in_force), sentence(why))
    if not wanted:
        return None
    return Resize(wanted, sentence(answer.removeprefix(_IN_FORCE)))
