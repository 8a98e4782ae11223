"""The status page of a node's agent: the size of each GPU, and its holders by kubelet's allocations."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.fleet.held_use import HeldUse, read_held_uses
from gpuagent.domain.fleet.node_problems import MOST_MESSAGE, SEVERITIES
from gpuagent.domain.pods.annotations import MOST_UNITS
from gpuagent.domain.pods.json_values import mapping, mappings, number, sentence, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.units import MemoryUnit
from inspectcgpu.read.gpu_node import MOST_GPUS, RESOURCES
from inspectcgpu.read.gpu_pod import Places

_CONTAINER = re.compile(r"([^/\[\]]+)/([^/\[\]]+)\[.*\]")


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """One GPU as the agent shows it; `units` are the advertised ones, by resource."""

    minor: int
    model: str
    memory_mib: int
    healthy: bool
    cause: str
    units: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SeenProblem:
    """One problem as the agent reports it; `severity` is ``blocking``, ``warning`` or ``info``."""

    severity: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class AgentView:
    """One node's page.

    `places` has every pod to which kubelet has allocated GPUs of these resources. `resizes` has the answer to each pod
    that asks for another memory limit, in the words of its annotation; None if the agent is of a version without any.
    `uses` has what each container holds and has used; None if the agent is of a version that does not report it.
    """

    unit: MemoryUnit | None
    gpus: Mapping[int, SeenGpu]
    places: Mapping[PodName, Places] = field(default_factory=dict)
    problems: tuple[SeenProblem, ...] = ()
    resizes: Mapping[PodName, str] | None = None
    uses: Sequence[HeldUse] | None = None


_PlacesByPod = dict[PodName, dict[str, dict[int, int]]]
"""Each pod's units, by resource and minor number of the GPU."""


def read_page(page: str) -> AgentView | None:
    """Parse the page (JSON text); None where it is not an agent's. Never raises."""
    try:
        values = json.loads(page)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not {"gpus", "memory_unit"} <= values.keys():
        return None
    gpus: dict[int, SeenGpu] = {}
    places: _PlacesByPod = {}
    for gpu in mappings(values["gpus"]):
        minor = number(gpu.get("minor"))
        if minor is None or minor >= MOST_GPUS:
            continue
        gpus[minor] = _gpu(gpu, minor)
        for holder in mappings(gpu.get("containers")):
            _add_holder(places, minor, holder)
    return AgentView(
        unit=_unit(values["memory_unit"]),
        gpus=gpus,
        places=places,
        problems=tuple(map(_problem, mappings(values.get("problems")))),
        resizes=_resizes(values),
        uses=read_held_uses(values),
    )


def _add_holder(places: _PlacesByPod, minor: int, holder: Mapping[str, Any]) -> None:
    """Add what a container holds of a GPU to what its pod holds."""
    name = _CONTAINER.fullmatch(text(holder.get("container")))
    units = _amount(holder.get("units"))
    resource = text(holder.get("resource"))
    if name and units and resource in RESOURCES:
        by_resource = places.setdefault(PodName(name[1], name[2]), {})
        by_gpu = by_resource.setdefault(resource, {})
        by_gpu[minor] = by_gpu.get(minor, 0) + units


def _resizes(page: Mapping[str, Any]) -> dict[PodName, str] | None:
    if "resizes" not in page:
        return None
    answers = {}
    for resize in mappings(page["resizes"]):
        namespace, _, name = text(resize.get("pod")).partition("/")
        if name:
            answers[PodName(namespace, name)] = text(resize.get("status"))
    return answers


def _problem(problem: Mapping[str, Any]) -> SeenProblem:
    severity = text(problem.get("severity"))
    if severity not in SEVERITIES:
        # An agent before 0.1.0 reports only whether it is a warning.
        severity = "info" if problem.get("warning") is False else "warning"
    return SeenProblem(severity, sentence(problem.get("reason")), sentence(problem.get("message"), MOST_MESSAGE))


def _gpu(gpu: Mapping[str, Any], minor: int) -> SeenGpu:
    units = mapping(gpu.get("units"))
    return SeenGpu(
        minor=minor,
        model=text(gpu.get("model")),
        memory_mib=_amount(gpu.get("memory_mib")) or 0,
        healthy=gpu.get("health") == "Healthy",
        cause=text(gpu.get("cause")),
        units={name: amount for name in RESOURCES if (amount := _amount(units.get(name)))},
    )


def _amount(value: object) -> int | None:
    amount = number(value)
    return amount if amount is not None and amount <= MOST_UNITS else None


def _unit(value: object) -> MemoryUnit | None:
    try:
        return MemoryUnit.parse(text(value))
    except ValueError:
        return None
