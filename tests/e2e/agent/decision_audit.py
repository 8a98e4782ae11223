"""The audit of scheduled pods: containers, kubelet's allocations, annotations and the scheduler's record agree."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    MEMORY_ANNOTATION,
    V1_ASSIGNED,
    V1_ASSUMED,
    V1_GPU,
    V1_GPU_UNITS,
    V1_KEYS,
    V1_UNITS,
)
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION
from gpuagent.domain.sharing.units import parse_id
from tests.e2e.agent.allocation_audit import holdings
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.share_scheduler import Decision, used_by
from tests.e2e.cluster import Checkpoint, CheckpointEntry

RESOURCES = (GPU_MEM, GPU_CORE, GPU_WHOLE)
ENDED = ("Succeeded", "Failed")

Units = Counter[int]
"""Minor number of a GPU to units of it."""


class NamesOfGpus:
    """The node's GPUs by what names them: UUID, key in device ids, minor number."""

    def __init__(self, node: Node) -> None:
        found = node.agent.status()["gpus"]
        self.minors: dict[str, int] = {gpu["uuid"]: gpu["minor"] for gpu in found}
        self.whole: dict[int, dict[str, int]] = {gpu["minor"]: gpu["units"] for gpu in found}
        self._by_key = {key_of(uuid): uuid for uuid in self.minors}

    def units(self, ids: Iterable[str]) -> Units:
        """What device ids are units of."""
        return Counter(self.minors[self._by_key[unit.gpu_key]] for i in ids if (unit := parse_id(i)))

    def number(self, name: str) -> int:
        """Of a GPU as annotations name it."""
        return self.minors[name] if name in self.minors else int(name)


@dataclass(frozen=True)
class HeldByPod:
    """What one pod has by kubelet's checkpoint.

    Attributes:
        apps: resource to place in `spec.containers` to units.
        sidecars: resource to units of all sidecars.
    """

    apps: Mapping[str, Mapping[int, Units]]
    sidecars: Mapping[str, Units] = field(default_factory=dict)

    def of(self, resource: str) -> Units:
        """Units of the containers that schedulers count."""
        return sum(self.apps.get(resource, {}).values(), Units())


def gpu_entries(checkpoint: Checkpoint, pod: dict[str, Any]) -> list[CheckpointEntry]:
    """What kubelet's checkpoint has of a pod's GPUs."""
    return [e for e in checkpoint.entries if e.pod_uid == pod["metadata"]["uid"] and e.resource in RESOURCES]


def asked(pod: dict[str, Any], *, init: bool) -> dict[tuple[str, str], int]:
    """(container, resource) to what it asks for; with ordinary init containers or without them."""
    first = pod["spec"].get("initContainers", [])
    lasting = [c for c in first if init or c.get("restartPolicy") == "Always"]
    return {
        (c["name"], resource): int(amount)
        for c in [*lasting, *pod["spec"]["containers"]]
        for resource, amount in c["resources"].get("limits", {}).items()
        if resource in RESOURCES
    }


def admitted(checkpoint: Checkpoint, pod: dict[str, Any]) -> bool:
    """Each of its lasting containers that ask for GPUs has some."""
    return asked(pod, init=False).keys() <= checkpoint.held_by(pod["metadata"]["uid"]).keys()


def wait_admitted(node: Node, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The pods, once kubelet's checkpoint has an entry for each of their containers that ask for GPUs."""

    pods = {}
    for name in names:
        pods[name] = node.cluster.pod(name)
        while not admitted(node.cluster.checkpoint(), pods[name]):
            pods[name] = node.cluster.wait_pod(
                name, lambda pod: pod["status"]["phase"] == "Failed" or admitted(node.cluster.checkpoint(), pod)
            )
            assert pods[name]["status"]["phase"] != "Failed", pods[name]["status"]
    return pods


def living(node: Node) -> list[str]:
    """Names of the test's pods that have not ended."""
    return [name for name in node.pods if node.cluster.pod(name)["status"]["phase"] not in ENDED]


def audit_decisions(node: Node, decided: Mapping[str, Decision], names: Iterable[str] | None = None) -> None:
    """Environment, kubelet's allocations and annotations of pods, against each other and against what was chosen for them.

    Args:
        node: with the pods.
        decided: by a scheduler, by the pod's name. Pods that are not in it have what the agent has chosen.
        names: of admitted pods; else those that have not ended.
    """
    node.audit()
    gpus = NamesOfGpus(node)
    pods = wait_admitted(node, living(node) if names is None else names)
    checkpoint = node.cluster.checkpoint()
    listed = {(h.owner.pod.name, h.owner.container, h.resource): h.ids for h in holdings(node.pod_resources)}
    used: dict[str, Units] = defaultdict(Counter)
    for name, pod in pods.items():
        entries = gpu_entries(checkpoint, pod)
        wanted = asked(pod, init=True)
        assert {(e.container, e.resource): len(e.ids) for e in entries}.items() <= wanted.items(), f"{name}: not asked"
        for entry in entries:
            true_answer(entry, gpus)
        true_environments(node, name, entries)
        for container, resource in asked(pod, init=False):
            ids = next(e.ids for e in entries if (e.container, e.resource) == (container, resource))
            assert listed[name, container, resource] == ids, (
                f"{name}: kubelet's checkpoint and pod-resources API differ"
            )
            used[resource].update(gpus.units(ids))
        held = held_by(pod, entries, gpus)
        wait_annotated(node, name, held, gpus)
        for number, minors in decided.get(name, {}).items():
            for places in held.apps.values():
                units = places.get(number)
                assert units is None or set(units) == set(minors), (name, number, units, minors)
    for resource, total in used.items():
        assert all(count <= gpus.whole[minor][resource] for minor, count in total.items()), f"oversold: {total}"


def held_by(pod: dict[str, Any], entries: Iterable[CheckpointEntry], gpus: NamesOfGpus) -> HeldByPod:
    """What the lasting containers of a pod hold; the memory and the compute of each are on the same GPUs."""
    positions = {c["name"]: number for number, c in enumerate(pod["spec"]["containers"])}
    first = {c["name"] for c in pod["spec"].get("initContainers", []) if c.get("restartPolicy") == "Always"}
    apps: dict[str, dict[int, Units]] = defaultdict(dict)
    sidecars: dict[str, Units] = defaultdict(Counter)
    for entry in entries:
        if entry.container in positions:
            apps[entry.resource][positions[entry.container]] = gpus.units(entry.ids)
        elif entry.container in first:
            sidecars[entry.resource].update(gpus.units(entry.ids))
    for number, units in apps[GPU_CORE].items():
        assert set(units) == set(apps[GPU_MEM].get(number, units)), f"{pod['metadata']['name']}: memory and compute"
    return HeldByPod({resource: places for resource, places in apps.items() if places}, sidecars)


def true_answer(entry: CheckpointEntry, gpus: NamesOfGpus) -> None:
    """The environment in the agent's answer is of the very units that kubelet has booked."""
    env = pb.ContainerAllocateResponse.FromString(entry.answer).envs
    units = gpus.units(entry.ids)
    assert {gpus.minors[uuid] for uuid in env["NVIDIA_VISIBLE_DEVICES"].split(",")} == set(units), entry
    if entry.resource == GPU_MEM:
        assert {int(number) for number in env["ALIYUN_COM_GPU_MEM_IDX"].split(",")} == set(units), entry
        assert {int(env["ALIYUN_COM_GPU_MEM_CONTAINER"])} == set(units.values()), entry
        assert int(env["ALIYUN_COM_GPU_MEM_POD"]) == len(entry.ids), entry
        assert {int(env["ALIYUN_COM_GPU_MEM_DEV"])} == {gpus.whole[minor][GPU_MEM] for minor in units}, entry


def true_environments(node: Node, name: str, entries: Iterable[CheckpointEntry]) -> None:
    """Containers that run were really started with what the agent answered; init containers have printed it."""
    for entry in entries:
        answer = dict(pb.ContainerAllocateResponse.FromString(entry.answer).envs)
        env = _environment(node, name, entry.container)
        assert env is None or answer.items() <= env.items(), (name, entry.container, answer, env)


def _environment(node: Node, name: str, container: str) -> dict[str, str] | None:
    """The environment of the running container, or what it has printed if it has ended; None if neither is known."""
    state = _state(node.cluster.pod(name), container)
    if "running" in state:
        with suppress(LookupError):
            return node.cluster.exec_env(name, container)
        # An init container has ended meanwhile.
        pod = node.cluster.wait_pod(name, lambda pod: "running" not in _state(pod, container))
        state = _state(pod, container)
    # What a container prints is complete when it has ended.
    printed = node.cluster.pod_log(name, container) if "terminated" in state else ""
    return dict(line.split("=", 1) for line in printed.splitlines() if "=" in line) or None


def _state(pod: dict[str, Any], container: str) -> dict[str, Any]:
    """The state of a container, as kubelet has reported it; empty if it has not."""
    status = pod["status"]
    statuses = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    return next((dict(one["state"]) for one in statuses if one["name"] == container), {})


def wait_annotated(node: Node, name: str, held: HeldByPod, gpus: NamesOfGpus) -> None:
    """Wait until the pod's annotations say what it holds; writing them is nothing that starting it waits for."""
    wrong: list[str] = []

    def annotated(pod: dict[str, Any]) -> bool:
        wrong[:] = untrue(pod, held, gpus)
        return not wrong

    try:
        pod = node.cluster.wait_pod(name, annotated)
    except TimeoutError as error:
        raise AssertionError(f"{name} holds {held}, and {'; '.join(wrong)}") from error
    whole = held.of(GPU_MEM) or held.of(GPU_WHOLE)
    with_sidecars = whole + held.sidecars.get(GPU_MEM, Units())
    assert used_by(pod, gpus.minors) in (whole, with_sidecars), (
        f"{name}: a scheduler reads other allocations than kubelet's"
    )


def untrue(pod: dict[str, Any], held: HeldByPod, gpus: NamesOfGpus) -> Iterator[str]:
    """What the annotations of a pod say and it does not hold, and what they leave out."""
    has: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    v1 = any(key in has for key in V1_KEYS)
    if v1:
        yield from _untrue_v1(has, held, gpus)
    for resource, key in ((GPU_MEM, MEMORY_ANNOTATION), (GPU_CORE, CORE_ANNOTATION)):
        if key in has:
            try:
                written = {
                    int(number): {gpus.number(gpu): units for gpu, units in of.items()}
                    for number, of in json.loads(has[key]).items()
                }
            except (ValueError, AttributeError):
                yield f"{key} is {has[key]}"
                continue
            if written != held.apps.get(resource, {}):
                yield f"{key} says {has[key]}"
        elif resource in held.apps and not (resource == GPU_MEM and v1):
            yield f"nothing tells its {resource}"
    if GPU_WHOLE in held.apps:
        group = has.get(GROUP_ANNOTATION, "")
        if sorted(map(gpus.number, filter(None, group.split(",")))) != sorted(held.of(GPU_WHOLE)):
            yield f"{GROUP_ANNOTATION} says {group!r}"


def _untrue_v1(has: Mapping[str, str], held: HeldByPod, gpus: NamesOfGpus) -> Iterator[str]:
    """All five keys, and what they say of the GPU that they name: a pod on several has one that is told."""
    if missing := [key for key in V1_KEYS if key not in has]:
        yield f"{', '.join(missing)} missing"
        return
    if has[V1_ASSIGNED] != "true":
        yield f"{V1_ASSIGNED} says {has[V1_ASSIGNED]}"
    if not (has[V1_ASSUMED].isascii() and has[V1_ASSUMED].isdecimal() and int(has[V1_ASSUMED]) <= time.time_ns()):
        yield f"{V1_ASSUMED} says {has[V1_ASSUMED]}"
    apps = held.of(GPU_MEM)
    everything = apps + held.sidecars.get(GPU_MEM, Units())
    try:
        gpu, units, whole = gpus.number(has[V1_GPU]), int(has[V1_UNITS]), int(has[V1_GPU_UNITS])
    except ValueError:
        gpu = -1
    if gpu not in everything or units not in (apps[gpu], everything[gpu]) or whole != gpus.whole[gpu][GPU_MEM]:
        yield f"it says {has[V1_UNITS]} of {has[V1_GPU_UNITS]} units of GPU {has[V1_GPU]}"
