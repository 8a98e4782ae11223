"""The text of a job's plan, which is written on a pod before the first binding, so that it outlives the scheduler."""

import json
from collections.abc import Mapping
from typing import Any

from gpuagent.domain.pods.annotations import MOST_UNITS
from gpuagent.domain.pods.json_values import mapping
from gpuscheduler.core.fit import Choice
from gpuscheduler.core.gpu_request import WHOLE, Amounts
from gpuscheduler.core.jobs.plan import Places

MOST_TEXT = 256 * 1024
"""Bytes of all annotations of an object, which the API server limits."""


def commit_text(places: Mapping[str, tuple[str, Choice]]) -> str:
    """The annotation's text; `committed_places` reads the same back."""
    stored = {}
    for uid, (node, choice) in places.items():
        stored[uid] = [node, _choice_json(choice)]
    return json.dumps(stored, separators=(",", ":"))


def committed_places(text: str) -> Places:
    """Node and GPUs by UID; empty if the text is no plan. Any author of a pod can write it: check that it fits."""
    if len(text) > MOST_TEXT:
        return {}
    places: Places = {}
    try:
        stored = mapping(json.loads(text))
        for uid, (node, choice) in stored.items():
            places[str(uid)] = str(node), _choice(mapping(choice))
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return places


def _choice_json(choice: Choice) -> dict[str, Any]:
    used = [[minor, amounts.memory, amounts.core] for minor, amounts in choice.used]
    containers: dict[int, dict[int, list[int]]] = {}
    for number, gpus in choice.containers.items():
        containers[number] = {minor: [amounts.memory, amounts.core] for minor, amounts in gpus.items()}
    return {"used": used, "containers": containers}


def _choice(stored: Mapping[str, Any]) -> Choice:
    used = [(_number(minor), _amounts(memory, core)) for minor, memory, core in stored["used"]]
    containers: dict[int, dict[int, Amounts]] = {}
    for number, gpus in mapping(stored["containers"]).items():
        of_container: dict[int, Amounts] = {}
        for minor, (memory, core) in mapping(gpus).items():
            of_container[int(minor)] = _amounts(memory, core)
        containers[int(number)] = of_container
    return Choice(tuple(used), containers)


def _amounts(memory: object, core: object) -> Amounts:
    if (memory, core) == (WHOLE.memory, WHOLE.core):
        return WHOLE
    return Amounts(_number(memory), _number(core))


def _number(stored: object) -> int:
    if type(stored) is not int or not 0 <= stored <= MOST_UNITS:
        raise ValueError(stored)
    return stored
