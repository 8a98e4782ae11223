"""The page /defragment: which pods wait, what would move for each, and the plan under way. To read it moves nothing."""

import asyncio
import json
import time
from typing import Any

from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.defragment.course import Course
from gpuscheduler.core.defragment.defragmentation import Defragmentation
from gpuscheduler.core.defragment.move_plan import MovePlan, NoPlan
from gpuscheduler.core.defragment.planner import search_steps
from gpuscheduler.core.gpu_request import GpuRequest, RequestKind
from gpuscheduler.core.pod_facts import PodFacts

MOST_SHOWN = 5
"""Waiting pods for which plans are searched: those that would be served first."""
MOVES_IF_OFF = 3
"""Moves of a plan that is only shown, because defragmentation is off."""


async def defragment_page(core: Defragmentation) -> bytes:
    """JSON. Between the steps of a search, other calls are answered."""
    now = time.monotonic()
    moves = core.limits.moves or MOVES_IF_OFF
    plans = []
    for pod in core.waits.first(0.0, now)[:MOST_SHOWN]:
        result = await _searched(core, pod, moves, now)
        plans.append(_waiting(core, pod, result, now))
    page = {
        "enabled": core.is_on,
        "moves": moves,
        "after_s": core.limits.after_s,
        "pause_s": core.limits.pause_s,
        "problem": _problem(core),
        "running": _course(core.course) if core.course else None,
        "last": core.last,
        "waiting": plans,
    }
    return json.dumps(page, separators=(",", ":")).encode()


async def _searched(core: Defragmentation, pod: PodFacts, moves: int, now: float) -> MovePlan | NoPlan:
    steps = search_steps(pod, core.cluster, moves, now)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: MovePlan | NoPlan = end.value
            return result
        await asyncio.sleep(0)


def _problem(core: Defragmentation) -> str:
    """Why no plan of the page is carried out; empty if one may be."""
    if not core.is_on:
        return "defragmentation is off (setting defragment-moves), and PodDisruptionBudgets are not read"
    if not core.cluster.budgets.are_read:
        return "PodDisruptionBudgets cannot be read"
    return "" if core.may_begin else "this process does not lead, or does not know the cluster as it is"


def _waiting(core: Defragmentation, pod: PodFacts, result: MovePlan | NoPlan, now: float) -> dict[str, Any]:
    """A waiting pod, and what the search for a plan said."""
    return {
        "pod": str(pod.name),
        "wants": _amounts(pod.request),
        "waits_s": round(core.waits.since(pod.uid, now)),
        "plan": _plan(result) if isinstance(result, MovePlan) else None,
        "why_not": result.why if isinstance(result, NoPlan) else "",
    }


def _course(course: Course) -> dict[str, Any]:
    return {
        "pod": str(course.plan.pod.name),
        "phase": course.phase.name.lower(),
        "evicted": course.evicted,
        "plan": _plan(course.plan),
    }


def _plan(plan: MovePlan) -> dict[str, Any]:
    return {
        "node": plan.node,
        "gpus": _gpus(plan.choice),
        "moves": [
            {
                "pod": str(move.pod.name),
                "amounts": _amounts(move.pod.request),
                "from_node": move.pod.node,
                "from_gpus": [minor for minor, _ in move.pod.used or ()],
                "to_node": move.node,
                "to_gpus": _gpus(move.choice),
            }
            for move in plan.moves
        ],
    }


def _gpus(choice: Choice) -> list[int]:
    return [minor for minor, _ in choice.used]


def _amounts(request: GpuRequest) -> dict[str, int]:
    """What a pod asks for. A plan gains as much as the waiting pod asks for."""
    whole = request.gpus if request.kind is RequestKind.WHOLE else 0
    return {"memory": request.need.memory, "core": request.need.core, "gpus": whole}
