"""Pods of this node: what they ask for (API server) and what they hold (kubelet)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuagent.domain.mode import GPU_COUNT_LABEL

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20}
_QUANTITY = re.compile(r"([0-9]{1,12})(|k|M|Ki|Mi)")


class PodName(NamedTuple):
    """Namespace and name: how pod-resources names a pod."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Owner(NamedTuple):
    """A container of a pod."""

    pod: PodName
    container: str

    def __str__(self) -> str:
        return f"{self.pod}[{self.container}]"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container's limits on extended resources. `init` is an ordinary init container, not a sidecar."""

    name: str
    limits: Mapping[str, int]
    init: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod bound to this node, as the API server has it."""

    name: PodName
    uid: str
    created: str
    labels: Mapping[str, str]
    containers: tuple[ContainerSpec, ...]
    ended: bool = False

    @property
    def gpu_count_label(self) -> str | None:
        """Raw value of the label `aliyun.com/gpu-count`: over how many GPUs the pod wants its memory spread."""
        return self.labels.get(GPU_COUNT_LABEL)


@dataclass(frozen=True, slots=True)
class Holding:
    """Device ids of one resource that kubelet's book gives to a container. No holdings share an id."""

    owner: Owner
    resource: str
    ids: frozenset[str]


def parse_pod(pod: Mapping[str, Any]) -> Pod:
    """Read a Pod object (decoded JSON); absent parts are empty, odd quantities count as no limit."""
    meta, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    containers = [
        *(_container(c, init=c.get("restartPolicy") != "Always") for c in spec.get("initContainers") or ()),
        *(_container(c, init=False) for c in spec.get("containers") or ()),
    ]
    return Pod(
        name=PodName(meta.get("namespace", ""), meta.get("name", "")),
        uid=meta.get("uid", ""),
        created=meta.get("creationTimestamp") or "",
        labels=meta.get("labels") or {},
        containers=tuple(containers),
        ended=status.get("phase") in {"Succeeded", "Failed"},
    )


def _container(container: Mapping[str, Any], *, init: bool) -> ContainerSpec:
    limits = (container.get("resources") or {}).get("limits") or {}
    # Extended resources are whole numbers with a "/" in their name; cpu and memory are nothing to us.
    whole = {name: amount for name, text in limits.items() if "/" in name and (amount := whole_number(str(text)))}
    return ContainerSpec(container.get("name", ""), whole, init=init)


def whole_number(quantity: str) -> int | None:
    """A Kubernetes quantity that is a whole number (``12``, ``2k``, ``1Ki``); None for any other."""
    match = _QUANTITY.fullmatch(quantity)
    return int(match[1]) * _SUFFIXES[match[2]] if match else None


def requests(pods: Iterable[Pod], resource: str, size: int) -> Iterator[tuple[Pod, ContainerSpec]]:
    """Containers of living pods that ask for exactly `size` units of `resource`, oldest pod first."""
    for pod in sorted((p for p in pods if not p.ended), key=lambda p: (p.created, p.name)):
        for container in pod.containers:
            if container.limits.get(resource) == size:
                yield pod, container
