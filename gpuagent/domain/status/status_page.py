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

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9_.-]")

CONDITION_TYPE = "GPUAgentReady"
INFO_MARK = "for information: "
"""Before each message of the condition about something that is as it should be."""


def node_labels(state: State) -> dict[str, str | None]:
    """The desired labels `aliyun.accelerator/nvidia_*` (None: absent); empty until the driver has answered."""
    gpus = state.gpus.by_index
    if not gpus:
        none = {"aliyun.accelerator/nvidia_name": None, "aliyun.accelerator/nvidia_mem": None}
        return {**none, "aliyun.accelerator/nvidia_count": "0"} if _has_no_gpus(state) else {}
    first = gpus[0]
    return {
        "aliyun.accelerator/nvidia_name": _NOT_IN_LABELS.sub("-", first.model)[:63].strip("-_."),
        "aliyun.accelerator/nvidia_mem": f"{first.memory_mib}MiB" if first.memory_mib else None,
        "aliyun.accelerator/nvidia_count": str(len(gpus)),
    }


def node_capacity(state: State) -> dict[str, str]:
    """Node status amounts that kubelet does not manage: `aliyun.com/gpu-count`. Empty until the driver has answered."""
    return {GPU_COUNT: str(len(state.gpus.by_uuid))} if state.gpus.by_uuid or _has_no_gpus(state) else {}


def _has_no_gpus(state: State) -> bool:
    return state.gpus.driver_problem is None and not state.gpus.by_uuid and not state.gpus.unreadable


def node_condition(state: State) -> dict[str, str]:
    """The node condition: type, status, reason, message. The writer adds the times."""
    found = problems(state)
    blocking = [problem for problem in found if problem.blocking]
    lasting = [problem for problem in found if problem.blocking or not problem.passing]
    ready = () if blocking else (Problem("Ready", f"mode {state.node.mode}, {_gpus_words(state)}"),)
    return {
        "type": CONDITION_TYPE,
        "status": "False" if blocking else "True",
        "reason": (*blocking, *ready)[0].reason,
        "message": printable("; ".join((*(problem.message for problem in ready), *_in_words(lasting)))),
    }


def _in_words(found: Iterable[Problem]) -> list[str]:
    """The messages, the worst first. Those that are for information are marked, for `kubectl inspect cgpu --health`."""
    ordered = sorted(found, key=lambda problem: problem.severity == "info")
    return [INFO_MARK + problem.message if problem.severity == "info" else problem.message for problem in ordered]


def _gpus_words(state: State) -> str:
    count, usable = len(state.gpus.by_uuid), len(usable_gpus(state))
    if usable == count or not serves_gpus(state):
        return f"{count} GPUs"
    return f"{usable} of {count} GPUs can be used"


def status(state: State) -> dict[str, Any]:
    """The node's state as plain JSON values, which `gpuagent status` shows."""
    now = switch(state)
    return {
        "mode": str(state.node.mode),
        "placement": str(state.node.placement),
        "label": {MODE_LABEL: state.node.label},
        "isolation": _isolation(serving_layer(state)),
        "memory_unit": str(state.policy.unit),
        "switch": {
            "phase": now.phase,
            "waiting_for": [_holding(h) for h in now.waiting_for],
        },
        "driver_version": state.gpus.driver_version,
        "gpus": [_gpu(gpu, state) for gpu in state.gpus.by_index],
        "resources": {
            resource: {
                "healthy": sum(block.count for block in blocks if block.healthy),
                "unhealthy": sum(block.count for block in blocks if not block.healthy),
            }
            for resource, blocks in state.advertised.lists.items()
        }
        | _devices(state),
        "problems": [_problem(problem) for problem in problems(state)],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "reason": problem.reason,
        "severity": problem.severity,
        "message": problem.message,
        "warning": problem.warning,
    }


def _isolation(layer: Layer) -> dict[str, Any]:
    return {
        "driver": layer.driver,
        "version": layer.version,
        "problem": layer.problem,
        "isolates": sorted(layer.isolates),
        "max_sharers": layer.max_sharers,
        "caveats": list(layer.caveats),
    }


def _holding(holding: Holding) -> dict[str, Any]:
    return {"container": str(holding.owner), "resource": holding.resource, "units": len(holding.ids)}


def _devices(state: State) -> dict[str, dict[str, Any]]:
    """The devices that the node publishes for claims, as a resource."""
    claims = state.claims
    if state.node.mode is not Mode.DRA and not claims.prepared:
        return {}
    healthy, unhealthy = claims.devices
    stage = "connected" if claims.registered else "registering"
    view = {"healthy": healthy, "unhealthy": unhealthy, "stage": stage, "registered": claims.registered}
    return {DRA_DRIVER: {**view, "problem": claims.registration_problem}}


def _amounts(claim: PreparedClaim, gpu: Gpu, state: State) -> Iterator[tuple[str, int]]:
    """Units of memory and percent of compute that a claim has of one GPU. A whole GPU has all of both."""
    for one in claim.used:
        if one.uuid == gpu.uuid:
            yield CLAIM_MEMORY, one.memory_mib // state.policy.unit.mib
            if cores := CORE_PERCENT_PER_GPU if one.whole else one.cores:
                yield CLAIM_CORES, cores


def _gpu(gpu: Gpu, state: State) -> dict[str, Any]:
    lists = state.advertised.lists
    totals = {name: sum(b.count for b in blocks if b.gpu.uuid == gpu.uuid) for name, blocks in lists.items()}
    cause = state.unhealthy.get(gpu.uuid)
    held: Counter[str] = Counter()
    containers = []
    for holding in state.living_holdings:
        if mine := sum(uuid == gpu.uuid for uuid, _ in located(holding, state.gpus.by_uuid)):
            held[holding.resource] += mine
            containers.append({**_holding(holding), "units": mine})
    if gpu.uuid in state.claims.published and state.node.mode is Mode.DRA:
        totals |= {CLAIM_MEMORY: gpu.memory_mib // state.policy.unit.mib, CLAIM_CORES: CORE_PERCENT_PER_GPU}
    for claim in state.claims.prepared.values():
        for resource, units in _amounts(claim, gpu, state):
            held[resource] += units
            containers += [
                {"container": str(owner), "resource": resource, "units": units, "claim": str(claim)}
                for owner in state.claim_owners(claim, gpu.uuid)
            ]
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
        "recovering": (case := state.health.by_uuid.get(gpu.uuid)) is not None and case.due is not None,
        "units": {resource: total for resource, total in totals.items() if total},
        "held": dict(held),
        "containers": containers,
    }
