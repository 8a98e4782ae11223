"""GPUs that the node should have and that the driver does not list: it had them before, or they are on the PCI bus."""

from collections.abc import Iterator, Mapping

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.node_state.former_gpus import (
    KNOWN_GPUS_ANNOTATION,
    FormerGpu,
    FormerGpus,
    former_gpus_text,
)
from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.state import State, once


@once
def missing_gpus(state: State) -> FormerGpus:
    """The GPUs that the node had before and that are certainly missing, as its annotation names them."""
    former = _not_read(state)
    if _unidentified(state) == 0:
        return former
    # One on the bus that the driver does not list is none of those that it lists and cannot read.
    return {key: gpu for key, gpu in former.items() if _address_on_bus(state.gpus.absent, gpu.pci)}


def _not_read(state: State) -> FormerGpus:
    """The GPUs that the node had before and that were not read in this run."""
    gpus = state.gpus
    if gpus.driver_problem is not None:
        return {}
    addresses = {gpu.pci_bus_id for gpu in gpus.by_uuid.values() if gpu.pci_bus_id}
    there = set(gpus.by_uuid)
    there |= {f"minor {gpu.minor}" for gpu in gpus.by_uuid.values()}
    there |= {f"number {number + 1}" for number in range(len(gpus.by_uuid))}
    # Another GPU at the address of a former one has replaced it.
    former = state.node.former_gpus.items()
    return {key: gpu for key, gpu in former if key not in there and gpu.pci not in addresses}


def _unidentified(state: State) -> int:
    """How many GPUs the driver lists that were never read in this run: each may be any of the node's former GPUs."""
    return max(0, len(state.gpus.unreadable) - len(state.gpus.unread))


def known_gpus_annotation(state: State) -> dict[str, str]:
    """The annotation as it should be; empty while the GPUs or the Node are not known."""
    gpus = state.gpus
    if state.node.object is None or gpus.driver_problem is not None or gpus.unreadable:
        return {}
    known = dict(missing_gpus(state))
    for gpu in gpus.by_uuid.values():
        most_mib = max(gpu.memory_mib, former_memory_mib(gpu, state))
        known[gpu.uuid] = FormerGpu(gpu.pci_bus_id, most_mib)
    return {KNOWN_GPUS_ANNOTATION: former_gpus_text(known)} if known else {}


def former_memory_mib(gpu: Gpu, state: State) -> int:
    """The most memory that this GPU had before, or the one whose place it has taken; 0 if that is not known."""
    known = state.gpus.by_uuid
    sizes = [0]
    for key, former in state.node.former_gpus.items():
        # A vGPU of another profile is another GPU at the same address.
        is_replaced = bool(former.pci) and former.pci == gpu.pci_bus_id and key not in known
        if key == gpu.uuid or is_replaced:
            sizes.append(former.memory_mib)
    return max(sizes)


def missing_words(state: State) -> Iterator[str]:
    """A sentence for each missing GPU: which it is, how the agent knows of it, and what to do."""
    accept = accept_words(state)
    on_bus = dict(state.gpus.absent)
    for key, (pci, _) in missing_gpus(state).items():
        bus = _take(on_bus, pci)
        where = f"it is on the PCI bus, {bus}" if bus else "see `lspci` and NVRM lines in `dmesg`"
        yield (
            f"{_name(key, pci)} is missing: the node had it before, and the driver does not list it; {where}. "
            f"If it was removed on purpose, {accept}"
        )
    for address, bus in on_bus.items():
        yield (
            f"the GPU at PCI address {address} is missing: it is on the PCI bus, {bus}, and the driver does not list "
            "it. See NVRM lines in `dmesg`. To leave it out on purpose, bind it to another driver, such as vfio-pci"
        )
    yield from _uncertain_words(state)


def _uncertain_words(state: State) -> Iterator[str]:
    """How many more GPUs are missing than there are GPUs that cannot be read; it is not known which."""
    certain = missing_gpus(state)
    candidates = {key: gpu.pci for key, gpu in _not_read(state).items() if key not in certain}
    unidentified = _unidentified(state)
    count = len(candidates) - unidentified
    if count <= 0:
        return
    names = ", ".join(_name(key, pci) for key, pci in candidates.items())
    verb = "is" if count == 1 else "are"
    yield (
        f"{count} of these {len(candidates)} GPUs {verb} missing: {names}. The node had them before, and the driver "
        f"lists only {unidentified} more, which it cannot read. See `lspci` and NVRM lines in `dmesg`. If they were "
        f"removed on purpose, {accept_words(state)}"
    )


def accept_words(state: State) -> str:
    """How the operator says that the GPUs are as they should be."""
    node = text(mapping(mapping(state.node.object).get("metadata")).get("name")) or "NODE"
    return f"run: kubectl annotate node {node} {KNOWN_GPUS_ANNOTATION}-"


def _name(key: str, pci: str) -> str:
    if not key.startswith("GPU-"):
        return f"a GPU ({key})"
    return f"GPU {key} at PCI address {pci}" if pci else f"GPU {key}"


def _take(on_bus: dict[str, str], pci: str) -> str:
    """The driver of the PCI device with NVML's address `pci`, in words, which is then explained; empty if unknown."""
    address = _address_on_bus(on_bus, pci)
    return on_bus.pop(address) if address else ""


def _address_on_bus(on_bus: Mapping[str, str], pci: str) -> str:
    """The kernel's spelling of NVML's address `pci`, which has more digits; empty if it is not there."""
    return next((address for address in on_bus if pci.lower().endswith(address)), "")
