"""Pods as the stand-in kubelet sees them, and what admission made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp

_T = TypeVar("_T")


class StartError(Exception):
    """A container could not start now (``CreateContainerConfigError``); kubelet tries again."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container and its limits; ``restartable`` makes an init container a sidecar."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    restartable: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod bound to this node."""

    name: str
    namespace: str = "default"
    uid: str = ""
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()

    def __post_init__(self) -> None:
        """Give a pod without UID one of its own name, so that short tests stay short."""
        if not self.uid:
            object.__setattr__(self, "uid", f"{self.namespace}-{self.name}")

    def all_containers(self) -> Iterator[tuple[Container, bool]]:
        """Every container in admission order, with whether it is an init container."""
        for container in self.init_containers:
            yield container, True
        for container in self.containers:
            yield container, False

    def lasting(self) -> Iterator[Container]:
        """The containers that live as long as the pod: sidecars and app containers."""
        for container, init in self.all_containers():
            if not init or container.restartable:
                yield container

    def container(self, name: str) -> Container:
        """The container of that name."""
        return next(container for container, _ in self.all_containers() if container.name == name)


@dataclass(frozen=True, slots=True)
class Granted:
    """One container's grant: the answers for its resources, merged (first seen wins)."""

    ids: Mapping[str, frozenset[str]]
    env: Mapping[str, str]
    mounts: tuple[dp.Mount, ...]
    devices: tuple[dp.DeviceSpec, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Admission:
    """The outcome of admitting a pod; ``failed`` is the text of the pod's status, empty when admitted."""

    pod: Pod
    containers: Mapping[str, Granted]
    failed: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        """Whether the pod was admitted."""
        return not self.failed


def merge(answers: list[tuple[str, frozenset[str], dp.ContainerAllocateResponse]]) -> Granted:
    """Merge (resource, ids, answer) in the order given; kubelet's order is random from call to call."""
    env: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, dp.Mount] = {}
    devices: dict[str, dp.DeviceSpec] = {}
    cdi: dict[str, None] = {}
    conflicts: list[str] = []

    def put(kind: str, seen: dict[str, _T], key: str, value: _T, resource: str) -> None:
        if seen.setdefault(key, value) != value:
            conflicts.append(f"{kind} {key}: {seen[key]!r} kept, {value!r} of {resource} dropped")

    for resource, _, answer in answers:
        for key, value in answer.envs.items():
            put("env", env, key, value, resource)
        for key, value in answer.annotations.items():
            put("annotation", annotations, key, value, resource)
        for mount in answer.mounts:
            put("mount", mounts, mount.container_path, mount, resource)
        for device in answer.devices:
            put("device", devices, device.container_path, device, resource)
        cdi.update(dict.fromkeys(device.name for device in answer.cdi_devices))
    ids = {resource: chosen for resource, chosen, _ in answers}
    return Granted(ids, env, tuple(mounts.values()), tuple(devices.values()), annotations, tuple(cdi), tuple(conflicts))
