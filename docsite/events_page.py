"""docs/reference/events.md: the reasons of Events, from the calls that make them."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

from docsite.markdown import MADE, table
from gpuagent.domain.event_reasons import EventReason

ROOT = Path(__file__).parents[1]
WHEN = {
    "AnnotationCorrected": (
        "pod",
        "its annotations named other GPUs or amounts than it holds: [corrections](../annotations.md#corrections)",
    ),
    "ApplicationXID": ("node", "an XID that is an application's own fault; the GPU stays in use"),
    "DevicesReallocated": (
        "node",
        "kubelet offered only units that a container got a moment ago: a known bug of kubelet, or a short container",
    ),
    "GPUDecisionIgnored": (
        "pod",
        "annotations look like a scheduler's decision and [are none for this pod](../schedulers.md#when-it-is-valid)",
    ),
    "GPUFenced": ("pods that hold the GPU", "the [fence file](../operations.md#fencing-a-gpu) names it"),
    "GPUGroupDiffers": (
        "pod",
        "other GPUs than a scheduler chose, or `gpu-visible` [is not trusted](../topology.md#seeing-a-jobs-other-gpus)",
    ),
    "GPUIdle": ("pod", "its GPUs are idle, and [its namespace wants to know](../operations.md#idle-pods)"),
    "GPUIdleEvicted": ("pod", "its GPUs are idle, and it was evicted [for its namespace](../operations.md#idle-pods)"),
    "GPUMemoryExhausted": (
        "pod",
        "a container failed with [95 % or more of its memory in use](../troubleshooting.md#out-of-gpu-memory)",
    ),
    "GPUMemoryResized": ("pod", "its [changed memory limits](../resize.md) are in force"),
    "GPUMemoryUnlimited": (
        "pod",
        "it [may use more GPU memory](../problems.md#gpumemoryunlimited) than its share",
    ),
    "GPURecovered": ("node, pods that hold the GPU", "an unhealthy GPU recovered and is advertised again"),
    "GPURefused": (
        "pod, or node if the pod is not known",
        "the agent [refused](../troubleshooting.md#refusals) a request or a claim, or a claim waits for over 5 s",
    ),
    "GPURequestMistaken": (
        "pod",
        "its limits give it no GPU: `aliyun.com/gpu-count`, or bytes such as `8Gi`. The Event says what to write",
    ),
    "GPUResizeRefused": (
        "pod",
        "its annotation `gpuagent.io/gpu-mem-limit` is [not followed](../resize.md#refusals), and what is in force",
    ),
    "GPUUnfenced": ("node, pods that hold the GPU", "the fence file no longer names it; says whether it is healthy"),
    "GPUUnhealthy": (
        "pods that hold the GPU",
        "it [became unhealthy](../problems.md#gpuunhealthy), or has a new cause",
    ),
    "HarmlessXID": ("node", "another XID after which the driver requires no action, or one of `--ignore-xids`"),
    "ModeLabelRemoved": ("node", "the label was removed; the mode stays"),
    "ModeSwitch": ("node", "the mode in force changed"),
    "PlacementSwitch": ("node", "the placement changed"),
    "StartupTaintRemoved": ("node", "the node shows its amounts, so the taint of `--startup-taint` is gone"),
    "XIDUntied": ("node", "an XID that names no GPU of this node; no GPU is unhealthy for it"),
}
"""The object that an Event is on, and when it is sent."""


def page() -> str:
    """The page. Raises ValueError where the code makes a reason that is not in `EventReason`, or the reverse."""
    events, reports = _calls("gpuagent", "Announcement"), _calls("scheduler/gpuscheduler", "Report")
    if odd := {*problem_calls(), *events} ^ {*get_args(EventReason)}:
        raise ValueError(f"reasons that are made and not listed, or listed and not made: {', '.join(sorted(odd))}")
    if odd := events.keys() ^ WHEN.keys():
        raise ValueError(f"Events without words in {Path(__file__).name}, or the reverse: {', '.join(sorted(odd))}")
    return f"""# Events

{MADE}

## Problems of the node

Each [problem](../problems.md) is an Event on the node when it begins. The condition `GPUAgentReady` is `False` if the
problem keeps the mode from being served.

{table(("reason", "type", "condition False"), _of_problems())}
## Events of the agent

These are about other things. If the same
Event comes again within five minutes, the agent counts it instead of repeating it, and writes the count every ten
seconds.

{table(("reason", "type", "on", "when"), _of_agent(events))}
## Events of gpuscheduler

They are on pods. [Why a pod waits](../gpuscheduler.md#why-a-pod-waits) has more of them, from kube-scheduler.

{table(("reason", "type"), ((f"`{reason}`", "Warning") for reason in sorted(reports)))}"""


Calls = dict[str, list[ast.Call]]


@cache
def problem_calls() -> Calls:
    """The calls that make a problem of the node, by its reason."""
    return _calls("gpuagent", "Problem")


def event_types(calls: list[ast.Call]) -> str:
    """The types of a problem's Events."""
    return _type(calls, default=True)


def condition_false(calls: list[ast.Call]) -> str:
    """Whether a problem makes the condition of the node False."""
    values = {_argument(call, "blocking", default=False) for call in calls}
    if values == {True}:
        return "yes"
    return "no" if values == {False} else "depends"


def _calls(folder: str, name: str) -> Calls:
    """The calls of `name` whose reason is a constant, by reason."""
    calls: Calls = defaultdict(list)
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                for value in node.args:
                    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.isalnum():
                        calls[value.value].append(node)
    return calls


def _of_problems() -> Iterator[tuple[str, str, str]]:
    for reason, calls in sorted(problem_calls().items()):
        if reason != "Ready":
            yield f"[{reason}](../problems.md#{reason.lower()})", event_types(calls), condition_false(calls)


def _of_agent(events: Calls) -> Iterator[tuple[str, ...]]:
    for reason, calls in sorted(events.items()):
        yield (f"`{reason}`", _type(calls), *WHEN[reason])


def _type(calls: list[ast.Call], *, default: bool = False) -> str:
    values = {_argument(call, "warning", default=default) for call in calls}
    return " or ".join("Warning" if value else "Normal" for value in sorted(values, key=str))


def _argument(call: ast.Call, name: str, *, default: bool) -> bool | None:
    """A constant argument of a call; None if it is worked out."""
    value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if value is None:
        return default
    return bool(value.value) if isinstance(value, ast.Constant) else None
