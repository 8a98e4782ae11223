"""The text of a job's plan, which is written on a pod before the first binding, so that it outlives the scheduler."""

import json
from collections.abc import Mapping
from typing import Any

from gpuagent.domain.pods.annotations import MOST_UNITS
from gpuagent.domain.pods.json_values import mapping
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.gpu_request import WHOLE, Amounts
from gpuscheduler.core.jobs.places.plan import Places

MOST_TEXT = 256 * 1024
"""Bytes of all annotations of an object, which the API server limits."""


def commit_text(places: Mapping[str, tuple[str, Choice]]) -> str:
    """The annotation's text; `committed_places` reads the same back."""
    stored = {}
    for uid, (node, choice) in places.items():
        stored[uid] = [node, _choice_json(choice)]
    # Without spaces: the plan of a thousand pods has to fit into an annotation.
    return json.dumps(stored, separators=(",", ":"))


def committed_places(text: str) -> Places:
    """Node and GPUs by UID; empty if the text is no plan. Any author of a pod can write it: check that it fits."""
    if len(text) > MOST_TEXT:
        return {}
    places: Places = {}
    try:
        stored = mapping(json.loads(text))
        for uid, (node, choice) in stored.items():
            gpus = _choice(mapping(choice))
            places[str(uid)] = str(node), gpus
    except (ValueError, TypeError, KeyError, RecursionError):
        # Part of a plan would start part of a job, so a text with any mistake in it is no plan.
        return {}
    return places


def _choice_json(choice: Choice) -> dict[str, Any]:
    used: list[list[int]] = []
    for minor, amounts in choice.used:
        used.append([minor, amounts.memory, amounts.core])
    containers: dict[int, dict[int, list[int]]] = {}
    for number, gpus in choice.containers.items():
        of_container: dict[int, list[int]] = {}
        for minor, amounts in gpus.items():
            of_container[minor] = [amounts.memory, amounts.core]
        containers[number] = of_container
    return {"used": used, "containers": containers}


def _choice(stored: Mapping[str, Any]) -> Choice:
    """Read a choice back. Raises ValueError, TypeError or KeyError if it is of another form."""
    used: list[tuple[int, Amounts]] = []
    for minor, memory, core in stored["used"]:
        amounts = _amounts(memory, core)
        used.append((_number(minor), amounts))
    containers: dict[int, dict[int, Amounts]] = {}
    for number, gpus in mapping(stored["containers"]).items():
        of_container: dict[int, Amounts] = {}
        # In JSON, keys are text.
        for minor, (memory, core) in mapping(gpus).items():
            of_container[int(minor)] = _amounts(memory, core)
        containers[int(number)] = of_container
    return Choice(tuple(used), containers)


def _amounts(memory: object, core: object) -> Amounts:
    is_whole = (memory, core) == (WHOLE.memory, WHOLE.core)
    if is_whole:
        return WHOLE
    return Amounts(_number(memory), _number(core))


def _number(stored: object) -> int:
    # The type itself is compared, because True is an int, too.
    if type(stored) is not int or not 0 <= stored <= MOST_UNITS:
        raise ValueError(stored)
    return stored
