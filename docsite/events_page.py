"""docs/reference/events.md: the reasons of conditions and Events, from the calls that make them."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from docsite.markdown import MADE, table
from gpuagent.domain.event_reasons import EventReason

ROOT = Path(__file__).parents[1]


def page() -> str:
    """The page. Raises ValueError where the code makes a reason that is not in `EventReason`, or the reverse."""
    problems, events = _calls("gpuagent", "Problem"), _calls("gpuagent", "Announcement")
    reports = _calls("scheduler/gpuscheduler", "Report")
    if odd := {*problems, *events} ^ {*get_args(EventReason)}:
        raise ValueError(f"reasons that are made and not listed, or listed and not made: {', '.join(sorted(odd))}")
    return f"""# Events and conditions

{MADE}

## The condition GPUAgentReady

The agent writes the condition `GPUAgentReady` on its Node. It is `True` with the reason `Ready`, or `False` with the
worst problem as its reason. Each problem is also an Event on the Node when it appears.
*Depends*: the condition is `False` if the problem keeps the mode from being served.

{table(("reason", "Event", "condition False"), _of_problems(problems))}
## Events of the agent

These Events are not about problems of the node. [Operations](../operations.md#events) says which object has each, and
when. A reason that is in both tables is also an Event on the pods that hold the GPU.

{table(("reason", "Event"), ((f"`{reason}`", _type(calls)) for reason, calls in sorted(events.items())))}
## Events of gpuscheduler

They are on pods. [Why a pod waits](../gpuscheduler.md#why-a-pod-waits) has more of them, from kube-scheduler.

{table(("reason", "Event"), ((f"`{reason}`", "Warning") for reason in sorted(reports)))}"""


Calls = dict[str, list[ast.Call]]


def _calls(folder: str, name: str) -> Calls:
    """The calls of `name` whose reason is a constant, by reason."""
    found: Calls = defaultdict(list)
    for path in sorted((ROOT / folder).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name:
                for value in call.args:
                    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.isalnum():
                        found[value.value].append(call)
    return found


def _of_problems(problems: Calls) -> Iterator[tuple[str, str, str]]:
    for reason, calls in sorted(problems.items()):
        if reason != "Ready":
            yield f"[{reason}](../operations.md#{reason.lower()})", _type(calls, default=True), _blocking(calls)


def _type(calls: list[ast.Call], *, default: bool = False) -> str:
    values = {_argument(call, "warning", default=default) for call in calls}
    return " or ".join("Warning" if value else "Normal" for value in sorted(values, key=str))


def _blocking(calls: list[ast.Call]) -> str:
    values = {_argument(call, "blocking", default=False) for call in calls}
    if values == {True}:
        return "yes"
    return "no" if values == {False} else "depends"


def _argument(call: ast.Call, name: str, *, default: bool) -> bool | None:
    """A constant argument of a call; None if it is worked out."""
    found = next((one.value for one in call.keywords if one.arg == name), None)
    if found is None:
        return default
    return bool(found.value) if isinstance(found, ast.Constant) else None
