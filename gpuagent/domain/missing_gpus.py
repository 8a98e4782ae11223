"""GPUs that the node should have and that the driver does not list: it had them before, or they are on the PCI bus."""

from collections.abc import Iterator

from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION, FormerGpus, former_gpus_text
from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.state import State, once


@once
def missing_gpus(state: State) -> FormerGpus:
    """The GPUs that the node had before and that were not read in this run, as its annotation names them.

    One that the driver lists and cannot read may be any of them, and has a problem of its own.
    """
    gpus = state.gpus
    if gpus.driver_problem is not None or len(gpus.unreadable) > 0:
        return {}
    addresses = {gpu.pci_bus_id for gpu in gpus.by_uuid.values() if gpu.pci_bus_id}
    there = set(gpus.by_uuid)
    there |= {f"minor {gpu.minor}" for gpu in gpus.by_uuid.values()}
    there |= {f"number {number + 1}" for number in range(len(gpus.by_uuid))}
    # Another GPU at the address of a former one has replaced it.
    former = state.node.former_gpus.items()
    return {key: pci for key, pci in former if key not in there and pci not in addresses}


def known_gpus_annotation(state: State) -> dict[str, str]:
    """The annotation as it should be; empty while the GPUs or the Node are not known."""
    gpus = state.gpus
    if state.node.object is None or gpus.driver_problem is not None or gpus.unreadable:
        return {}
    known = {gpu.uuid: gpu.pci_bus_id for gpu in gpus.by_uuid.values()} | dict(missing_gpus(state))
    return {KNOWN_GPUS_ANNOTATION: former_gpus_text(known)} if known else {}


def missing_words(state: State) -> Iterator[str]:
    """A sentence for each missing GPU: which it is, how the agent knows of it, and what to do."""
    node = text(mapping(mapping(state.node.object).get("metadata")).get("name")) or "NODE"
    on_bus = dict(state.gpus.absent)
    for key, pci in missing_gpus(state).items():
        is_named = key.startswith("GPU-")
        name = f"GPU {key} at PCI address {pci}" if is_named and pci else f"GPU {key}" if is_named else f"a GPU ({key})"
        bus = _take(on_bus, pci)
        where = f"it is on the PCI bus, {bus}" if bus else "see `lspci` and NVRM lines in `dmesg`"
        yield (
            f"{name} is missing: the node had it before, and the driver does not list it; {where}. If it was removed "
            f"on purpose, run: kubectl annotate node {node} {KNOWN_GPUS_ANNOTATION}-"
        )
    for address, bus in on_bus.items():
        yield (
            f"the GPU at PCI address {address} is missing: it is on the PCI bus, {bus}, and the driver does not list "
            "it. See NVRM lines in `dmesg`. To leave it out on purpose, bind it to another driver, such as vfio-pci"
        )


def _take(on_bus: dict[str, str], pci: str) -> str:
    """The driver of the PCI device with NVML's address `pci`, in words, which is then explained; empty if unknown."""
    for address, words in on_bus.items():
        if pci.lower().endswith(address):
            del on_bus[address]
            return words
    return ""
