"""The page /defragment of gpuscheduler: which pods wait, and what would move for each. Nothing raises."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, number, text
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE

_RESOURCES = {"memory": GPU_MEM, "core": GPU_CORE, "gpus": GPU_WHOLE}


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that leaves its GPUs.

    Attributes:
        pod: namespace and name.
        amounts: what it holds, for people.
        origin: node and GPUs.
        target: node and GPUs where a new pod fits.
    """

    pod: str
    amounts: str
    origin: str
    target: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that waits.

    Attributes:
        pod: namespace and name.
        wants: what it asks for, for people.
        seconds: how long it waits; None if that is not known.
        target: node and GPUs that it gets; empty without a plan.
        moves: of the plan.
        why_not: why there is no plan.
    """

    pod: str
    wants: str
    seconds: int | None
    target: str
    moves: tuple[Move, ...]
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class MovesPage:
    """The page.

    Attributes:
        moves: the most evictions of a plan.
        problem: why no plan is carried out; empty if one may be.
        running: the plan under way.
        phase: what it waits for.
        last: how the last plan ended; empty before.
        waiting: the pods that would be served first.
    """

    moves: int
    problem: str
    running: Waiting | None
    phase: str
    last: str
    waiting: tuple[Waiting, ...]


def read_moves_page(page: object) -> MovesPage | None:
    """The page of decoded JSON; None if it is none."""
    values = mapping(page)
    if "waiting" not in values or "enabled" not in values:
        return None
    running = mapping(values.get("running"))
    return MovesPage(
        moves=number(values.get("moves")) or 0,
        problem=text(values.get("problem")),
        running=_waiting(running) if running else None,
        phase=text(running.get("phase")),
        last=text(values.get("last")),
        waiting=tuple(_waiting(waiting) for waiting in mappings(values.get("waiting"))),
    )


def _waiting(waiting: Mapping[str, Any]) -> Waiting:
    plan = mapping(waiting.get("plan"))
    return Waiting(
        pod=text(waiting.get("pod")),
        wants=_amounts(waiting.get("wants")),
        seconds=number(waiting.get("waits_s")),
        target=_place(plan.get("node"), plan.get("gpus")) if plan else "",
        moves=tuple(_move(move) for move in mappings(plan.get("moves"))),
        why_not=text(waiting.get("why_not")),
    )


def _move(move: Mapping[str, Any]) -> Move:
    return Move(
        pod=text(move.get("pod")),
        amounts=_amounts(move.get("amounts")),
        origin=_place(move.get("from_node"), move.get("from_gpus")),
        target=_place(move.get("to_node"), move.get("to_gpus")),
    )


def _amounts(amounts: object) -> str:
    """For example `12 aliyun.com/gpu-mem`."""
    parts = []
    for key, resource in _RESOURCES.items():
        units = number(mapping(amounts).get(key))
        if units:
            parts.append(f"{units} {resource}")
    return ", ".join(parts)


def _place(node: object, gpus: object) -> str:
    """For example `gpu-1 GPU 0,3`."""
    numbers = gpus if isinstance(gpus, list) else []
    listed = ",".join(str(gpu) for gpu in numbers if isinstance(gpu, int))
    return f"{text(node)} GPU {listed}"
