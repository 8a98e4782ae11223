"""The node condition `GPUAgentReady`: the agent writes its problems into the message, and readers take them apart.

The message is for people, who see it in `kubectl describe node`, and for programs that cannot ask thousands of agents::

    mode cgpu, 8 GPUs; GPUUnhealthy (warning): GPU 3 (GPU-8f2e...): XID 79; GPUFenced (info): GPU 0 is fenced by file
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from gpuagent.domain.event_reasons import EventReason
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.sharing.mode import Mode
from gpuagent.system.printable import printable

CONDITION_TYPE = "GPUAgentReady"
Severity = Literal["blocking", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The worst first."""
MOST_MESSAGE = 8192
"""Characters of a condition's message that are read."""
_MOST_REASON = 64
_JOINT = "; "
_REASONS = "|".join(get_args(EventReason))
_START = re.compile(rf"(?:^|{_JOINT})({_REASONS}) \(({'|'.join(SEVERITIES)})\): ")
"""The beginning of a problem. The reasons are listed, so that no other text looks like one."""
_MODE = re.compile(r"mode ([a-z_]+), ")
_OLD_INFO = "for information: "
"""How agents before this format marked a problem that is for information."""


@dataclass(frozen=True, slots=True)
class NodeProblem:
    """One problem of a node.

    Attributes:
        severity: ``blocking``, ``warning``, or ``info`` for what is as it should be.
        reason: CamelCase; of an agent's problem, a section of docs/problems.md. Empty if an old agent does not say it.
        message: what is wrong, and what to do.
    """

    severity: Severity
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.reason else self.message


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What the condition of a Node says of its agent.

    Attributes:
        is_ready: the node serves what its mode promises; None if the condition says neither.
        mode: in force; empty if the condition does not say it.
        problems: the worst first.
    """

    is_ready: bool | None
    mode: str = ""
    problems: tuple[NodeProblem, ...] = ()


def condition_message(summary: str, problems: Iterable[NodeProblem]) -> str:
    """The condition's message; `agent_report` reads the same problems back. `summary` is ``mode share, 8 GPUs``."""
    texts = [summary] if summary else []
    texts += [f"{problem.reason} ({problem.severity}): {problem.message}" for problem in worst_first(problems)]
    return printable(_JOINT.join(texts))


def worst_first(problems: Iterable[NodeProblem]) -> list[NodeProblem]:
    """By severity; of one severity, in the order in which they are."""
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))


def agent_report(node: Mapping[str, Any]) -> AgentReport | None:
    """Read the condition of a Node (decoded JSON); None if it has none: no agent of ours has run there."""
    status = mapping(node.get("status"))
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == CONDITION_TYPE:
            return _report(
                text(condition.get("status")),
                text(condition.get("reason"))[:_MOST_REASON],
                text(condition.get("message"))[:MOST_MESSAGE],
            )
    return None


@lru_cache(maxsize=4096)
def _report(status: str, reason: str, message: str) -> AgentReport:
    """The report. Most nodes of a cluster have the same message, and share the value."""
    is_ready = {"True": True, "False": False}.get(status)
    problems = _problems(message)
    if not problems:
        problems = _old_problems(reason, message, is_ready=is_ready)
    mode = _MODE.match(message)
    known = mode and mode[1] in set(Mode)
    return AgentReport(is_ready, mode[1] if mode and known else "", tuple(worst_first(problems)))


def _problems(message: str) -> list[NodeProblem]:
    starts = list(_START.finditer(message))
    problems = []
    for position, start in enumerate(starts):
        following = starts[position + 1 :]
        end = following[0].start() if following else len(message)
        # The pattern has no other severity.
        severity = next(known for known in SEVERITIES if known == start[2])
        problems.append(NodeProblem(severity, start[1], message[start.end() : end]))
    return problems


def _old_problems(reason: str, message: str, *, is_ready: bool | None) -> list[NodeProblem]:
    """The problems of an agent that writes messages without reasons: one for all of the message."""
    if is_ready is False:
        return [NodeProblem("blocking", reason, message)]
    _, _, rest = message.partition(_JOINT)
    if not is_ready or not rest:
        return []
    severity: Severity = "info" if rest.startswith(_OLD_INFO) else "warning"
    return [NodeProblem(severity, "", rest.removeprefix(_OLD_INFO))]
