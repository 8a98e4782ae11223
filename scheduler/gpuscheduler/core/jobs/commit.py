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


def commit_text(places: Places) -> str:
    """The annotation's text; `committed_places` reads the same back."""
    return json.dumps(
        {uid: [node, _choice_json(choice)] for uid, (node, choice) in places.items()}, separators=(",", ":")
    )


def committed_places(text: str) -> Places:
    """Node and GPUs by UID; empty if the text is no plan. Any author of a pod can write it: check that it fits."""
    try:
        found = json.loads(text) if len(text) <= MOST_TEXT else None
        return {str(uid): (str(node), _choice(mapping(stored))) for uid, (node, stored) in mapping(found).items()}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def _choice_json(choice: Choice) -> dict[str, Any]:
    containers = {
        n: {gpu: [one.memory, one.core] for gpu, one in gpus.items()} for n, gpus in choice.containers.items()
    }
    return {"used": [[gpu, one.memory, one.core] for gpu, one in choice.used], "containers": containers}


def _choice(stored: Mapping[str, Any]) -> Choice:
    used = tuple((_number(gpu), _amounts(memory, core)) for gpu, memory, core in stored["used"])
    containers = {
        int(n): {int(gpu): _amounts(memory, core) for gpu, (memory, core) in mapping(gpus).items()}
        for n, gpus in mapping(stored["containers"]).items()
    }
    return Choice(used, containers)


def _amounts(memory: object, core: object) -> Amounts:
    return WHOLE if (memory, core) == (WHOLE.memory, WHOLE.core) else Amounts(_number(memory), _number(core))


def _number(found: object) -> int:
    if type(found) is not int or not 0 <= found <= MOST_UNITS:
        raise ValueError(found)
    return found
