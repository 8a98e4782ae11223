"""The status page: the node's state as `gpuagent status` shows it."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from gpuagent.domain.dra.isolation import serving_layer
from gpuagent.domain.dra.resource_slice import left_out
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.holdings import located
from gpuagent.domain.pods.pod import Holding
from gpuagent.domain.sharing.claim import CLAIM_CORES, CLAIM_MEMORY, ClaimedGpu
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, DRA_DRIVER, MODE_LABEL, Mode
from gpuagent.domain.state import State
from gpuagent.domain.status.problems import Problem, problems, switch

Json = dict[str, Any]


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
        "resizes": _resizes(state),
        "problems": [_problem(problem) for problem in problems(state)],
    }


def _resources(state: State) -> dict[str, Json]:
    """The amounts on the device lists."""
    resources = {}
    for resource, blocks in state.advertised.lists.items():
        total = sum(block.listed for block in blocks)
        healthy = sum(block.healthy_units for block in blocks)
        resources[resource] = {
            "healthy": healthy,
            "unhealthy": total - healthy,
        }
    return resources


def _resizes(state: State) -> list[Json]:
    """The pods whose memory limits were changed while they run, or that ask for it."""
    resizes = state.resizes
    views = []
    for uid in {**resizes.stored, **resizes.verdicts}:
        resize = resizes.stored.get(uid)
        verdict = resizes.verdicts.get(uid)
        name = verdict.pod if verdict else resize.pod if resize else ""
        view = {
            "pod": str(name),
            "limits": dict(resize.limits) if resize else {},
            "extra_units": len(resize.extra) if resize else 0,
            "status": verdict.annotation if verdict else "",
        }
        views.append(view)
    return views


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
    healthy, tainted = claims.devices
    view = {
        "healthy": healthy,
        "unhealthy": tainted + len(left_out(state)),
        "stage": "connected" if claims.registered else "registering",
        "registered": claims.registered,
        "problem": claims.registration_problem,
    }
    return {DRA_DRIVER: view}


def _amounts(parts: Iterable[ClaimedGpu], state: State) -> dict[str, int]:
    """Units of memory and percent of compute of some parts of a GPU. A whole GPU has all of both."""
    amounts: Counter[str] = Counter()
    for claimed in parts:
        if claimed.admin:
            continue
        amounts[CLAIM_MEMORY] += claimed.memory_mib // state.policy.unit.mib
        cores = CORE_PERCENT_PER_GPU if claimed.whole else claimed.cores
        if cores:
            amounts[CLAIM_CORES] += cores
    return dict(amounts)


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
        "monitors": _monitors(gpu, state),
    }


def _totals(gpu: Gpu, state: State) -> dict[str, int]:
    """Resource to the units that the GPU has; without those that it has none of."""
    totals = {}
    for resource, blocks in state.advertised.lists.items():
        count = sum(block.offered for block in blocks if block.gpu.uuid == gpu.uuid)
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
    # All containers of a claim have its share together.
    for claim in state.claims.prepared.values():
        parts = [claimed for claimed in claim.gpus if claimed.uuid == gpu.uuid]
        held.update(_amounts(parts, state))
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
        for owner, parts in state.claim_parts(claim, gpu.uuid).items():
            for resource, units in _amounts(parts, state).items():
                view = {
                    "container": str(owner),
                    "resource": resource,
                    "units": units,
                    "claim": str(claim),
                }
                containers.append(view)
    return containers


def _monitors(gpu: Gpu, state: State) -> list[str]:
    """The containers that look at the GPU by a claim with `adminAccess`, and hold nothing of it."""
    owners: dict[str, None] = {}
    for claim in state.claims.prepared.values():
        for owner, parts in state.claim_parts(claim, gpu.uuid).items():
            if any(claimed.admin for claimed in parts):
                owners[str(owner)] = None
    return list(owners)
