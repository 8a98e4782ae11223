"""The agent's reports on its node: labels, amounts, condition, the status page."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from gpuagent.domain.dra.isolation import serving_layer
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.holdings import located
from gpuagent.domain.pods.pod import Holding
from gpuagent.domain.sharing.claim import CLAIM_CORES, CLAIM_MEMORY, PreparedClaim
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, DRA_DRIVER, GPU_COUNT, MODE_LABEL, Mode
from gpuagent.domain.state import State
from gpuagent.domain.status.problems import Problem, problems, switch
from gpuagent.domain.usable_gpus import serves_gpus, usable_gpus
from gpuagent.system.printable import printable

Json = dict[str, Any]

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9_.-]")

CONDITION_TYPE = "GPUAgentReady"
INFO_MARK = "for information: "
"""Before each message of the condition about something that is as it should be."""


def node_labels(state: State) -> dict[str, str | None]:
    """The desired labels `aliyun.accelerator/nvidia_*` (None: absent); empty until the driver has answered."""
    gpus = state.gpus.by_index
    if gpus:
        first = gpus[0]
        allowed = _NOT_IN_LABELS.sub("-", first.model)
        # A label's value has 63 characters at most, and begins and ends with a letter or digit.
        name = allowed[:63].strip("-_.")
        memory = f"{first.memory_mib}MiB" if first.memory_mib else None
    elif _has_no_gpus(state):
        name = None
        memory = None
    else:
        return {}
    return {
        "aliyun.accelerator/nvidia_name": name,
        "aliyun.accelerator/nvidia_mem": memory,
        "aliyun.accelerator/nvidia_count": str(len(gpus)),
    }


def node_capacity(state: State) -> dict[str, str]:
    """Node status amounts that kubelet does not manage: `aliyun.com/gpu-count`. Empty until the driver has answered."""
    gpus = state.gpus.by_uuid
    if not gpus and not _has_no_gpus(state):
        return {}
    count = len(gpus)
    return {GPU_COUNT: str(count)}


def _has_no_gpus(state: State) -> bool:
    """Whether the driver has answered that there is no GPU."""
    gpus = state.gpus
    has_answered = gpus.driver_problem is None
    return has_answered and not gpus.by_uuid and not gpus.unreadable


def node_condition(state: State) -> dict[str, str]:
    """The node condition: type, status, reason, message. The writer adds the times."""
    every = problems(state)
    blocking = [problem for problem in every if problem.blocking]
    lasting = [problem for problem in every if problem.blocking or not problem.passing]
    messages = _in_words(lasting)
    if blocking:
        status = "False"
        reason: str = blocking[0].reason
    else:
        status = "True"
        reason = "Ready"
        summary = f"mode {state.node.mode}, {_gpus_words(state)}"
        messages.insert(0, summary)
    return {
        "type": CONDITION_TYPE,
        "status": status,
        "reason": reason,
        "message": printable("; ".join(messages)),
    }


def _in_words(lasting: Iterable[Problem]) -> list[str]:
    """The messages, the worst first. Those that are for information are marked, for `kubectl inspect cgpu --health`."""
    messages = []
    for_information = []
    for problem in lasting:
        if problem.severity == "info":
            for_information.append(INFO_MARK + problem.message)
        else:
            messages.append(problem.message)
    return messages + for_information


def _gpus_words(state: State) -> str:
    count = len(state.gpus.by_uuid)
    usable = len(usable_gpus(state))
    if usable == count or not serves_gpus(state):
        return f"{count} GPUs"
    return f"{usable} of {count} GPUs can be used"


def status(state: State) -> Json:
    """The node's state as plain JSON values, which `gpuagent status` shows."""
    mode_switch = switch(state)
    return {
        "mode": str(state.node.mode),
        "placement": str(state.node.placement),
        "label": {MODE_LABEL: state.node.label},
        "isolation": _isolation(serving_layer(state)),
        "memory_unit": str(state.policy.unit),
        "switch": {
            "phase": mode_switch.phase,
            "waiting_for": [_holding(holding) for holding in mode_switch.waiting_for],
        },
        "driver_version": state.gpus.driver_version,
        "gpus": [_gpu(gpu, state) for gpu in state.gpus.by_index],
        "resources": {**_resources(state), **_devices(state)},
        "problems": [_problem(problem) for problem in problems(state)],
    }


def _resources(state: State) -> dict[str, Json]:
    """The amounts on the device lists."""
    resources = {}
    for resource, blocks in state.advertised.lists.items():
        total = sum(block.count for block in blocks)
        healthy = sum(block.count for block in blocks if block.healthy)
        resources[resource] = {
            "healthy": healthy,
            "unhealthy": total - healthy,
        }
    return resources


def _problem(problem: Problem) -> Json:
    return {
        "reason": problem.reason,
        "severity": problem.severity,
        "message": problem.message,
        "warning": problem.warning,
    }


def _isolation(layer: Layer) -> Json:
    return {
        "driver": layer.driver,
        "version": layer.version,
        "problem": layer.problem,
        "isolates": sorted(layer.isolates),
        "max_sharers": layer.max_sharers,
        "caveats": list(layer.caveats),
    }


def _holding(holding: Holding) -> Json:
    return {
        "container": str(holding.owner),
        "resource": holding.resource,
        "units": len(holding.ids),
    }


def _devices(state: State) -> dict[str, Json]:
    """The devices that the node publishes for claims, as a resource."""
    claims = state.claims
    if state.node.mode is not Mode.DRA and not claims.prepared:
        return {}
    healthy, unhealthy = claims.devices
    view = {
        "healthy": healthy,
        "unhealthy": unhealthy,
        "stage": "connected" if claims.registered else "registering",
        "registered": claims.registered,
        "problem": claims.registration_problem,
    }
    return {DRA_DRIVER: view}


def _amounts(claim: PreparedClaim, gpu: Gpu, state: State) -> Iterator[tuple[str, int]]:
    """Units of memory and percent of compute that a claim has of one GPU. A whole GPU has all of both."""
    for claimed in claim.used:
        if claimed.uuid != gpu.uuid:
            continue
        units = claimed.memory_mib // state.policy.unit.mib
        yield CLAIM_MEMORY, units
        cores = CORE_PERCENT_PER_GPU if claimed.whole else claimed.cores
        if cores:
            yield CLAIM_CORES, cores


def _gpu(gpu: Gpu, state: State) -> Json:
    cause = state.unhealthy.get(gpu.uuid)
    health = state.health.by_uuid.get(gpu.uuid)
    containers = _containers(gpu, state)
    return {
        "index": gpu.index,
        "minor": gpu.minor,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "reserved_mib": gpu.reserved_mib,
        "compute_capability": list(gpu.compute_capability or ()),
        "numa_node": gpu.numa_node,
        "mig": gpu.mig,
        "health": "Unhealthy" if cause else "Healthy",
        "cause": cause,
        "recovering": health is not None and health.due is not None,
        "units": _totals(gpu, state),
        "held": _held(gpu, containers, state),
        "containers": [*containers, *_claim_containers(gpu, state)],
    }


def _totals(gpu: Gpu, state: State) -> dict[str, int]:
    """Resource to the units that the GPU has; without those that it has none of."""
    totals = {}
    for resource, blocks in state.advertised.lists.items():
        count = sum(block.count for block in blocks if block.gpu.uuid == gpu.uuid)
        if count:
            totals[resource] = count
    is_published = gpu.uuid in state.claims.published
    if is_published and state.node.mode is Mode.DRA:
        memory = gpu.memory_mib // state.policy.unit.mib
        if memory:
            totals[CLAIM_MEMORY] = memory
        totals[CLAIM_CORES] = CORE_PERCENT_PER_GPU
    return totals


def _held(gpu: Gpu, containers: Iterable[Json], state: State) -> dict[str, int]:
    """Resource to the units that containers and claims hold."""
    held: Counter[str] = Counter()
    for container in containers:
        resource = container["resource"]
        held[resource] += container["units"]
    for claim in state.claims.prepared.values():
        for resource, units in _amounts(claim, gpu, state):
            held[resource] += units
    return dict(held)


def _containers(gpu: Gpu, state: State) -> list[Json]:
    """The containers that hold units of the GPU."""
    containers = []
    for holding in state.living_holdings:
        uuids = [uuid for uuid, _ in located(holding, state.gpus.by_uuid)]
        units = uuids.count(gpu.uuid)
        if units:
            containers.append({**_holding(holding), "units": units})
    return containers


def _claim_containers(gpu: Gpu, state: State) -> list[Json]:
    """The containers of claims that have a part of the GPU."""
    containers = []
    for claim in state.claims.prepared.values():
        for resource, units in _amounts(claim, gpu, state):
            for owner in state.claim_owners(claim, gpu.uuid):
                view = {
                    "container": str(owner),
                    "resource": resource,
                    "units": units,
                    "claim": str(claim),
                }
                containers.append(view)
    return containers
