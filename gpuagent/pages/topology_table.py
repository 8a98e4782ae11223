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

LinkCell = Callable[[dict[str, Any]], str]
"""The text of a cell for a link."""


def render(page: dict[str, Any]) -> str:
    """Links by type and by bandwidth, the holders of GPUs, the best sets of free GPUs, and notes."""
    gpus = page["gpus"]
    node = f"node {page['node']}" if page["node"] else "this node"
    if gpus:
        parts = [
            f"{node}   {models(gpus)}   gpuagent {page['version']}",
            table(_types(page)),
            table(list(_legend(page))),
            f"GB/s each way between two GPUs:\n{table(_bandwidths(page))}",
            table(_gpus(gpus)),
            _best(page["best"]),
        ]
    else:
        parts = [f"{node} has no GPUs"]
    notes = [f"! {note}" for note in page["notes"]]
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(part for part in parts if part)


def _types(page: dict[str, Any]) -> list[list[str]]:
    """The types of the links, and the NUMA node of each GPU in the last column."""
    rows = _square(page, lambda link: link["type"])
    rows[0].append("NUMA AFFINITY")
    for row, gpu in zip(rows[1:], page["gpus"], strict=True):
        node = gpu["numa_node"]
        row.append("-" if node is None else str(node))
    return rows


def _bandwidths(page: dict[str, Any]) -> list[list[str]]:
    return _square(page, lambda link: _gbps(link["gbps"]))


def _square(page: dict[str, Any], cell: LinkCell) -> list[list[str]]:
    names = [f"GPU{gpu['index']}" for gpu in page["gpus"]]
    rows = [["", *names]]
    for name, links in zip(names, page["links"], strict=True):
        cells = ["X" if link is None else cell(link) for link in links]
        rows.append([name, *cells])
    return rows


def _legend(page: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "X", "the GPU itself"
    links: list[dict[str, Any]] = []
    for row in page["links"]:
        # A GPU has no link to itself.
        links += [link for link in row if link is not None]
    nvlinks = [link for link in links if _nvlinks(link)]
    if not all(link["switched"] for link in nvlinks):
        yield "NV#", "over # NVLinks, straight to the other GPU"
    if any(link["switched"] for link in nvlinks):
        yield "NV#", "over # NVLinks of each GPU, through NVSwitches"
    types = {link["type"] for link in links}
    for type_, meaning in MEANING.items():
        if type_ in types:
            yield type_, meaning


def _gpus(gpus: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = [["GPU", "PCI BUS", "MODEL", "STATE"]]
    for gpu in gpus:
        rows += _gpu(gpu)
    return rows


def _gpu(gpu: dict[str, Any]) -> Iterator[list[str]]:
    """Its row, and a row for each holder: names of pods are long."""
    words = _state(gpu)
    if gpu["holders"] and words != "held":
        words = f"{words}, held"
    yield [f"GPU{gpu['index']}", gpu["pci_bus_id"], gpu["model"], words]
    for holder in gpu["holders"]:
        yield ["", holder]


def _best(sets: Sequence[dict[str, Any]]) -> str:
    if not sets:
        return "no GPU is free to choose"
    rows = [["SIZE", "WEAKEST LINK", "TOTAL", "GPUS AS A RING"]]
    for best in sets:
        weakest = "-"
        total = "-"
        if best["weakest_gbps"] is not None:  # else it is one GPU alone
            weakest = _gbps(best["weakest_gbps"])
            total = _gbps(best["total_gbps"])
        size = str(best["size"])
        gpus = " ".join(map(str, best["gpus"]))
        rows.append([size, weakest, total, gpus])
    return f"best sets of free GPUs, GB/s:\n{table(rows)}"


def _state(gpu: dict[str, Any]) -> str:
    """``free``, ``held``, ``unhealthy`` or, in MIG mode, ``left out``; the last two may be held, too."""
    if gpu["health"] == "MIG":
        return "left out"
    if gpu["health"] != "Healthy":
        return "unhealthy"
    return "held" if gpu["holders"] else "free"


def _nvlinks(link: dict[str, Any]) -> int:
    """How many NVLinks join the two; 0 for PCIe."""
    type_ = link["type"]
    if type_ in MEANING:
        return 0
    return int(type_.removeprefix("NV"))


def _gbps(value: float) -> str:
    """Without needless zeros: ``50``, ``12.61``."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
