"""Current problems of the node and the progress of a mode switch, for people and machines."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain

from gpuagent.domain.changed_memory import changed_words, shrunk_words
from gpuagent.domain.deviceplugin.advertise import unkept_promise
from gpuagent.domain.dra.isolation import serving_layer, serving_mode
from gpuagent.domain.event_reasons import EventReason
from gpuagent.domain.fleet.node_problems import Severity
from gpuagent.domain.gpus.fence import EXAMPLE, Fence
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.missing_gpus import missing_words
from gpuagent.domain.node_state.known_gpus import NOT_READ
from gpuagent.domain.node_state.stored_slices import CONSUMABLE, PARTITIONABLE, TAINTS
from gpuagent.domain.pods.holdings import NVIDIA_GPU
from gpuagent.domain.pods.pod import Holding
from gpuagent.domain.sharing.isolation_layers import AUTO, Layer, chosen, parts
from gpuagent.domain.sharing.mode import DISABLE_LABEL, DRA_DRIVER, PROMISES, Mode
from gpuagent.domain.sharing.units import (
    MANY_DEVICES,
    MAX_LIST_BYTES,
    largest_unit,
    list_bytes,
    smallest_unit_that_fits,
    units_of,
)
from gpuagent.domain.state import State, once
from gpuagent.domain.status import interop
from gpuagent.domain.usable_gpus import gives_units, serves_gpus, shares_memory, unusable_words, usable_gpus
from gpuagent.system.printable import first_of

MANY_ENTRIES = 8
"""Maximum number of fence file entries that one message names."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem that limits the resources of the node. `reason` is CamelCase, as in conditions."""

    reason: EventReason
    message: str
    warning: bool = True
    blocking: bool = False
    """Whether it breaks the mode's promise, so that the node condition is False."""
    passing: bool = False
    """Whether it usually ends by itself within seconds: it is shown, and no Event is sent about it."""

    @property
    def severity(self) -> Severity:
        """How bad it is: ``blocking``, ``warning``, or ``info`` for what is as it should be."""
        if self.blocking:
            return "blocking"
        return "warning" if self.warning and not self.passing else "info"


@dataclass(frozen=True, slots=True)
class Switch:
    """The progress of a mode switch: ``steady``, ``settling`` (old units leave the lists) or ``waiting`` for pods."""

    phase: str
    waiting_for: tuple[Holding, ...] = ()


@once
def switch(state: State) -> Switch:
    """The progress of the mode switch, for people."""
    mode = state.node.mode
    lists = state.advertised
    # A container with several GPUs is listed under each of them.
    holdings = dict.fromkeys(chain.from_iterable(state.held_otherwise.values()))
    waiting = tuple(holdings)
    has_slices = False
    if mode is not Mode.DRA:
        waiting += state.claim_holdings
        has_slices = bool(state.claims.published)
    drains_other_mode = any(draining.block.kind.mode is not mode for draining in lists.draining)
    if lists.unaudited or has_slices or drains_other_mode:
        return Switch("settling", waiting)
    if waiting:
        return Switch("waiting", waiting)
    return Switch("steady")


@once
def problems(state: State) -> list[Problem]:
    """All current problems, worst first."""
    return [
        *_driver_problems(state),
        *_unit_problems(state),
        *_usable_problems(state),
        *(Problem("GPUMissing", words) for words in missing_words(state)),
        *(Problem("GPUMemoryChanged", words) for words in changed_words(state)),
        *(Problem("GPUMemoryShrunk", words) for words in shrunk_words(state)),
        *_mode_problems(state),
        *_unlimited_problems(state),
        *_device_list_problems(state),
        *_claim_problems(state),
        *_outside_problems(state),
        *_fence_problems(state),
        *_misread_problems(state),
    ]


def is_ready(state: State) -> bool:
    """Whether the node serves what its mode promises, which its condition says."""
    return not any(problem.blocking for problem in problems(state))


def _driver_problems(state: State) -> Iterator[Problem]:
    gpus = state.gpus
    if gpus.driver_problem is not None:
        yield Problem(
            "DriverUnavailable",
            f"NVIDIA driver: {gpus.driver_problem}",
            blocking=gpus.driver_gone or not gpus.by_uuid,
            passing=gpus.driver_problem == NOT_READ,
        )
    elif not gpus.by_uuid and not gpus.unreadable:
        yield Problem("NoGPUs", "the NVIDIA driver reports no GPU on this node", blocking=True)
    yield from _unreadable_problems(state)
    yield from _health_problems(state)
    # Links matter only where whole GPUs are chosen by them.
    if any(kind.is_whole for kind in state.resource_kinds.values()):
        for note in gpus.topology.notes:
            yield Problem("GPULinkDegraded", note)


def _health_problems(state: State) -> Iterator[Problem]:
    faults = state.health.faults
    gpus = state.gpus.by_index
    # A fault that all GPUs have is usually one of the driver or the host, and is said once.
    shared_fault = _shared_cause(faults.values(), len(gpus))
    if shared_fault:
        yield Problem("GPUUnhealthy", f"all {len(faults)} GPUs of this node: {shared_fault}")
    for gpu in gpus:
        yield from _gpu_problems(gpu, state, has_shared_fault=bool(shared_fault))


def _gpu_problems(gpu: Gpu, state: State, *, has_shared_fault: bool) -> Iterator[Problem]:
    if gpu.mig:
        text = f"{gpu} is left out: MIG is enabled; disable it with nvidia-smi -mig 0"
        yield Problem("MIGEnabled", text)
    fault = state.health.faults.get(gpu.uuid)
    if fault is not None and not has_shared_fault:
        yield Problem("GPUUnhealthy", f"{gpu}: {fault}")
    unasked = state.health.unasked.get(gpu.uuid)
    if unasked:
        text = f"{gpu}: {unasked}"
        yield Problem("GPUUnhealthy", text, warning=False, passing=True)
    health = state.health.by_uuid.get(gpu.uuid)
    if health is None:
        return
    for note in health.notes:
        yield Problem("GPUDegraded", f"{gpu}: {note}")


def _unreadable_problems(state: State) -> Iterator[Problem]:
    gpus = state.gpus
    unreadable = gpus.unreadable
    # Without any GPU, the node serves nothing.
    blocking = not gpus.by_uuid
    count = len(unreadable) + len(gpus.topology.gpus)
    shared_reason = _shared_cause([gpu.reason for gpu in unreadable], count)
    if shared_reason:
        text = f"none of the {count} GPUs can be read: {shared_reason}"
        yield Problem("GPUUnreadable", text, blocking=blocking)
        return
    faults = state.health.faults
    read_before = {gpu.index for gpu in gpus.by_uuid.values() if gpu.uuid not in faults}
    for gpu in unreadable:
        consequence = "is left out"
        if gpu.index in read_before:
            consequence = "stays as it was read before"
        text = f"GPU {gpu.index} {consequence}: {gpu.reason}"
        yield Problem("GPUUnreadable", text, blocking=blocking)


def _shared_cause(causes: Collection[str], count: int) -> str:
    """The cause that all of several GPUs have, so that it is said once; empty if there is none."""
    different = set(causes)
    all_have_one = len(causes) == count > 1
    if all_have_one and len(different) == 1:
        return different.pop()
    return ""


def _usable_problems(state: State) -> Iterator[Problem]:
    """No GPU is left for new containers, although the driver has some."""
    gpus = state.gpus
    if not gpus.by_uuid or gpus.driver_gone or state.health.unasked:
        return  # another problem says so already, or the GPUs are asked for their health just now
    if usable_gpus(state) or not serves_gpus(state):
        return
    if _all_too_small(state):
        return  # a problem of its own, which says which unit would do
    count = len(gpus.by_uuid)
    text = (
        f"mode {state.node.mode} has no usable GPU: of {count}, {unusable_words(state)}. "
        "The problems of the single GPUs say why, and what to do"
    )
    yield Problem("NoUsableGPU", text, blocking=True)


def _unknown_memory_problems(state: State) -> Iterator[Problem]:
    """GPUs whose memory cannot be shared out, because the driver does not say how much there is."""
    memory_resources = _memory_resources(state)
    if not memory_resources:
        return
    resource = memory_resources[0]
    for gpu in state.gpus.by_index:
        if gpu.mig or not gpu.only_whole:
            continue
        text = (
            f"{gpu} has no units of {resource}: the driver does not report its memory, as "
            "for GPUs that share the memory of the host. Use it whole: with mode topology, with whole GPUs in mode "
            "default, or with claims for whole GPUs in mode dra"
        )
        yield Problem("GPUMemoryUnknown", text)


def _memory_resources(state: State) -> list[str]:
    """The resources of the mode that give out memory."""
    return [name for name, kind in state.resource_kinds.items() if kind.is_memory]


def _mode_problems(state: State) -> Iterator[Problem]:
    node = state.node
    if not node.mode_known:
        text = "the node's label was not read yet and no earlier run stored a mode: no GPUs are advertised until it is"
        # An agent that starts for the first time reads the label within a second. Only a failure is news.
        yield Problem("ModeNotYetKnown", text, blocking=True, passing=node.problem is None)
    if node.label_problem:
        yield Problem("InvalidModeLabel", node.label_problem)
    if node.mode_unsaved:
        yield Problem("ModeNotSaved", node.mode_unsaved)
    if node.placement_problem:
        yield Problem("InvalidPlacementLabel", node.placement_problem)
    yield from _promise_problems(state)
    yield from _setting_problems(state)
    yield from _layer_problems(state, state.layer)
    others = state.other_plugin_gpus
    if others:
        text = (
            f"another device plugin advertises {others} {NVIDIA_GPU} on this node: mode {node.mode} advertises "
            "nothing until it is gone, or GPUs would be allocated twice. Keep NVIDIA's device plugin off nodes "
            "with this label"
        )
        yield Problem("ConflictingDevicePlugin", text, blocking=True)
    yield from _switch_problems(state)


def _switch_problems(state: State) -> Iterator[Problem]:
    mode = state.node.mode
    progress = switch(state)
    if progress.waiting_for:
        names = set()
        for holding in progress.waiting_for:
            names.add(f"{holding.owner} ({holding.resource})")
        pods = ", ".join(sorted(names))
        text = f"mode {mode}: GPUs held under another mode are advertised when these containers have ended: {pods}"
        yield Problem("ModeSwitchWaiting", text, warning=False)
    if progress.phase == "settling":
        text = (
            f"mode {mode}: GPUs of the former mode are advertised in some seconds. Its units leave "
            "kubelet's lists, and then the agent reads kubelet's allocations"
        )
        yield Problem("ModeSwitchWaiting", text, warning=False, passing=True)


def _promise_problems(state: State) -> Iterator[Problem]:
    mode = state.node.mode
    layer = state.layer
    promised = ", ".join(sorted(PROMISES[mode]))
    # Until all drivers have reported, a better one than the present may still come.
    if state.isolation.unreported or layer.standby:
        yield from _unreported_problems(state)
        return
    keeps_promise = layer.keeps(mode)
    could_serve = layer.installed and mode in layer.modes
    problem = layer.problem_in(mode)
    if not keeps_promise and state.policy.allow_unisolated:
        text = (
            f"TRIAL: mode {mode} runs WITHOUT isolation of {promised} because --allow-unisolated is set: "
            "any container can use the whole GPU"
        )
        yield Problem("IsolationDisabled", text, blocking=True)
    elif could_serve and problem:
        text = (
            f"mode {mode} promises isolation of {promised}, and isolation driver {layer.driver} does not work: "
            f"{problem}. No new units are advertised until it does; running containers are not affected"
        )
        yield Problem("IsolationDown", text, blocking=True)
    elif not keeps_promise:
        text = (
            f"no isolation driver isolates {promised} for mode {mode} (--isolation {state.policy.isolation}), so no "
            f"GPUs are advertised. Give the node one of the drivers, or use mode share{_absent_layers(state)}"
        )
        yield Problem("IsolationMissing", text, blocking=True)
    elif state.node.isolation_disabled and layer.driver == "cgpu":
        text = f"node label {DISABLE_LABEL}=true: containers of mode {mode} run WITHOUT isolation of {promised}"
        yield Problem("IsolationDisabled", text, blocking=True)


def _setting_problems(state: State) -> Iterator[Problem]:
    """Modes whose running containers have another isolation driver than the one that the setting names."""
    setting = state.policy.isolation
    if setting == AUTO:
        return
    for mode, driver in state.isolation.bound.items():
        named = chosen(mode, setting, state.isolation.layers, {})
        if named.driver == driver:
            continue
        owners = {str(holding.owner) for holding in state.living_holdings if _is_of(holding, mode)}
        names = ", ".join(sorted(owners))
        text = (
            f"--isolation {setting} is not in force in mode {mode}: containers run with {driver}, and new ones get it "
            f"as well until these have ended: {names}. To keep {driver}, set --isolation {_setting_for(driver)}"
        )
        yield Problem("IsolationChangeWaiting", text, warning=False)


def _is_of(holding: Holding, mode: Mode) -> bool:
    return any(unit.kind.mode is mode for unit, _ in holding.units)


def _setting_for(driver: str) -> str:
    """The value of the setting with which a driver serves, alone or with its partner."""
    first, *_ = parts(driver)
    return first


def _unreported_problems(state: State) -> Iterator[Problem]:
    """Drivers that have not reported yet, while the mode promises isolation."""
    if not unkept_promise(state):
        return
    awaited = state.isolation.unreported or {state.layer.driver}
    names = ", ".join(sorted(awaited))
    text = (
        f"mode {state.node.mode} waits for the first report of isolation driver {names}: "
        "no GPUs are advertised until then"
    )
    yield Problem("IsolationNotYetKnown", text, warning=False, passing=True)


def _absent_layers(state: State) -> str:
    """In parentheses, why each driver that is not installed cannot be used; empty if none says why."""
    layers = state.isolation.layers.values()
    absent = [layer for layer in layers if layer.problem and not layer.installed]
    if not absent:
        return ""
    reasons = [f"{layer.driver}: {layer.problem}" for layer in absent]
    words = "; ".join(reasons)
    return f" ({words})"


def _unlimited_problems(state: State) -> Iterator[Problem]:
    """Pods that may use more GPU memory than their share."""
    pods = state.pods_by_kubelets_uid
    for layer in state.isolation.layers.values():
        for uid, reason in layer.unlimited.items():
            pod = str(pods[uid].name) if uid in pods else f"with UID {uid}"
            text = f"pod {pod} may use more GPU memory than its share: {reason}"
            yield Problem("GPUMemoryUnlimited", f"{text}. Its GPU takes no new pods until the pod is deleted")


def _layer_problems(state: State, layer: Layer) -> Iterator[Problem]:
    for text in layer.untrusted:
        yield Problem("UntrustedDaemon", text)
    for gpu in state.gpus.by_index:
        reason = layer.left_out.get(gpu.uuid)
        if reason is not None:
            text = f"{gpu} is left out in mode {state.node.mode}: {reason}"
            yield Problem("GPUIsolationUnsupported", text)


def _unit_problems(state: State) -> Iterator[Problem]:
    """GPUs with less memory than one unit, where memory is given out in units."""
    yield from _unknown_memory_problems(state)
    unit = state.policy.unit
    gpus = _sized_gpus(state)
    small = [gpu for gpu in gpus if gpu.memory_mib < unit.mib]
    if not small or not shares_memory(state):
        return
    # Compute without one unit of memory is of no use, so mode core_mem advertises neither.
    resources = list(state.resource_kinds)
    if state.node.mode is Mode.DRA:
        resources = [DRA_DRIVER]
    names = " and ".join(resources)
    if _all_too_small(state):
        stay = "stay" if len(resources) > 1 else "stays"
        largest = max(gpus, key=lambda gpu: gpu.memory_mib)
        text = (
            f"{names} {stay} at 0: a unit of {unit.size} is larger than every GPU of this node. The largest is GPU "
            f"{largest.index} with {largest.memory_mib} MiB; {_smaller_unit(largest)}"
        )
        yield Problem("MemoryUnitTooLarge", text, blocking=True)
        return
    for gpu in small:
        text = (
            f"{gpu} is left out of {names}: it has {gpu.memory_mib} MiB, less than one unit "
            f"of {unit.size}; {_smaller_unit(gpu)}"
        )
        yield Problem("GPUSmallerThanUnit", text)


def _sized_gpus(state: State) -> list[Gpu]:
    """GPUs whose memory can be shared out."""
    without_mig = [gpu for gpu in state.gpus.by_index if not gpu.mig]
    return [gpu for gpu in without_mig if not gpu.only_whole]


def _all_too_small(state: State) -> bool:
    """Whether nothing is left to serve because a unit is larger than every GPU, which is a problem of its own."""
    unit = state.policy.unit
    gpus = _sized_gpus(state)
    if not gpus or not shares_memory(state):
        return False
    # Mode dra serves a GPU of unknown memory whole, whatever the unit is.
    serves_whole = any(gives_units(gpu, state) for gpu in state.gpus.by_index)
    if serves_whole:
        return False
    return all(gpu.memory_mib < unit.mib for gpu in gpus)


def _smaller_unit(gpu: Gpu) -> str:
    """What to do about a GPU that is smaller than a unit."""
    unit = largest_unit(gpu.memory_mib)
    return f"set --memory-unit to {unit} or less"


def _device_list_problems(state: State) -> Iterator[Problem]:
    """Device lists that kubelet refuses, or that make it slow."""
    gpus = tuple(gpu for gpu in state.gpus.by_index if not gpu.mig)
    unit = state.policy.unit
    for resource, kind in state.resource_kinds.items():
        size = list_bytes(gpus, kind, unit)
        count = sum(units_of(gpu, kind, unit) for gpu in gpus)
        if size > MAX_LIST_BYTES:
            least = smallest_unit_that_fits(gpus, kind)
            text = (
                f"{resource} stays at 0: {count} units of {unit} make a device list of {size} bytes, and kubelet "
                f"takes {MAX_LIST_BYTES}; set --memory-unit to {least} or more"
            )
            yield Problem("DeviceListTooLarge", text, blocking=True)
        elif count > MANY_DEVICES:
            text = (
                f"{resource}: {count} devices make kubelet's restarts and pod status slow; "
                f"a larger --memory-unit than {unit} is better"
            )
            yield Problem("DeviceCountHigh", text)


def _claim_problems(state: State) -> Iterator[Problem]:
    """While the node publishes devices, or has claims or slices from a time when it did."""
    claims = state.claims
    publishes = state.node.mode is Mode.DRA
    if claims.registration_problem is not None and (publishes or claims.prepared):
        text = (
            f"kubelet does not accept DRA driver {DRA_DRIVER}: {claims.registration_problem}. Pods with claims wait "
            "until it does; mode dra needs Kubernetes 1.34 or later"
        )
        yield Problem("DRADriverNotRegistered", text, blocking=publishes)
    yield from _slice_problems(state)
    if not publishes:
        return
    yield from _stored_slice_problems(state)
    layer = serving_layer(state)
    if state.isolation.unreported:
        return
    yield from _layer_problems(state, layer)
    problem = layer.problem_in(serving_mode(state))
    if problem and not layer.standby:
        text = (
            f"isolation driver {layer.driver} does not work: {problem}. Claims that must be isolated wait "
            "until it does; running containers are not affected"
        )
        yield Problem("IsolationDown", text, blocking=True)


_WITHOUT_GATE = {
    CONSUMABLE: "claims get whole GPUs only, and claims for shares wait",
    TAINTS: (
        "GPUs that are unhealthy, fenced or held by pods of another mode are left out of the slice, claims cannot "
        "tolerate that, and pods are not evicted"
    ),
    PARTITIONABLE: "sets of linked GPUs are not published, because their GPUs would be given to others as well",
}
"""Feature gate to what happens while it is off."""


def _stored_slice_problems(state: State) -> Iterator[Problem]:
    """An API server that does not keep what the agent publishes."""
    changed: list[str] = []
    for answer in state.claims.stored.values():
        if not answer.gates:
            changed.extend(answer.differences)
    for gate in sorted(state.claims.gates_off):
        text = (
            f"the API server drops fields of ResourceSlices, as feature gate {gate} is off: {_WITHOUT_GATE[gate]}. "
            "Turn the gate on in kube-apiserver, kube-scheduler and kube-controller-manager (on by default from "
            "Kubernetes 1.36), or use another mode"
        )
        yield Problem("FeatureGateOff", text)
    if changed:
        different = dict.fromkeys(changed[:MANY_ENTRIES])
        fields = ", ".join(different)
        text = (
            f"the API server stores ResourceSlices otherwise than they are sent: {fields}. Look for an admission "
            "webhook or policy that changes resourceslices, and leave those of this driver out of it"
        )
        yield Problem("ResourceSliceChanged", text)


def _slice_problems(state: State) -> Iterator[Problem]:
    claims = state.claims
    mode = state.node.mode
    publishes = mode is Mode.DRA
    if not publishes and not claims.prepared and not claims.published:
        return
    # Another mode gets the GPUs only when the slices with them are gone.
    withholds_gpus = bool(claims.published) and not publishes
    consequence = ""
    if withholds_gpus:
        consequence = f"; mode {mode} gets its GPUs when the slices are deleted"
    if claims.problem is not None:
        does_not_follow = publishes and not claims.followed
        text = f"{claims.problem}{consequence}"
        yield Problem("ResourceSlicesUnavailable", text, blocking=withholds_gpus or does_not_follow)
    if claims.write_problem is not None:
        text = f"{claims.write_problem}{consequence}"
        yield Problem("ResourceSliceNotWritten", text, blocking=withholds_gpus or publishes)


def _allocations_problems(state: State) -> Iterator[Problem]:
    problem = state.holdings.problem
    unread = state.holdings.listed is None
    until = "no GPUs are advertised until it answers"
    if problem is None:
        if unread:
            text = f"kubelet's pod-resources API was not read yet: {until}"
            yield Problem("PodResourcesUnavailable", text, warning=False, passing=True)
        return
    consequence = until if unread else "what was known of it is used"
    if not unread and state.advertised.unaudited:
        consequence += f", and mode {state.node.mode} gets GPUs of the former mode when it answers"
    text = f"kubelet's pod-resources API: {problem}; {consequence}"
    yield Problem("PodResourcesUnavailable", text, blocking=unread)


def _outside_problems(state: State) -> Iterator[Problem]:
    yield from _allocations_problems(state)
    # A text about one resource names it. Equal texts are about kubelet itself, and become one problem.
    for text in dict.fromkeys(state.advertised.registration_problems.values()):
        yield Problem("ResourceNotRegistered", text, blocking=True)
    if state.holdings.counts_only:
        text = (
            f"kubelet {state.holdings.kubelet} picks device ids without asking the agent: they are counts here. "
            "The agent chooses the GPU of each container; what it chose is in kubelet's checkpoint and in the pods' "
            "annotations"
        )
        yield Problem("PreferredAllocationUnsupported", text, warning=False)
    if state.node.problem is not None:
        yield Problem("APIServerUnavailable", state.node.problem)
    if state.pods.problem is not None:
        yield Problem("PodsUnavailable", state.pods.problem)
    if state.pods.idle_labels_problem is not None:
        yield Problem("InvalidIdleLabel", state.pods.idle_labels_problem)
    yield from _write_problems(state)
    if state.has_startup_taint:
        text = f"taint {state.policy.startup_taint} keeps pods off this node until it shows the amounts of its mode"
        yield Problem("StartupTaint", text, warning=False)


def _write_problems(state: State) -> Iterator[Problem]:
    """What the API server refuses."""
    node = state.node
    # While the Node cannot be watched, that is the problem, and no write of it is new.
    if node.write_problem is not None and node.problem is None:
        yield Problem("NodeNotWritten", node.write_problem)
    if node.events_problem is not None:
        yield Problem("EventsRefused", node.events_problem)
    if node.configmaps_problem is not None:
        yield Problem("ReportNotWritten", node.configmaps_problem)
    if state.pods.annotations_problem is not None:
        yield Problem("AnnotationsNotWritten", state.pods.annotations_problem)
    if state.claims.retry_problem is not None:
        yield Problem("PrepareNotRetried", state.claims.retry_problem)


def _fence_problems(state: State) -> Iterator[Problem]:
    file = state.policy.fence_file
    gpus = state.gpus
    if gpus.fence_problem is not None:
        has_entries = gpus.fence != Fence()
        consequence = "what it said before stays in force" if has_entries else "it fences no GPU"
        text = f"fence file {file}: {gpus.fence_problem}; {consequence}. Write it as {EXAMPLE}, or remove it"
        yield Problem("FenceUnreadable", text)
    unknown = gpus.fence.unknown(gpus.by_uuid.values())
    if gpus.by_uuid and unknown:
        entries = first_of(unknown, MANY_ENTRIES)
        text = (
            f"fence file {file}: no GPU of this node is meant by {entries}; the rest "
            "is in force. An index is a minor number (N of /dev/nvidiaN); gpuagent status -o json shows them, and UUIDs"
        )
        yield Problem("FenceUnknown", text)
    for gpu in gpus.by_index:
        fenced = gpus.fenced.get(gpu.uuid)
        if fenced:
            text = f"{gpu} is {fenced}: take the entry out of {file} to use it again"
            yield Problem("GPUFenced", text, warning=False)


def _misread_problems(state: State) -> Iterator[Problem]:
    """Amounts of the node that other programs take for something else."""
    for text in interop.warn_of_former_units(state):
        yield Problem("UnitsChanged", text)
    for text in interop.warn_of_unequal_gpus(state):
        yield Problem("MixedGPUs", text, warning=False)
    for text in interop.warn_of_minor_numbers(state):
        yield Problem("NonContiguousGPUMinors", text, warning=False)
