"""Holds pods with ResourceClaims against the promises, when a container starts and when all is quiet."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpuagent.domain.sharing.mode import DRA_DRIVER, MODE_LABEL
from gpuagent.domain.status.problems import problems
from gpuagent.simulation.boxes import BoxGpu
from simworld.claim_grants import (
    MIB_PER_GIB,
    GpuUse,
    expected_variables,
    gpu_uses,
    is_impossible,
    mib_of,
    wrong_variables,
)
from simworld.history import Living
from simworld.linked_gpus import are_linked, gpus_of, is_set, wrong_sets
from simworld.parts.amounts import ENDED, has_claims
from simworld.parts.claim_scheduler import SHARERS, Allocations, Part
from simworld.parts.node import SimulatedNode
from simworld.runtime.kernel import kernel
from standin.api.objects import Json
from standin.kubelet.dra.claim_infos import FILE_NAME

if TYPE_CHECKING:
    from simworld.world import World

LOOK_S = 1.0
MOST_IDLE_WRITES = 20
"""Writes of slices that changed nothing: after a restart, an agent finds out what the API server drops."""
ALL_CORES = 100
"""Percent of compute that a GPU has."""


class ClaimChecker:
    """Checks a world that has claims; does nothing in others."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._history = world.history
        self._idle_writes = 0
        if world.scenario.has_claims:
            world.history.start_checks.append(self._check_start)
            kernel().spawn(self._count_idle_writes, "claim checker", kernel().outside)

    # -- at each start --------------------------------------------------------------------------------------------

    def _check_start(self, new: Living) -> Iterator[str]:
        """Promises that a container breaks by starting with what it has, beside those that live."""
        allocations = self._allocations(new)
        if self._is_impossible(new.node, new.pod_uid):
            yield f"{self._name(new)} runs, and the runtime cannot give each container of its pod what it names"
        elif self._has_claims(new) and not self._has_what_a_former_pod_had(new, allocations):
            yield from self._wrong_grant(new, allocations)
            yield from self._not_linked(new, allocations)
            yield from self._unwatched(new)
        for uuid in new.gpus:
            yield from self._oversold(new, uuid)
            yield from self._allocated_too_often(new, uuid)

    def _has_what_a_former_pod_had(self, new: Living, allocations: Allocations) -> bool:
        """Whether kubelet gave it what it had prepared for a pod that was deleted by force, on other GPUs.

        The claim lost its allocation with that pod, and got another one before kubelet unprepared it. Kubelet knows the
        claim by its UID, so it calls no driver again.
        """
        there = {pod["metadata"]["uid"] for pod in self._pods()}
        users = _users_of_claims(self._node(new.node))
        for claim in allocations:
            for former_uid in users.get(claim, set()) - there:
                former = self._world.claims.scheduler.allocated.get(former_uid, {})
                gpus = {part.uuid for part in former.get(claim, ())}
                if gpus == set(new.gpus):
                    return True
        return False

    def _wrong_grant(self, living: Living, allocations: Allocations) -> Iterator[str]:
        """What the container has that the scheduler did not allocate, or lacks."""
        parts = _all_parts(allocations)
        allocated = {part.uuid for part in parts}
        if allocated != set(living.gpus):
            got = sorted(living.gpus)
            yield f"{self._name(living)} got GPUs {got}, and its claim was allocated {sorted(allocated)}"
            return
        uses = self._uses(living.node, allocations)
        isolates = self._world.scenario.isolates
        wrong = wrong_variables(living.env, expected_variables(uses, isolates=isolates)) if uses else ""
        if wrong:
            yield f"{self._name(living)}: {wrong}"

    def _not_linked(self, living: Living, allocations: Allocations) -> Iterator[str]:
        """The claims whose GPUs have to be linked, and are not."""
        box = self._node(living.node).box
        for claim in allocations:
            parts = self._world.claims.scheduler.allocated[living.pod_uid][claim]
            uuids = {part.uuid for part in parts}
            is_linked = claim in self._world.claims.scheduler.linked
            if is_linked and not are_linked(uuids, box):
                yield f"{self._name(living)}: GPUs {sorted(uuids)} of claim {claim} are not linked"

    def _unwatched(self, living: Living) -> Iterator[str]:
        """The GPUs that a monitor of all GPUs does not see, and that were published when it was bound."""
        if living.pod_uid not in self._world.claims.watches_all:
            return
        unseen = self._world.claims.scheduler.published[living.pod_uid] - set(living.gpus)
        if unseen:
            yield f"{self._name(living)} watches all GPUs and does not see {sorted(unseen)}"

    def _is_impossible(self, node: str, uid: str) -> bool:
        """Whether the containers of a pod that is bound to a node cannot have what they name."""
        if uid in self._world.claims.refused:
            return True
        isolates = self._world.scenario.isolates
        by_container = self._world.claims.scheduler.used.get(uid, {})
        every = [self._uses(node, allocations) for allocations in by_container.values()]
        return any(is_impossible(uses, isolates=isolates) for uses in every)

    def _uses(self, node: str, allocations: Allocations) -> list[GpuUse]:
        """What a container has of each GPU."""
        return gpu_uses(_all_parts(allocations), self._node(node).box.gpus)

    def _name(self, living: Living) -> str:
        pod = self._history.name(living.pod_uid)
        return f"{pod}/{living.container}"

    def _oversold(self, new: Living, uuid: str) -> Iterator[str]:
        """Whether the GPU has more living users than it can have."""
        # Containers may share a part of a claim, so each part counts once.
        parts: set[tuple[str, Part]] = set()
        unit_users: set[str] = set()
        for living in self._history.on_node(new.node):
            if uuid not in living.gpus:
                continue
            if not self._has_claims(living):
                unit_users.add(self._history.name(living.pod_uid))
            for claim, of_claim in self._allocations(living).items():
                # Those that only watch the GPU use nothing of it.
                used = [part for part in of_claim if part.uuid == uuid and not part.watches]
                parts.update((claim, part) for part in used)
        claims = sorted({claim for claim, _ in parts})
        if parts and unit_users:
            yield f"GPU {uuid} has living containers with claims and with units: {sorted(unit_users)}"
        gpu = self._gpu(new.node, uuid)
        shares = sorted(mib_of(part, gpu) for _, part in parts)
        if sum(shares) > gpu.memory_mib or len(shares) > SHARERS:
            yield f"GPU {uuid} has living containers with {shares} MiB of {gpu.memory_mib} MiB in claims {claims}"
        cores = sum(part.cores for _, part in parts)
        if cores > ALL_CORES:
            yield f"GPU {uuid} has living containers with {cores} % of compute in claims {claims}"

    def _allocated_too_often(self, new: Living, uuid: str) -> Iterator[str]:
        """Whether the slices let the scheduler allocate more of the GPU than it has."""
        if self._world.claims.gates_ever_off:
            # A device may have been left out of the slices while a claim that is not prepared has it.
            return
        gpu = self._gpu(new.node, uuid)
        living = self._living_claims(new.node)
        ever_lost = self._node(new.node).ever_lost
        shares: list[int] = []
        for claim, parts in self._world.claims.scheduler.allocations().items():
            # An agent that starts without a lost GPU does not know a set with it, unless the claim is prepared.
            is_forgotten = claim not in living and any(part.uuid in ever_lost for part in parts)
            if is_forgotten:
                continue
            shares += [mib_of(part, gpu) for part in parts if part.uuid == uuid and not part.watches]
        if sum(shares) > gpu.memory_mib:
            yield f"GPU {uuid} is allocated to claims with {sorted(shares)} MiB of {gpu.memory_mib} MiB"

    def _has_claims(self, living: Living) -> bool:
        """Whether the container is of a pod with claims, also if it names none."""
        return living.pod_uid in self._world.claims.scheduler.allocated

    def _allocations(self, living: Living) -> Allocations:
        """What the container names of the claims of its pod."""
        return self._world.claims.scheduler.used.get(living.pod_uid, {}).get(living.container, {})

    def _gpu(self, node: str, uuid: str) -> BoxGpu:
        (gpu,) = [known for known in self._node(node).box.gpus if known.uuid == uuid]
        return gpu

    def _node(self, name: str) -> SimulatedNode:
        (node,) = [known for known in self._world.nodes if known.name == name]
        return node

    # -- when all is quiet ----------------------------------------------------------------------------------------

    def check_quiet(self) -> None:
        """Check pods, records, and slices. Everything has been repaired and quiet for long."""
        if not self._world.scenario.has_claims:
            return
        for pod in self._pods():
            self._check_pod(pod)
        for node in self._world.nodes:
            self._check_left(node)
            self._check_slice(node)
        if self._idle_writes > MOST_IDLE_WRITES:
            self._history.break_promise(f"slices were written {self._idle_writes} times without a change")

    def probe(self, most_s: float) -> None:
        """A pod with a claim for a free GPU runs within its bound, on each node in mode dra."""
        if not self._world.scenario.has_claims:
            return
        for node in self._world.nodes:
            for is_of_set in (True, False):
                device = _first(self._free_devices(node), is_of_set=is_of_set)
                if device is not None:
                    self._probe_device(node, device, most_s)

    def _probe_device(self, node: SimulatedNode, device: Json, most_s: float) -> None:
        """A pod for a free device runs within its bound."""
        pod = self._world.claims.probe_device(node.name, device)
        key = pod["metadata"]["uid"], "main-0"
        if not kernel().run(lambda: key in self._history.living, most_s):
            name = device["name"]
            why = "; ".join(self._reasons(pod)) or "no Event says why"
            self._history.break_promise(
                f"a pod with a claim for {name} does not run on {node.name} within {most_s:g} s: {why}"
            )

    def _pods(self) -> list[Json]:
        return [pod for pod in self._world.api.objects.peek("pods") if has_claims(pod)]

    def _check_pod(self, pod: Json) -> None:
        """A bound pod runs, or says why not: others have its GPU, the GPU is lost, or its node has left mode dra."""
        node = pod["spec"].get("nodeName")
        status = pod.get("status") or {}
        phase = status.get("phase")
        if not node or phase in ENDED:
            return
        meta = pod["metadata"]
        if "deletionTimestamp" in meta:
            self._history.break_promise(f"{meta['name']} on {node} was deleted and does not end")
        elif phase == "Running":
            self._check_running(pod)
        else:
            self._check_refusal(pod)

    def _check_running(self, pod: Json) -> None:
        """All containers of a pod that is said to run live."""
        meta = pod["metadata"]
        for container in pod["spec"]["containers"]:
            is_living = (meta["uid"], container["name"]) in self._history.living
            if not is_living and not self.was_lost_before_a_boot(pod):
                self._history.break_promise(f"{meta['name']}/{container['name']} is said to run and does not")

    def _check_refusal(self, pod: Json) -> None:
        """A bound pod that does not run has an Event that says why, and a reason."""
        name = pod["metadata"]["name"]
        node = pod["spec"]["nodeName"]
        reasons = self._reasons(pod)
        is_explained = any(reason.startswith("GPURefused") for reason in reasons)
        if not is_explained:
            self._history.break_promise(f"{name} with a claim on {node} does not run, and the agent does not say why")
        elif not self._may_be_refused(pod):
            self._history.break_promise(f"{name} with a claim on {node} does not run: {reasons[-1]}")

    def _may_be_refused(self, pod: Json) -> bool:
        """Whether its containers cannot have what they name, its node left mode dra, or a GPU of it is not for it."""
        node = pod["spec"]["nodeName"]
        uid = pod["metadata"]["uid"]
        is_refused = self._is_impossible(node, uid)
        if is_refused or self._mode(node) != "dra" or self._has_lost_gpu(pod):
            return True
        used = self._world.claims.scheduler.claimed_gpus(uid)
        taken: set[str] = set()
        for living in self._history.on_node(node):
            taken.update(self.used_gpus(living))
        for uuid, kept in self._node(node).fenced.items():
            # A pod that ran on a GPU when it was fenced keeps it.
            if uid not in kept:
                taken.add(uuid)
        return bool(used & taken)

    def was_lost_before_a_boot(self, pod: Json) -> bool:
        """Whether a GPU of its claims was lost before its node booted: no container comes back on that one."""
        node = self._node(pod["spec"]["nodeName"])
        return any(node.lost[uuid] < node.booted_at for uuid in self._lost_gpus(pod))

    def _lost_gpus(self, pod: Json) -> set[str]:
        """The GPUs of its claims that are lost for good."""
        allocations = self._world.claims.scheduler.allocated.get(pod["metadata"]["uid"], {})
        lost = self._node(pod["spec"]["nodeName"]).lost
        return {part.uuid for part in _all_parts(allocations) if part.uuid in lost}

    def _has_lost_gpu(self, pod: Json) -> bool:
        """Whether a GPU of its claims is lost. An agent that starts without it cannot show it to a monitor either."""
        return bool(self._lost_gpus(pod))

    def _reasons(self, pod: Json) -> list[str]:
        """Reason and message of the Events about a pod."""
        uid = pod["metadata"]["uid"]
        return [
            f"{event['reason']}: {event['message']}"
            for event in self._world.api.objects.peek("events")
            if event["involvedObject"].get("uid") == uid
        ]

    def _check_left(self, node: SimulatedNode) -> None:
        """Records, CDI specifications and kubelet's checkpoint have the claims of living containers, and no others."""
        living = self._living_claims(node.name)
        waiting = self._waiting_claims(node.name)
        for place, claims in self._recorded_claims(node).items():
            abandoned = claims - living - waiting
            if abandoned:
                names = ", ".join(sorted(abandoned))
                self._history.break_promise(f"{node.name}: {place} has claims of no container: {names}")
            lost = living - claims
            if lost:
                names = ", ".join(sorted(lost))
                self._history.break_promise(f"{node.name}: {place} lacks claims of living containers: {names}")

    def _recorded_claims(self, node: SimulatedNode) -> dict[str, set[str]]:
        """UIDs of the claims in each place of the node that has some."""
        assert node.agent is not None
        recorded = {
            "the agent": set(node.agent.state.claims.prepared),
            "the folder of records": {path.stem for path in node.records.glob("*.json")},
            "the CDI folder": _claims_with_cdi(node),
        }
        if self._mode(node.name) == "dra":
            recorded["kubelet's checkpoint"] = _checkpoint(node)
        return recorded

    def _living_claims(self, node: str) -> set[str]:
        """UIDs of the claims of the containers that live on the node."""
        claims: set[str] = set()
        for container in self._history.on_node(node):
            # Kubelet has a claim prepared also if no container names it.
            claims.update(self._world.claims.scheduler.allocated.get(container.pod_uid, {}))
        return claims

    def new_gpus(self, living: Living) -> set[str]:
        """UUIDs of the GPUs that a container that starts uses, and that its node has not prepared for another pod.

        A monitor looks at GPUs in any condition. And kubelet asks no driver about a claim that it has prepared already.
        """
        users = _users_of_claims(self._node(living.node))
        prepared: set[str] = set()
        for claim, parts in self._allocations(living).items():
            if users.get(claim, set()) - {living.pod_uid}:
                prepared.update(part.uuid for part in parts)
        return self.used_gpus(living) - prepared

    def used_gpus(self, living: Living) -> set[str]:
        """UUIDs of the GPUs that a container uses: those that it only watches are free for others."""
        if not self._has_claims(living):
            return set(living.gpus)
        watched = {part.uuid for part in _all_parts(self._allocations(living)) if part.watches}
        return set(living.gpus) - watched

    def _waiting_claims(self, node: str) -> set[str]:
        """Claims of the pods that are bound to the node and have not ended."""
        claims: set[str] = set()
        for pod in self._pods():
            is_there = pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ENDED
            if is_there:
                claims |= self._world.claims.scheduler.allocated.get(pod["metadata"]["uid"], {}).keys()
        return claims

    def _check_slice(self, node: SimulatedNode) -> None:
        """In mode dra, every GPU is published with all of its memory; in other modes, none is."""
        assert node.agent is not None
        devices = self._devices(node)
        mode = self._mode(node.name)
        reasons = [f"{problem.reason}: {problem.message}" for problem in problems(node.agent.state)]
        if mode != "dra":
            if devices:
                self._history.break_promise(f"{node.name} publishes {len(devices)} devices in mode {mode}")
            return
        published = {gpus_of(device, node.box)[0]: device for device in devices if not is_set(device)}
        for gpu in node.box.gpus:
            device = published.pop(gpu.uuid, None)
            if device is not None:
                self._check_device(node, gpu, device)
            elif not reasons:
                self._history.break_promise(f"{node.name} does not publish {gpu.uuid}, and no problem says why")
        if published:
            self._history.break_promise(f"{node.name} publishes GPUs that it does not have: {sorted(published)}")
        self._check_sets(node, devices)

    def _check_sets(self, node: SimulatedNode, devices: list[Json]) -> None:
        """Linked GPUs are published as sets, if the API server keeps the counters that sets need."""
        scenario = self._world.scenario
        has_sets = scenario.has_links and "DRAPartitionableDevices" not in scenario.gates_off
        if not has_sets:
            if any(is_set(device) for device in devices):
                self._history.break_promise(f"{node.name} publishes sets, and nothing keeps their GPUs from others")
            return
        allocated = self._world.claims.scheduler.allocated_devices()
        claimed = {frozenset(uuids) for uuids in allocated.values()}
        # An agent that starts without a GPU does not know it, and publishes the rest of a set that a claim has.
        problems = () if node.lost else wrong_sets(devices, claimed, node.box)
        for problem in problems:
            self._history.break_promise(f"{node.name}: {problem}")
        for device in filter(is_set, devices):
            gpus = set(gpus_of(device, node.box))
            lost = gpus & node.lost.keys()
            fenced = gpus & node.fenced.keys()
            name = device["name"]
            if lost and not device.get("taints"):
                self._history.break_promise(f"{node.name} publishes {name} without a taint, and of it are lost: {lost}")
            elif fenced and not device.get("taints"):
                problem = f"{node.name} publishes {name} without a taint, and of it are fenced: {fenced}"
                self._history.break_promise(problem)

    def _check_device(self, node: SimulatedNode, gpu: BoxGpu, device: Json) -> None:
        """A GPU is published with all of its memory, and tainted only while lost or held by units."""
        published = f"{node.name} publishes {gpu.uuid}"
        memory = device["capacity"]["memory"]["value"]
        all_memory = f"{gpu.memory_mib // MIB_PER_GIB}Gi"
        if memory != all_memory:
            self._history.break_promise(f"{node.name} publishes {memory} of {gpu.uuid}, which has {gpu.memory_mib} MiB")
        taints = device.get("taints") or ()
        is_lost = gpu.uuid in node.lost
        if is_lost and not taints:
            self._history.break_promise(f"{published} without a taint, and it is lost")
        is_fenced = gpu.uuid in node.fenced
        if is_fenced and not taints:
            self._history.break_promise(f"{published} without a taint, and it is fenced")
        may_be_tainted = is_lost or is_fenced or self._has_holders_of_units(node, gpu)
        if taints and not may_be_tainted:
            keys = [taint["key"] for taint in taints]
            self._history.break_promise(f"{published} with taints {keys}, and is quiet")

    def _has_holders_of_units(self, node: SimulatedNode, gpu: BoxGpu) -> bool:
        containers = self._history.on_node(node.name)
        return any(living.units and gpu.uuid in living.gpus for living in containers)

    def _free_devices(self, node: SimulatedNode) -> Iterator[Json]:
        """Devices that no claim and no living container has."""
        if self._mode(node.name) != "dra":
            return
        taken: set[str] = set()
        for container in self._history.on_node(node.name):
            taken.update(self.used_gpus(container))
        for uuids in self._world.claims.scheduler.allocated_devices().values():
            taken.update(uuids)
        for device in self._devices(node):
            is_taken = bool(taken & set(gpus_of(device, node.box)))
            if not is_taken and not device.get("taints"):
                yield device

    def _devices(self, node: SimulatedNode) -> list[Json]:
        devices: list[Json] = []
        for found in self._world.api.objects.peek("resourceslices"):
            if found["spec"].get("nodeName") == node.name:
                devices += found["spec"].get("devices") or ()
        return devices

    def _mode(self, node: str) -> str:
        stored = self._world.api.objects.get(("nodes", "", node))
        mode: str = stored["metadata"]["labels"].get(MODE_LABEL, "")
        return mode

    def _count_idle_writes(self) -> None:
        objects = self._world.api.objects
        known = objects.version
        while True:
            kernel().sleep(LOOK_S)
            changes = objects.changes(known)
            known = objects.version
            for change in changes:
                if change.key[0] != "resourceslices" or change.before is None or change.after is None:
                    continue
                if change.before["spec"] == change.after["spec"]:
                    self._idle_writes += 1


def _all_parts(allocations: Allocations) -> list[Part]:
    """Parts of GPUs of all claims."""
    parts: list[Part] = []
    for allocated in allocations.values():
        parts += allocated
    return parts


def _first(devices: Iterable[Json], *, is_of_set: bool) -> Json | None:
    """The first device for a set of GPUs, or for one GPU; None if there is none."""
    wanted = (device for device in devices if is_set(device) == is_of_set)
    return next(wanted, None)


def _claims_with_cdi(node: SimulatedNode) -> set[str]:
    """UIDs of the claims that have a CDI specification."""
    prefix = f"{DRA_DRIVER}-claim-"
    return {path.stem.removeprefix(prefix) for path in node.cdi_dir.glob(f"{prefix}*.json")}


def _checkpoint(node: SimulatedNode) -> set[str]:
    """UIDs of the claims in kubelet's checkpoint."""
    return set(_users_of_claims(node))


def _users_of_claims(node: SimulatedNode) -> dict[str, set[str]]:
    """UIDs of the pods that use each claim, by the claim's UID, as kubelet's checkpoint has them."""
    path = node.kubelet.root / FILE_NAME
    if not path.exists():
        return {}
    states: Iterable[Json] = json.loads(json.loads(path.read_text())["Data"])["ClaimInfoStateList"]
    return {state["ClaimUID"]: set(state["PodUIDs"]) for state in states}
