"""A scheduler that has not tried a pod: perhaps the `schedulerName` of the pod is mistyped."""

from collections.abc import Collection

from gpuagent.system.likeness import most_like
from gpuscheduler.core.explain import words

CHART_SCHEDULER = "gpu-scheduler"
"""The name of the chart's scheduler, unless its value `scheduler.name` says another one."""
STOCK_SCHEDULER = "default-scheduler"
"""The name of the control plane's scheduler, which the API server writes into pods that name none."""
_LIKE = 0.85
"""From this likeness on, as difflib has it, a name is probably mistyped. Schedulers with other names, such as
``gang-scheduler``, are less like ``gpu-scheduler``."""


def untried(scheduler: str, known: Collection[str]) -> str:
    """That a scheduler has not tried a pod, with what to look at.

    Args:
        scheduler: `spec.schedulerName` of the pod.
        known: names of schedulers that place pods.
    """
    sentence = f"scheduler {words.shown(scheduler)} has not tried it yet: is it running"
    meant = meant_scheduler(scheduler, known)
    return f"{sentence}, or did you mean {words.shown(meant)}?" if meant else f"{sentence}?"


def meant_scheduler(scheduler: str, known: Collection[str]) -> str:
    """The known scheduler that a mistyped name probably means; empty if the name is known, or like none."""
    if scheduler in known:
        return ""
    few = sorted(known)[: words.MOST_COMPARED]
    return most_like(scheduler[: words.MOST_SHOWN], few, _LIKE)
