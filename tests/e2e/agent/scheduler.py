"""A small scheduler of GPU shares, which writes annotations and binds as the real ones do.

It keeps a book of every GPU. Like them it writes the annotations first and binds then; whoever kills it in between
leaves a pod that is annotated and not bound. After a restart it reads its book from the annotations of bound pods.
"""

import json
import random
import time
from collections import Counter
from typing import Any

from gpuagent.domain.annotations import (
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
from gpuagent.domain.annotations import Assumed as V1
from tests.e2e.cluster import NODE_NAME, Cluster

NAME = "gpu-scheduler"
MEM = "aliyun.com/gpu-mem"
_PODS = "/api/v1/namespaces/default/pods"
_MERGE = "application/merge-patch+json"

Decision = dict[int, int]
"""Place of the container in `spec.containers` to minor number."""


class Scheduler:
    """Schedules pods with `schedulerName` `gpu-scheduler`, one call a pod.

    Args:
        cluster: with the pods.
        gpus: how many there are, numbered from 0.
        units: of memory that it gives out on each.
        whole: units that each has.
        seed: of its choices.
    """

    def __init__(self, cluster: Cluster, gpus: int, units: int, whole: int, seed: int) -> None:
        self._cluster = cluster
        self._units = units
        self._whole = whole
        self._rng = random.Random(seed)
        self._free = Counter(dict.fromkeys(range(gpus), units))
        self.decided: dict[str, Decision] = {}
        """What it chose for each pod, by name."""

    def assume(self, name: str, *, older: bool) -> None:
        """Choose GPUs and write them on the pod: the first of the two steps."""
        limits = self._limits(self._cluster.pod(name))
        sizes = {0: sum(limits.values())} if older else limits
        chosen = {number: self._take(size) for number, size in sizes.items()}
        decision = dict.fromkeys(limits, chosen[0]) if older else chosen
        texts: dict[str, str | None] = dict.fromkeys((MEMORY_ANNOTATION, *V1_KEYS))  # whatever a template brought
        texts |= self._v1(chosen[0], sizes[0]) if older else self._v2(limits, decision)
        patch = {"metadata": {"annotations": texts}}
        self._cluster.client.expect("PATCH", f"{_PODS}/{name}", patch, _MERGE)
        self.decided[name] = decision

    def bind(self, name: str) -> None:
        """The second step."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME},
        }
        self._cluster.client.expect("POST", f"{_PODS}/{name}/binding", binding)

    def restart(self) -> None:
        """Forget everything, and read the book anew from what bound pods say."""
        self._free = Counter(dict.fromkeys(self._free, self._units))
        for pod in self._cluster.client.expect("GET", _PODS)["items"]:
            bound = pod["spec"].get("nodeName") and pod["status"]["phase"] not in {"Succeeded", "Failed"}
            annotations = pod["metadata"].get("annotations") or {}
            found = shares(annotations, MEMORY_ANNOTATION)
            if not bound:
                self.decided.pop(pod["metadata"]["name"], None)
            elif isinstance(found, Shares):
                self._free.subtract(found.by_gpu)
            elif V1_GPU in annotations:
                self._free[int(annotations[V1_GPU])] -= int(annotations[V1_UNITS])

    def forget(self, *names: str) -> None:
        """These pods have ended."""
        for name in names:
            self.decided.pop(name, None)
        self.restart()

    def _take(self, size: int) -> int:
        # Any that fits: only a scheduler's word can have brought a pod there.
        gpu = self._rng.choice([gpu for gpu, free in self._free.items() if free >= size])
        self._free[gpu] -= size
        return gpu

    @staticmethod
    def _limits(pod: dict[str, Any]) -> dict[int, int]:
        found = (int(c["resources"].get("limits", {}).get(MEM, 0)) for c in pod["spec"]["containers"])
        return {number: units for number, units in enumerate(found) if units}

    def _v1(self, gpu: int, units: int) -> dict[str, str]:
        return assumed_texts(V1(gpu, units, self._whole, time.time_ns(), assigned=False))

    @staticmethod
    def _v2(limits: dict[int, int], decision: Decision) -> dict[str, str]:
        return {MEMORY_ANNOTATION: json.dumps({str(n): {str(decision[n]): units} for n, units in limits.items()})}


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
