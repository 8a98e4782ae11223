"""Holds pods with ResourceClaims against the promises, when a container starts and when all is quiet."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpuagent.domain.sharing.mode import DRA_DRIVER, MODE_LABEL
from gpuagent.domain.status.problems import problems
from gpuagent.simulation.boxes import BoxGpu
from simworld.history import Living
from simworld.parts.amounts import ENDED
from simworld.parts.claim_scheduler import Allocations, Part, uuid_of
from simworld.parts.node import SimulatedNode
from simworld.runtime.kernel import kernel
from standin.api.objects import Json
from standin.kubelet.dra.claim_infos import FILE_NAME

if TYPE_CHECKING:
    from simworld.world import World

MIB_PER_GIB = 1024
SHARERS = 20
"""Claims of one GPU, by default."""
LOOK_S = 1.0
MOST_IDLE_WRITES = 20
"""Writes of slices that changed nothing: after a restart, an agent finds out what the API server drops."""
SHARE_VARIABLE = "ALIYUN_COM_GPU_MEM_CONTAINER"


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
        if allocations and not self._has_what_a_former_pod_had(new, allocations):
            yield from self._wrong_grant(new, allocations)
        for uuid in new.gpus:
            yield from self._oversold(new, uuid)

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
        pod = self._history.name(living.pod_uid)
        name = f"{pod}/{living.container}"
        parts = _all_parts(allocations)
        allocated = {part.uuid for part in parts}
        if allocated != set(living.gpus):
            yield f"{name} got GPUs {sorted(living.gpus)}, and its claim was allocated {sorted(allocated)}"
        shares = self._shares_gib(living.node, parts)
        written = living.env.get(SHARE_VARIABLE)
        # Of several amounts, the variable may have any.
        expected = {str(share) for share in shares}
        if shares and written not in expected:
            yield f"{name} was allocated {sorted(shares)} GiB, and {SHARE_VARIABLE} is {written!r}"

    def _shares_gib(self, node: str, parts: Iterable[Part]) -> set[int]:
        """Amounts of memory that the parts are of, without those that are whole GPUs."""
        shares: set[int] = set()
        for part in parts:
            if not self._is_whole(node, part):
                shares.add(part.mib // MIB_PER_GIB)
        return shares

    def _oversold(self, new: Living, uuid: str) -> Iterator[str]:
        """Whether the GPU has more living users than it can have."""
        # Containers may share a claim, so each claim counts once.
        mib_by_claim: dict[str, list[int]] = {}
        unit_users: set[str] = set()
        for living in self._history.on_node(new.node):
            if uuid not in living.gpus:
                continue
            allocations = self._allocations(living)
            if not allocations:
                unit_users.add(self._history.name(living.pod_uid))
            for claim, parts in allocations.items():
                mib_by_claim[claim] = [self._mib(new.node, part) for part in parts if part.uuid == uuid]
        if mib_by_claim and unit_users:
            yield f"GPU {uuid} has living containers with claims and with units: {sorted(unit_users)}"
        shares: list[int] = []
        for mibs in mib_by_claim.values():
            shares += mibs
        whole = self._gpu_mib(new.node, uuid)
        if sum(shares) > whole or len(shares) > SHARERS:
            yield f"GPU {uuid} has living containers with {shares} MiB of {whole} MiB in claims {sorted(mib_by_claim)}"

    def _allocations(self, living: Living) -> Allocations:
        return self._world.claims.scheduler.allocated.get(living.pod_uid, {})

    def _gpu_mib(self, node: str, uuid: str) -> int:
        (gpu,) = [known for known in self._node(node).box.gpus if known.uuid == uuid]
        return gpu.memory_mib

    def _node(self, name: str) -> SimulatedNode:
        (node,) = [known for known in self._world.nodes if known.name == name]
        return node

    def _mib(self, node: str, part: Part) -> int:
        """What a part takes; all of the GPU if the API server knows no capacity that is consumed."""
        return part.mib or self._gpu_mib(node, part.uuid)

    def _is_whole(self, node: str, part: Part) -> bool:
        return self._mib(node, part) // MIB_PER_GIB >= self._gpu_mib(node, part.uuid) // MIB_PER_GIB

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
            device = next(iter(self._free_devices(node)), None)
            if device is None:
                continue
            pod = self._world.claims.probe_device(node.name, device)
            key = pod["metadata"]["uid"], "main-0"
            if not kernel().run(lambda key=key: key in self._history.living, most_s):  # type: ignore[misc]
                name = device["name"]
                why = "; ".join(self._reasons(pod)) or "no Event says why"
                self._history.break_promise(
                    f"a pod with a claim for {name} does not run on {node.name} within {most_s:g} s: {why}"
                )

    def _pods(self) -> list[Json]:
        return [pod for pod in self._world.api.objects.peek("pods") if pod["spec"].get("resourceClaims")]

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
            if not is_living:
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
        """Whether the node has left mode dra, or a GPU of the pod is lost or has other containers."""
        node = pod["spec"]["nodeName"]
        if self._mode(node) != "dra":
            return True
        allocations = self._world.claims.scheduler.allocated.get(pod["metadata"]["uid"], {})
        allocated = {part.uuid for part in _all_parts(allocations)}
        unavailable: set[str] = set()
        for simulated in self._world.nodes:
            unavailable.update(simulated.lost)
        for living in self._history.on_node(node):
            unavailable.update(living.gpus)
        return bool(allocated & unavailable)

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
            claims.update(self._allocations(container))
        return claims

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
        published = {uuid_of(device): device for device in devices}
        for gpu in node.box.gpus:
            device = published.pop(gpu.uuid, None)
            if device is not None:
                self._check_device(node, gpu, device)
            elif not reasons:
                self._history.break_promise(f"{node.name} does not publish {gpu.uuid}, and no problem says why")
        if published:
            self._history.break_promise(f"{node.name} publishes GPUs that it does not have: {sorted(published)}")

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
        may_be_tainted = is_lost or self._has_holders_of_units(node, gpu)
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
        living = {uuid for container in self._history.on_node(node.name) for uuid in container.gpus}
        for device in self._devices(node):
            is_taken = self._world.claims.scheduler.has_allocation_on(device["name"])
            if not is_taken and uuid_of(device) not in living and not device.get("taints"):
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
