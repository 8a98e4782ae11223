"""What the agent says of itself: problems, the state of a mode switch, node labels and condition, the status page."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuagent.domain import misread
from gpuagent.domain.fence import EXAMPLE, Fence
from gpuagent.domain.gpu import Gpu
from gpuagent.domain.holdings import NVIDIA_GPU, located
from gpuagent.domain.isolation import Layer
from gpuagent.domain.mode import DISABLE_LABEL, GPU_COUNT, MODE_LABEL, PROMISES
from gpuagent.domain.offer import kubelet_that_does_not_ask, rival_offers
from gpuagent.domain.pods import Holding
from gpuagent.domain.startup import taint_stands
from gpuagent.domain.state import State
from gpuagent.domain.units import MANY_DEVICES, MAX_LIST_BYTES, list_bytes, smallest_unit_that_fits, units_of

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9_.-]")

CONDITION_TYPE = "GpuAgentReady"
MANY_ENTRIES = 8
"""So many entries of a fence file are named in one message."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that keeps the node from offering what it could. `reason` is CamelCase, as in conditions."""

    reason: str
    message: str
    warning: bool = True
    blocking: bool = False
    """The mode's promise is not kept for it: the node condition is False."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Where a mode switch stands: ``steady``, ``settling`` (old units leave the lists) or ``waiting`` for pods."""

    phase: str
    waiting_for: tuple[Holding, ...] = ()


def switch(state: State) -> Switch:
    """The mode switch as people should see it."""
    waiting = tuple(dict.fromkeys(holding for holdings in state.held_otherwise.values() for holding in holdings))
    if any(fade.block.kind.mode is not state.mode for fade in state.fades) or state.unaudited:
        return Switch("settling", waiting)
    return Switch("waiting", waiting) if waiting else Switch("steady")


def problems(state: State) -> list[Problem]:
    """Everything that is wrong now, worst first."""
    return [
        *_driver_problems(state),
        *_mode_problems(state),
        *_offer_problems(state),
        *_outside_problems(state),
        *_fence_problems(state),
        *_misread_problems(state),
    ]


def _driver_problems(state: State) -> Iterator[Problem]:
    if state.driver_problem is not None:
        yield Problem("DriverUnavailable", f"NVIDIA driver: {state.driver_problem}", blocking=not state.gpus)
    elif not state.gpus and not state.unreadable:
        yield Problem("NoGpus", "the NVIDIA driver reports no GPU on this node", blocking=True)
    sick = state.sick
    known = {gpu.index for gpu in state.gpus.values() if gpu.uuid not in sick}
    for bad in state.unreadable:
        lead = "stays as it was read before" if bad.index in known else "is left out"
        yield Problem("GpuUnreadable", f"GPU {bad.index} {lead}: {bad.reason}", blocking=not state.gpus)
    for gpu_ in _by_index(state):
        if gpu_.mig:
            text = f"GPU {gpu_.index} ({gpu_.uuid}) is left out: MIG is enabled; disable it with nvidia-smi -mig 0"
            yield Problem("MigEnabled", text)
        if gpu_.uuid in sick:
            yield Problem("GpuUnhealthy", f"GPU {gpu_.index} ({gpu_.uuid}): {sick[gpu_.uuid]}")
        if case := state.health.get(gpu_.uuid):
            yield from (Problem("GpuDegraded", f"GPU {gpu_.index} ({gpu_.uuid}): {note}") for note in case.notes)
    if any(kind.is_whole for kind in state.policy.resources.sold(state.mode).values()):
        yield from (Problem("LinksAmiss", note) for note in state.topology.notes)


def _mode_problems(state: State) -> Iterator[Problem]:
    if not state.mode_known:
        text = "the node's label was not read yet and no earlier run remembers a mode: nothing is offered until it is"
        yield Problem("ModeUnknown", text, blocking=True)
    if state.label_problem:
        yield Problem("UnknownMode", state.label_problem)
    if state.placement_problem:
        yield Problem("UnknownPlacement", state.placement_problem)
    yield from _isolation_problems(state)
    if rivals := rival_offers(state):
        text = (
            f"another device plugin offers {rivals} {NVIDIA_GPU} on this node: mode {state.mode} offers nothing until "
            "it is gone, or GPUs would be sold twice. Keep NVIDIA's device plugin off nodes with this label"
        )
        yield Problem("OtherPlugin", text, blocking=True)
    now = switch(state)
    if now.waiting_for:
        pods = ", ".join(sorted({f"{h.owner} ({h.resource})" for h in now.waiting_for}))
        text = f"mode {state.mode}: GPUs held under another mode are offered when these containers have ended: {pods}"
        yield Problem("ModeSwitchWaiting", text, warning=False)


def _isolation_problems(state: State) -> Iterator[Problem]:
    mode, layer, promised = state.mode, state.layer, ", ".join(sorted(PROMISES[state.mode]))
    if state.unheard or layer.standby:  # a moment later it is known
        return
    if not layer.keeps(mode) and state.policy.allow_unisolated:
        text = (
            f"TRIAL: mode {mode} runs WITHOUT isolation of {promised} because --allow-unisolated is set: "
            "any container can use the whole GPU"
        )
        yield Problem("Unisolated", text, blocking=True)
    elif layer.installed and mode in layer.modes and (problem := layer.problem_in(mode)):
        text = (
            f"mode {mode} promises isolation of {promised}, and isolation driver {layer.driver} does not work: "
            f"{problem}. Nothing new is offered until it does; running containers are left alone"
        )
        yield Problem("IsolationDown", text, blocking=True)
    elif not layer.keeps(mode):
        others = "; ".join(f"{x.driver}: {x.problem}" for x in state.layers.values() if x.problem and not x.installed)
        text = (
            f"mode {mode} promises isolation of {promised}, and isolation driver {layer.driver!r} does not keep it "
            f"(--isolation {state.policy.isolation}): nothing is offered. Install a driver that does, or choose mode "
            f"share{f' ({others})' if others else ''}"
        )
        yield Problem("IsolationMissing", text, blocking=True)
    elif state.isolation_disabled and layer.driver == "cgpu":
        text = f"node label {DISABLE_LABEL}=true: containers of mode {mode} run WITHOUT isolation of {promised}"
        yield Problem("Unisolated", text, blocking=True)
    for gpu in _by_index(state):
        if gpu.uuid in layer.left_out:
            text = f"GPU {gpu.index} ({gpu.uuid}) is left out in mode {mode}: {layer.left_out[gpu.uuid]}"
            yield Problem("GpuNotIsolated", text)


def _offer_problems(state: State) -> Iterator[Problem]:
    gpus = tuple(gpu for gpu in _by_index(state) if not gpu.mig)
    for resource, kind in state.policy.resources.sold(state.mode).items():
        size, unit = list_bytes(gpus, kind, state.policy.unit), state.policy.unit
        count = sum(units_of(gpu, kind, unit) for gpu in gpus)
        if size > MAX_LIST_BYTES:
            text = (
                f"{resource} stays at 0: {count} units of {unit} make a device list of {size} bytes, and kubelet "
                f"takes {MAX_LIST_BYTES}; set --memory-unit to {smallest_unit_that_fits(gpus, kind)} or more"
            )
            yield Problem("UnitTooSmall", text, blocking=True)
        elif count > MANY_DEVICES:
            text = (
                f"{resource}: {count} devices make kubelet's restarts and pod status slow; "
                f"a larger --memory-unit than {unit} is better"
            )
            yield Problem("ManyDevices", text)


def _outside_problems(state: State) -> Iterator[Problem]:
    if state.holdings_problem is not None:
        still = "what was known of it is used" if state.holdings is not None else "nothing is offered until it answers"
        text = f"kubelet's pod-resources API: {state.holdings_problem}; {still}"
        yield Problem("PodResourcesUnavailable", text, blocking=state.holdings is None)
    for resource, text in state.registration_problems.items():
        yield Problem("NotRegistered", f"{resource}: {text}", blocking=True)
    shared = not all(kind.is_whole for kind in state.policy.resources.sold(state.mode).values())
    if shared and len(state.gpus) > 1 and (version := kubelet_that_does_not_ask(state)):
        text = (
            f"kubelet {version} picks units itself and asks nobody: a share is refused where it picks several GPUs, or "
            "another one than a scheduler chose; upgrade kubelet to 1.19 or later"
        )
        yield Problem("KubeletDoesNotAsk", text)
    if state.node_problem is not None:
        yield Problem("ApiUnavailable", state.node_problem)
    if state.pods_problem is not None:
        yield Problem("PodsUnavailable", state.pods_problem)
    if state.reports_problem is not None:
        yield Problem("ReportNotWritten", state.reports_problem)
    if state.deletions_problem is not None:
        yield Problem("FailedPodsNotDeleted", state.deletions_problem)
    if taint_stands(state):
        text = f"taint {state.policy.startup_taint} keeps pods off this node until it shows the amounts of its mode"
        yield Problem("StartupTaint", text, warning=False)
    if state.annotations_problem is not None:
        yield Problem("AnnotationsNotWritten", state.annotations_problem)


def _fence_problems(state: State) -> Iterator[Problem]:
    file, fenced = state.policy.fence_file, state.fenced
    if state.fence_problem is not None:
        stays = "what it said before stays in force" if state.fence != Fence() else "no GPU is fenced by it"
        text = f"fence file {file}: {state.fence_problem}; {stays}. Write it as {EXAMPLE}, or remove it"
        yield Problem("FenceUnreadable", text)
    if state.gpus and (unknown := state.fence.unknown(state.gpus.values())):
        more = f" and {len(unknown) - MANY_ENTRIES} more" if len(unknown) > MANY_ENTRIES else ""
        text = (
            f"fence file {file}: no GPU of this node is meant by {', '.join(unknown[:MANY_ENTRIES])}{more}; the rest "
            "is in force. An index is a minor number (N of /dev/nvidiaN); gpuagent status -o json shows them, and UUIDs"
        )
        yield Problem("FenceUnknown", text)
    for gpu in _by_index(state):
        if gpu.uuid in fenced:
            text = f"GPU {gpu.index} ({gpu.uuid}) is {fenced[gpu.uuid]}: take the entry out of {file} to use it again"
            yield Problem("GpuFenced", text, warning=False)


def _misread_problems(state: State) -> Iterator[Problem]:
    yield from (Problem("UnitsChanged", text) for text in state.former_units)
    yield from (Problem("MixedGpus", text, warning=False) for text in misread.by_division(state))
    yield from (Problem("GpuNumbersGap", text, warning=False) for text in misread.by_number(state))


def _by_index(state: State) -> list[Gpu]:
    return sorted(state.gpus.values(), key=lambda gpu: gpu.index)


def node_labels(state: State) -> dict[str, str | None]:
    """The labels `aliyun.accelerator/nvidia_*` as they should be (None: absent); empty until the driver answered."""
    gpus = _by_index(state)
    if not gpus:
        none = {"aliyun.accelerator/nvidia_name": None, "aliyun.accelerator/nvidia_mem": None}
        return {**none, "aliyun.accelerator/nvidia_count": "0"} if _has_no_gpus(state) else {}
    first = gpus[0]
    return {
        "aliyun.accelerator/nvidia_name": _NOT_IN_LABELS.sub("-", first.model)[:63].strip("-_."),
        "aliyun.accelerator/nvidia_mem": f"{first.memory_mib}MiB",
        "aliyun.accelerator/nvidia_count": str(len(gpus)),
    }


def node_capacity(state: State) -> dict[str, str]:
    """Node status amounts that kubelet does not manage: `aliyun.com/gpu-count`; empty until the driver answered."""
    return {GPU_COUNT: str(len(state.gpus))} if state.gpus or _has_no_gpus(state) else {}


def _has_no_gpus(state: State) -> bool:
    return state.driver_problem is None and not state.gpus and not state.unreadable


def node_condition(state: State) -> dict[str, str]:
    """The node condition: type, status, reason, message. Times are the writer's."""
    found = problems(state)
    blocking = [problem for problem in found if problem.blocking]
    told = (blocking or found or [Problem("Ready", f"mode {state.mode}, {len(state.gpus)} GPUs")])[0]
    return {
        "type": CONDITION_TYPE,
        "status": "False" if blocking else "True",
        "reason": told.reason,
        "message": "; ".join(problem.message for problem in found) or told.message,
    }


def status(state: State) -> dict[str, Any]:
    """The node's state as plain JSON values: what `gpuagent status` shows."""
    now = switch(state)
    return {
        "mode": str(state.mode),
        "placement": str(state.placement),
        "label": {MODE_LABEL: state.label},
        "isolation": _isolation(state.layer),
        "memory_unit": str(state.policy.unit),
        "switch": {
            "phase": now.phase,
            "waiting_for": [_holding(h) for h in now.waiting_for],
        },
        "driver_version": state.driver_version,
        "gpus": [_gpu(gpu, state) for gpu in _by_index(state)],
        "resources": {
            resource: {
                "healthy": sum(block.count for block in blocks if block.healthy),
                "unhealthy": sum(block.count for block in blocks if not block.healthy),
            }
            for resource, blocks in state.lists.items()
        },
        "problems": [{"reason": p.reason, "message": p.message, "warning": p.warning} for p in problems(state)],
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


def _gpu(gpu: Gpu, state: State) -> dict[str, Any]:
    totals = {
        resource: sum(b.count for b in blocks if b.gpu.uuid == gpu.uuid) for resource, blocks in state.lists.items()
    }
    cause = state.unhealthy.get(gpu.uuid)
    held: Counter[str] = Counter()
    containers = []
    for holding in state.living_holdings:
        if mine := sum(uuid == gpu.uuid for uuid, _ in located(holding, state.gpus)):
            held[holding.resource] += mine
            containers.append({**_holding(holding), "units": mine})
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
        "recovering": (case := state.health.get(gpu.uuid)) is not None and case.due is not None,
        "units": {resource: total for resource, total in totals.items() if total},
        "held": dict(held),
        "containers": containers,
    }
