"""`python -m bench.gpu_check`: the agent on this machine's own NVIDIA driver, as text to keep in docs/gpu-check.md.

Reads the GPUs and their links, registers for their fault events, and runs the agent for one round with the stand-in
kubelet. The round is: register, advertise, prefer, allocate, start. It changes nothing on the machine. Without a
driver it reports that and exits with 0.
"""

import json
import time
from collections.abc import Sequence

from bench.node import RESOURCES, BenchError, Node
from bench.result import machine, now
from gpuagent import __version__
from gpuagent.domain.gpus.gpu import Gpu, Inventory
from gpuagent.domain.gpus.link_reports import Wiring
from gpuagent.domain.gpus.topology import Link, topology
from gpuagent.domain.sharing.mode import GPU_MEM, Kind
from gpuagent.domain.sharing.units import MemoryUnit, units_of
from gpuagent.nvml.binding.fault_events import DOUBLE_BIT_ECC, XID
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.driver_errors import CallError, DriverError
from gpuagent.nvml.gpu_reader import discover
from gpuagent.pages.cells import table
from gpuagent.pages.status_table import render
from gpuagent.system.output import exit_with
from standin.kubelet.pods import Granted

POD = "trial"


def main() -> int:
    """Print the check; 1 if the agent does not get through its round."""
    try:
        inventory = discover()
    except DriverError as err:
        print(f"no NVIDIA driver to check here: {err}")
        return 0
    facts = machine()
    print(f"# GPU check of {now()}\n")
    print(f"gpuagent {__version__}, driver {inventory.driver_version}, Linux {facts['kernel']},")
    print(f"Python {facts['python']}, {', '.join(f'{k} {v}' for k, v in facts['versions'].items())}\n")
    _show("Inventory", _inventory(inventory))
    if not inventory.gpus:
        print("The driver has no GPU that can be read; there is nothing more to check.")
        return 0
    _show("Links", _links(inventory))
    _show("Fault events", _events())
    try:
        _round(inventory)
    except BenchError as err:
        print(f"NOT WELL: {err}")
        return 1
    return 0


def _show(title: str, text: str) -> None:
    print(f"## {title}\n\n```\n{text}\n```\n", flush=True)


def _inventory(inventory: Inventory) -> str:
    rows = [["GPU", "MINOR", "UUID", "PCI", "MODEL", "MIB", "RESERVED", "CC", "NUMA", "MIG"]]
    rows += [_row(gpu) for gpu in inventory.gpus]
    lines = [table(rows)]
    lines += [f"GPU {gpu.index} cannot be read: {gpu.reason}" for gpu in inventory.unreadable]
    lines.append(f"device nodes: {' '.join(sorted(inventory.device_nodes)) or 'none'}")
    return "\n".join(lines)


def _row(gpu: Gpu) -> list[str]:
    capability = ".".join(map(str, gpu.compute_capability or ())) or "-"
    numa = "-" if gpu.numa_node is None else str(gpu.numa_node)
    fixed = [str(gpu.index), str(gpu.minor), gpu.uuid, gpu.pci_bus_id, gpu.model]
    return [*fixed, str(gpu.memory_mib), str(gpu.reserved_mib), capability, numa, "on" if gpu.mig else "off"]


def _links(inventory: Inventory) -> str:
    """Each GPU's reports, the link of each pair with its GB/s each way, and the problems."""
    found = topology(inventory.gpus, inventory.wiring)
    own = [["GPU", "PCIE", "NVLINKS", "FABRIC"]]
    own += [[str(gpu.index), *_ends(inventory.wiring[gpu.uuid])] for gpu in inventory.gpus]
    indices = [str(gpu.index) for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.index)]
    pairs = [["GPU", *indices], *([index, *map(_pair, row)] for index, row in zip(indices, found.links, strict=True))]
    return "\n".join([table(own), "", table(pairs), *found.notes])


def _ends(wiring: Wiring) -> list[str]:
    pcie = "{}x{}".format(*wiring.pcie) if wiring.pcie else "-"
    versions = "/".join(sorted({link.version or "?" for link in wiring.nvlinks}))
    nvlinks = f"{len(wiring.nvlinks)} x {versions}" if wiring.nvlinks else "-"
    fabric = "-" if wiring.fabric is None else "ready" if wiring.fabric.ready else "not ready"
    return [pcie, nvlinks, fabric]


def _pair(link: Link | None) -> str:
    return f"{link.type} {link.gbps:g}" if link else "-"


def _events() -> str:
    """Register every GPU for the events that the agent waits for, in a separate event set, and wait once."""
    nvml, rows = Nvml(), [["GPU", "XID", "DOUBLE-BIT ECC", "REGISTERED"]]
    with nvml.session(), nvml.event_set() as events:
        for index in range(nvml.count()):
            try:
                gpu = nvml.handle(index)
                kinds = nvml.supported_events(gpu)
                nvml.register(gpu, kinds & (XID | DOUBLE_BIT_ECC), events)
                rows.append([str(index), _yes(kinds & XID), _yes(kinds & DOUBLE_BIT_ECC), "yes"])
            except CallError as err:
                rows.append([str(index), "-", "-", str(err)])
        began = time.monotonic()
        try:
            event = nvml.wait(events, 0.5)
        except CallError as err:
            return f"{table(rows)}\nwaiting for events fails: {err}"
        waited = time.monotonic() - began
    heard = "nothing happened" if event is None else f"heard {event}"
    return f"{table(rows)}\nwaited {waited:.2f} s for an event: {heard}"


def _yes(bit: int) -> str:
    return "yes" if bit else "no"


def _round(inventory: Inventory) -> None:
    """The agent on the real driver, from its start to a container's environment."""
    usable = [gpu for gpu in inventory.gpus if not gpu.mig]
    units = [units_of(gpu, Kind.MEMORY_SHARE, MemoryUnit()) for gpu in usable]
    with Node("", "share") as node:
        node.start_agent()
        node.registered()
        node.offers(GPU_MEM, sum(units))
        took = (time.monotonic() - node.started) * 1000
        lists = [f"{name}: {node.count(name, 'Healthy')} healthy devices" for name in RESOURCES]
        _show(f"Registered and offered in mode share, {took:.0f} ms after its start", "\n".join(lists))
        asked = max(1, max(units, default=0) // 2)
        pod = node.pend(POD, {GPU_MEM: asked})
        admission = node.kubelet.admit(pod)
        if not admission:
            raise node.fail(f"kubelet did not admit the pod: {admission.failed}")
        granted = node.kubelet.start_container(pod, "main")
        _show(f"A container with {asked} units of {GPU_MEM} gets", _granted(granted))
        time.sleep(1.0)
        _show("gpuagent status", render(json.loads(node.page("status"))))
        metrics = node.page("metrics").decode().splitlines()
        shown = ("gpuagent_gpu_healthy", "gpuagent_health_watch_up", "gpuagent_devices")
        _show("Metrics", "\n".join(line for line in metrics if line.startswith(shown)))
        node.stop_agent()
        _show("What the agent said", node.log.read_text(encoding="utf-8").rstrip())


def _granted(granted: Granted) -> str:
    lines = [f"{key}={value}" for key, value in sorted(granted.env.items())]
    lines += [f"device {device.host_path} {device.permissions}" for device in granted.devices]
    lines += [f"mount {mount.host_path} on {mount.container_path}" for mount in granted.mounts]
    return "\n".join([*lines, *(f"cdi {name}" for name in granted.cdi), *_ids(granted)])


def _ids(granted: Granted) -> Sequence[str]:
    held = {name: sorted(ids) for name, ids in granted.ids.items()}
    return [f"{name}: {len(ids)} devices, {ids[0]} among them" for name, ids in held.items()]


if __name__ == "__main__":
    exit_with("gpu_check", main)
