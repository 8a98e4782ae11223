"""A Pod as the inspector needs it: its requests, and its GPUs by its annotations."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.annotations import Malformed
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import Pod, PodName, asked
from gpuagent.domain.scheduling.decision import for_another_pod
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION, VISIBLE_ANNOTATION
from gpuagent.domain.sharing.units import if_bytes
from inspectcgpu.read.gpu_node import RESOURCES
from inspectcgpu.read.resize import wanted_limit, written_answer
from inspectcgpu.read.waits import refused, waits_for

Places = Mapping[str, Mapping[int, int]]
"""Resource to minor number of a GPU to units."""

V2 = "V2"
V1 = "V1"
GROUP = "gpu-group"


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod that requests GPUs and has not ended, or was refused.

    Attributes:
        name: namespace and name.
        node: where it is bound to; "" while it is not.
        phase: as the API server has it.
        asks: resource to units, as kubelet counts them over containers, init containers and sidecars.
        places: its GPUs by its annotations; a resource is left out if the amount differs from the request.
        sources: family of annotations by resource in `places`: ``V2``, ``V1``, ``gpu-group``.
        visible: names of the other GPUs that it must see, mode topology.
        faults: the faults of its annotations.
        waits: the reason why it waits; "" while it runs.
        refused: it was not admitted, and holds nothing.
        wanted_limit: another memory limit that it asks for; empty if it asks for none.
        limit_answer: what became of that, by an annotation of the pod.
    """

    name: PodName
    node: str
    phase: str
    asks: Mapping[str, int]
    places: Places = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    visible: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    waits: str = ""
    refused: bool = False
    wanted_limit: str = ""
    limit_answer: str = ""


def read_pod(pod: Mapping[str, Any]) -> GpuPod | None:
    """Parse the pod; None where it requests none of these resources, or has ended. Never raises."""
    spec = mapping(pod.get("spec"))
    status = mapping(pod.get("status"))
    # Most pods of most clusters end here.
    if not _may_ask(spec):
        return None
    parsed = parse_pod(pod)
    was_refused = refused(status)
    if parsed.ended and not was_refused:
        return None
    asks = {name: amount for name in RESOURCES if (amount := asked(parsed, name))}
    if not asks:
        return None
    reading = _reading(pod, parsed, asks)
    return GpuPod(
        name=PodName(sys.intern(parsed.name.namespace), parsed.name.name),
        node=sys.intern(text(spec.get("nodeName"))),
        phase=sys.intern(text(status.get("phase"))),
        asks=asks,
        places=reading.places,
        sources=reading.sources,
        visible=reading.visible(),
        faults=tuple(reading.faults),
        waits=_with_hint(waits_for(pod), asks),
        refused=was_refused,
        wanted_limit=wanted_limit(parsed.annotations),
        limit_answer=written_answer(parsed.annotations),
    )


def _reading(pod: Mapping[str, Any], parsed: Pod, asks: Mapping[str, int]) -> "_Reading":
    """What the annotations of a pod say. Those that contradict the pod are faults."""
    copied = for_another_pod(parsed)
    metadata = mapping(pod.get("metadata"))
    annotations = {} if copied else mapping(metadata.get("annotations"))
    reading = _Reading(annotations, asks)
    if copied:
        reading.faults.append(f"annotation {copied}")
    for resource, gpus in list(reading.places.items()):
        units = sum(gpus.values())
        # Schedulers leave init containers out.
        lasting = sum(container.limits.get(resource, 0) for container in parsed.containers if not container.init)
        is_what_it_asks_for = units > 0 and units in (asks[resource], lasting)
        if not is_what_it_asks_for:
            reading.faults.append(f"its annotation gives it {units} of {resource}, and it asks for {asks[resource]}")
            # Without a place, the agent is queried, as for a malformed annotation.
            del reading.places[resource]
            del reading.sources[resource]
    return reading


def _with_hint(waits: str, asks: Mapping[str, int]) -> str:
    """Kube-scheduler and kubelet do not say that an amount of bytes is a mistake; gpuscheduler does."""
    hint = if_bytes(asks.get(GPU_MEM, 0))
    return f"{waits}; {hint}" if waits and hint and hint not in waits else waits


def _may_ask(spec: Mapping[str, Any]) -> bool:
    """Whether a container has a limit for one of the resources. This is asked of every pod, so it does not parse it."""
    for kind in ("containers", "initContainers"):
        for container in mappings(spec.get(kind)):
            resources = mapping(container.get("resources"))
            limits = mapping(resources.get("limits"))
            if any(name in limits for name in RESOURCES):
                return True
    return False


class _Reading:
    """The annotations of one pod, V2 before V1."""

    def __init__(self, annotations: Mapping[str, Any], asks: Mapping[str, int]) -> None:
        self._annotations = annotations
        self._asks = asks
        self.places: dict[str, dict[int, int]] = {}
        self.sources: dict[str, str] = {}
        self.faults: list[str] = []
        if GPU_MEM in asks:
            self._memory()
        if GPU_CORE in asks:
            self._shares(GPU_CORE, an.CORE_ANNOTATION)
        if GPU_WHOLE in asks:
            self._group()

    def visible(self) -> tuple[str, ...]:
        if GPU_WHOLE not in self._asks:
            return ()
        names = an.gpu_names(self._annotations, VISIBLE_ANNOTATION)
        return names if isinstance(names, tuple) else ()

    def _memory(self) -> None:
        if self._shares(GPU_MEM, an.MEMORY_ANNOTATION):
            return
        assumed = an.assumed(self._annotations)
        if isinstance(assumed, Malformed):
            self.faults.append(str(assumed))
        elif assumed:
            units = self._asks[GPU_MEM] if assumed.units is None else assumed.units
            self.places[GPU_MEM] = {assumed.gpu: units}
            self.sources[GPU_MEM] = V1

    def _shares(self, resource: str, key: str) -> bool:
        shares = an.shares(self._annotations, key)
        if isinstance(shares, Malformed):
            self.faults.append(str(shares))
        elif shares and (by_gpu := shares.by_gpu):
            self.places[resource] = by_gpu
            self.sources[resource] = V2
        return resource in self.places

    def _group(self) -> None:
        names = an.gpu_names(self._annotations, GROUP_ANNOTATION)
        if names is None:
            return
        if isinstance(names, Malformed):
            self.faults.append(str(names))
        elif all(map(_is_number, names)):
            self.places[GPU_WHOLE] = {int(name): 1 for name in names}
            self.sources[GPU_WHOLE] = GROUP
        else:
            self.faults.append(f"annotation {GROUP_ANNOTATION} names GPUs by other than their number")


def _is_number(name: str) -> bool:
    """Whether the name of a GPU is its minor number."""
    return name.isascii() and name.isdigit() and len(name) < 5
