"""A small scheduler of GPU shares, which writes annotations and binds as the real ones do.

It records every GPU's use. Like them it writes the annotations first and binds then; whoever kills it in between
leaves a pod that is annotated and not bound. After a restart it reads its record from the annotations of bound pods.
"""

import enum
import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    MEMORY_ANNOTATION,
    V1_ASSIGNED,
    V1_ASSUMED,
    V1_GPU,
    V1_GPU_UNITS,
    V1_KEYS,
    V1_UNITS,
    Shares,
    assumed_texts,
    shares,
)
from gpuagent.domain.pods.annotations import Assumed as V1
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION
from tests.e2e.cluster import NODE_NAME, Cluster

NAME = "gpu-scheduler"
_PODS = "/api/v1/namespaces/default/pods"
_MERGE = "application/merge-patch+json"
_KEYS = (MEMORY_ANNOTATION, CORE_ANNOTATION, *V1_KEYS, GROUP_ANNOTATION)

Decision = dict[int, tuple[int, ...]]
"""Place of the container in `spec.containers` to the minor numbers of its GPUs."""


class AnnotationFamily(enum.StrEnum):
    """Which annotations a decision is written in."""

    V1 = "V1"
    V2 = "V2"
    BOTH = "both"
    GROUP = "group"


class ShareScheduler:
    """Schedules pods with `schedulerName` `gpu-scheduler`, one call a pod.

    Args:
        cluster: with the pods.
        gpus: how many there are, numbered from 0.
        units: of memory that it gives out on each; 1 where it gives out whole GPUs.
        whole: units that each has.
        seed: of its choices.
        uuids: minor number to UUID, where it names GPUs by these.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self, cluster: Cluster, gpus: int, units: int, whole: int, seed: int, uuids: Mapping[int, str] | None = None
    ) -> None:
        self._cluster = cluster
        self._units = units
        self._whole = whole
        self._rng = random.Random(seed)
        self._uuids = uuids or {}
        self._free = Counter(dict.fromkeys(range(gpus), units))
        self.decided: dict[str, Decision] = {}
        """What it chose for each pod, by name."""

    def assume(self, name: str, family: AnnotationFamily, on: Decision | None = None) -> None:
        """Choose GPUs and write them on the pod: the first of the two steps. `on` is what to choose."""
        pod = self._cluster.pod(name)
        decision = self._choose(pod, family, on)
        texts: dict[str, str | None] = dict.fromkeys(_KEYS)  # whatever a template brought
        memory = _limits(pod, GPU_MEM)
        if family in (AnnotationFamily.V1, AnnotationFamily.BOTH):
            texts |= self._v1(decision, sum(memory.values()))
        if family in (AnnotationFamily.V2, AnnotationFamily.BOTH):
            texts[MEMORY_ANNOTATION] = self._v2(memory, decision)
            if compute := _limits(pod, GPU_CORE):
                texts[CORE_ANNOTATION] = self._v2(compute, decision)
        if family is AnnotationFamily.GROUP:
            texts[GROUP_ANNOTATION] = ",".join(self._name(gpu) for gpus in decision.values() for gpu in gpus)
        patch = {"metadata": {"annotations": texts}}
        self._cluster.client.expect("PATCH", f"{_PODS}/{name}", patch, _MERGE)
        self.decided[name] = decision

    def bind(self, name: str, node: str = NODE_NAME) -> None:
        """The second step."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._cluster.client.expect("POST", f"{_PODS}/{name}/binding", binding)

    def restart(self) -> None:
        """Forget everything, and read what bound pods hold from their annotations."""
        self._free = Counter(dict.fromkeys(self._free, self._units))
        for pod in self._cluster.client.expect("GET", _PODS)["items"]:
            if "nodeName" not in pod["spec"]:
                self.decided.pop(pod["metadata"]["name"], None)
            elif pod["spec"]["nodeName"] == NODE_NAME and pod["status"]["phase"] not in {"Succeeded", "Failed"}:
                self._free.subtract(used_by(pod, {uuid: minor for minor, uuid in self._uuids.items()}))

    def forget(self, *names: str) -> None:
        """These pods have ended."""
        for name in names:
            self.decided.pop(name, None)
        self.restart()

    def _choose(self, pod: dict[str, Any], family: AnnotationFamily, on: Decision | None) -> Decision:
        memory = _limits(pod, GPU_MEM)
        if family is AnnotationFamily.GROUP:
            needs = {number: (count, 1) for number, count in _limits(pod, GPU_WHOLE).items()}
        elif family is AnnotationFamily.V2:
            gpus = int(pod["metadata"].get("labels", {}).get(GPU_COUNT_LABEL, 1))
            needs = {number: (gpus, units // gpus) for number, units in memory.items()}
        else:  # one GPU for the whole pod
            needs = {0: (1, sum(memory.values()))}
        decision = {number: self._take(*need, (on or {}).get(number)) for number, need in needs.items()}
        return (
            decision if family in (AnnotationFamily.V2, AnnotationFamily.GROUP) else dict.fromkeys(memory, decision[0])
        )

    def _take(self, count: int, units: int, on: tuple[int, ...] | None) -> tuple[int, ...]:
        # Any that fit: only a scheduler's word can have brought a pod there.
        gpus = on or tuple(self._rng.sample([gpu for gpu, free in self._free.items() if free >= units], count))
        self._free.subtract(dict.fromkeys(gpus, units))
        return gpus

    def _v1(self, decision: Decision, units: int) -> dict[str, str]:
        (gpu,) = next(iter(decision.values()))
        return {**assumed_texts(V1(gpu, units, self._whole, time.time_ns(), assigned=False)), V1_GPU: self._name(gpu)}

    def _v2(self, limits: Mapping[int, int], decision: Decision) -> str:
        return json.dumps(
            {
                str(number): {self._name(gpu): units // len(decision[number]) for gpu in decision[number]}
                for number, units in limits.items()
            }
        )

    def _name(self, gpu: int) -> str:
        return self._uuids.get(gpu, str(gpu))


def used_by(pod: dict[str, Any], numbers: Mapping[str, int]) -> dict[int, int]:
    """Minor number to units that a pod has of that GPU, as schedulers read it; `numbers` are minor numbers by UUID."""
    annotations = pod["metadata"].get("annotations") or {}
    found = shares(annotations, MEMORY_ANNOTATION, numbers)
    if isinstance(found, Shares):
        return found.by_gpu
    if V1_GPU in annotations:
        gpu = annotations[V1_GPU]
        return {numbers[gpu] if gpu in numbers else int(gpu): int(annotations[V1_UNITS])}
    return {int(gpu): 1 for gpu in annotations.get(GROUP_ANNOTATION, "").split(",") if gpu}


def _limits(pod: dict[str, Any], resource: str) -> dict[int, int]:
    """Place of the container to what it asks for."""
    found = (int(c["resources"].get("limits", {}).get(resource, 0)) for c in pod["spec"]["containers"])
    return {number: units for number, units in enumerate(found) if units}


def stale(gpu: int, units: int) -> dict[str, str]:
    """Annotations of a pod that has its GPU since long, as a template copies them."""
    hour_ago = str(time.time_ns() - 3600 * 10**9)
    return {
        V1_GPU: str(gpu),
        V1_UNITS: str(units),
        V1_GPU_UNITS: "80",
        V1_ASSUMED: hour_ago,
        V1_ASSIGNED: "true",
    }
