"""The topology page as tables for people, the first of them as ``nvidia-smi topo -m`` has it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpuagent.pages.cells import models, table

MEANING = {
    "PIX": "over one PCIe switch at most",
    "PXB": "over several PCIe switches, not the CPU",
    "PHB": "through a PCIe host bridge of the CPU",
    "NODE": "through host bridges of one NUMA node",
    "SYS": "between NUMA nodes, from CPU to CPU",
}
"""The types of links by PCIe, nearest first."""


def render(page: dict[str, Any]) -> str:
    """Links by type and by bandwidth, the holders of GPUs, the best sets of free GPUs, and notes."""
    gpus = page["gpus"]
    notes = "\n".join(f"! {note}" for note in page["notes"])
    node = f"node {page['node']}" if page["node"] else "this node"
    if not gpus:
        return "\n\n".join(filter(None, (f"{node} has no GPUs", notes)))
    types = _square(page, lambda link: link["type"])
    numa = ["NUMA AFFINITY", *("-" if gpu["numa_node"] is None else str(gpu["numa_node"]) for gpu in gpus)]
    parts = [
        f"{node}   {models(gpus)}   gpuagent {page['version']}",
        table([[*one, cell] for one, cell in zip(types, numa, strict=True)]),
        table(list(_legend(page))),
        "GB/s each way between two GPUs:\n" + table(_square(page, lambda link: _gbps(link["gbps"]))),
        table([["GPU", "PCI BUS", "MODEL", "STATE"], *(row for gpu in gpus for row in _gpu(gpu))]),
        _best(page["best"]),
        notes,
    ]
    return "\n\n".join(filter(None, parts))


def _square(page: dict[str, Any], cell: Callable[[dict[str, Any]], str]) -> list[list[str]]:
    names = [f"GPU{gpu['index']}" for gpu in page["gpus"]]
    rows = [["X" if link is None else cell(link) for link in row] for row in page["links"]]
    return [["", *names], *([name, *row] for name, row in zip(names, rows, strict=True))]


def _legend(page: dict[str, Any]) -> Iterator[tuple[str, str]]:
    links = [link for row in page["links"] for link in row if link is not None]
    ways = {link["switched"] for link in links if _nvlinks(link)}
    yield "X", "the GPU itself"
    if False in ways:
        yield "NV#", "over # NVLinks, straight to the other GPU"
    if True in ways:
        yield "NV#", "over # NVLinks of each GPU, through NVSwitches"
    there = {link["type"] for link in links}
    yield from ((name, meaning) for name, meaning in MEANING.items() if name in there)


def _gpu(gpu: dict[str, Any]) -> Iterator[list[str]]:
    """Its row, and a row for each holder: names of pods are long."""
    words = dict.fromkeys((_state(gpu), *(["held"] if gpu["holders"] else ())))
    yield [f"GPU{gpu['index']}", gpu["pci_bus_id"], gpu["model"], ", ".join(words)]
    yield from (["", holder] for holder in gpu["holders"])


def _best(best: Sequence[dict[str, Any]]) -> str:
    if not best:
        return "no GPU is free to choose"
    rows = [["SIZE", "WEAKEST LINK", "TOTAL", "GPUS AS A RING"]]
    for found in best:
        alone = found["weakest_gbps"] is None
        speeds = ("-", "-") if alone else (_gbps(found["weakest_gbps"]), _gbps(found["total_gbps"]))
        rows.append([str(found["size"]), *speeds, " ".join(map(str, found["gpus"]))])
    return f"best sets of free GPUs, GB/s:\n{table(rows)}"


def _state(gpu: dict[str, Any]) -> str:
    """``free``, ``held``, ``unhealthy`` or, in MIG mode, ``left out``; the last two may be held, too."""
    if gpu["health"] != "Healthy":
        return "left out" if gpu["health"] == "MIG" else "unhealthy"
    return "held" if gpu["holders"] else "free"


def _nvlinks(link: dict[str, Any]) -> int:
    """How many NVLinks join the two; 0 for PCIe."""
    return 0 if link["type"] in MEANING else int(link["type"].removeprefix("NV"))


def _gbps(value: float) -> str:
    """Without needless zeros: ``50``, ``12.61``."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
