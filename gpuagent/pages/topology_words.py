"""The words of a `/topology` page that its table and its picture share."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

MEANING = {
    "PIX": "over one PCIe switch at most",
    "PXB": "over several PCIe switches, not the CPU",
    "PHB": "through a PCIe host bridge of the CPU",
    "NODE": "through host bridges of one NUMA node",
    "SYS": "between NUMA nodes, from CPU to CPU",
}
"""The types of links by PCIe, nearest first."""


def state(gpu: dict[str, Any]) -> str:
    """``free``, ``held``, ``unhealthy`` or, in MIG mode, ``left out``; the last two may be held, too."""
    if gpu["health"] != "Healthy":
        return "left out" if gpu["health"] == "MIG" else "unhealthy"
    return "held" if gpu["holders"] else "free"


def pairs(page: dict[str, Any]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The link between each two GPUs, once, with their positions in the page."""
    for i, row in enumerate(page["links"]):
        for j in range(i + 1, len(row)):
            yield i, j, row[j]


def nvlinks(link: dict[str, Any]) -> int:
    """How many NVLinks join the two; 0 for PCIe."""
    return 0 if link["type"] in MEANING else int(link["type"].removeprefix("NV"))


def gbps(value: float) -> str:
    """Without needless zeros: ``50``, ``12.61``."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def models(gpus: Sequence[dict[str, Any]]) -> str:
    """``8 x Tesla V100-SXM2-16GB``; of unequal GPUs every model."""
    return ", ".join(f"{count} x {model}" for model, count in Counter(gpu["model"] for gpu in gpus).items())
