"""The links between the GPUs of a box, as its file lists them: PCIe paths, NVLinks between GPUs, NVSwitches."""

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gpuagent.domain.gpus.link_reports import End
from gpuagent.nvml.binding.wiring_calls import MOST_LINKS
from gpuagent.nvml.link_values import VERSIONS
from gpuagent.simulation.box_table import BUS_ID, BoxError, BoxTable

NO_CLUSTER = str(uuid.UUID(int=0))
"""The cluster UUID that the driver returns on a machine whose fabric ends at the machine."""
_PCIE = re.compile(r"([1-6])x(1|2|4|8|16)")
_PATH = re.compile(r"\w+(/\w+){1,3}")
_PCI_ID = re.compile(r"[0-9A-F]{8}")
_CLUSTER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLink:
    """One end of an NVLink. `version` as NVML counts it; where the address or id there is unknown, empty and 0."""

    version: int
    end: End
    bus_id: str = ""
    pci_id: int = 0


@dataclass(frozen=True, slots=True)
class BoxFabric:
    """The NVLink fabric a GPU belongs to."""

    cluster: str = NO_CLUSTER
    clique: int = 0


Wired = tuple[tuple[BoxLink, ...], BoxFabric | None]


def pcie(table: BoxTable) -> tuple[int, int] | None:
    """Generation and lanes from ``4x16``; None where the table has none."""
    text = table.take("pcie", str, None)
    if text is None:
        return None
    match = _PCIE.fullmatch(text)
    if match is None:
        raise BoxError(f'{table.where}: pcie must be generation and lanes, like "4x16", not {text!r}')
    return int(match[1]), int(match[2])


def path(table: BoxTable, text: str) -> tuple[str, ...]:
    """NUMA node, host bridge, and up to two switches from ``0/0/0/1``."""
    if not text:
        return ()
    table.check("pcie_paths", [text], _PATH)
    return tuple(text.split("/"))


def check_paths(where: str, gpus: Iterable[tuple[int | None, tuple[str, ...]]]) -> None:
    """Check that two paths have the same first part exactly if their GPUs share a NUMA node. Raises BoxError."""
    numa_nodes: dict[int, int] = {}
    roots: dict[int, str] = {}
    for index, (numa_node, pcie_path) in enumerate(gpus):
        if numa_node is not None and pcie_path:
            numa_nodes[index] = numa_node
            roots[index] = pcie_path[0]
    for gpu, other in combinations(roots, 2):
        share_node = numa_nodes[gpu] == numa_nodes[other]
        share_root = roots[gpu] == roots[other]
        if share_node != share_root:
            raise BoxError(
                f"{where}: numa_nodes and pcie_paths do not agree whether GPU {gpu} and GPU {other} are near"
            )


def link_up(where: str, table: BoxTable, bus_ids: Sequence[str]) -> list[Wired]:
    """Links and fabric of each GPU, from ``[[nvlinks]]`` and ``[nvswitch]``; links are numbered in the file's order."""
    links: list[list[BoxLink]] = [[] for _ in bus_ids]
    fabrics: list[BoxFabric | None] = [None for _ in bus_ids]
    _join_pairs(where, table, bus_ids, links)
    values = table.take("nvswitch", dict, None)
    if values is not None:
        switch = BoxTable(f"{where}, [nvswitch]", values)
        _join_switch(switch, links, fabrics)
        switch.end()
    for gpu, own in enumerate(links):
        count = len(own)
        if count > MOST_LINKS:
            raise BoxError(f"{where}: GPU {gpu} has {count} NVLinks; NVML counts {MOST_LINKS} at most")
    return [(tuple(own), fabric) for own, fabric in zip(links, fabrics, strict=True)]


def _join_switch(switch: BoxTable, links: list[list[BoxLink]], fabrics: list[BoxFabric | None]) -> None:
    """Add the links to the switches, and the fabric, to the GPUs that have them."""
    members = _members(switch, len(links))
    switch_links = _switch_links(switch)
    fabric = _fabric(switch)
    for gpu in members:
        links[gpu] += switch_links
        fabrics[gpu] = fabric


def _join_pairs(where: str, table: BoxTable, bus_ids: Sequence[str], links: list[list[BoxLink]]) -> None:
    """Add the links of ``[[nvlinks]]``, each to both of its GPUs."""
    joined: set[frozenset[int]] = set()
    for number, values in enumerate(table.take("nvlinks", list, []), 1):
        bridges = BoxTable(f"{where}, [[nvlinks]] number {number}", values)
        version = _version(bridges)
        for values_of_pair in bridges.items("pairs", list):
            pair = _pair(bridges, values_of_pair, len(bus_ids))
            ends = frozenset({pair.gpu, pair.other})
            if ends in joined:
                raise BoxError(f"{bridges.where}: pairs: GPU {pair.gpu} and GPU {pair.other} are joined twice")
            joined.add(ends)
            to_other = BoxLink(version=version, end=End.GPU, bus_id=bus_ids[pair.other])
            to_gpu = BoxLink(version=version, end=End.GPU, bus_id=bus_ids[pair.gpu])
            links[pair.gpu] += [to_other] * pair.count
            links[pair.other] += [to_gpu] * pair.count
        bridges.end()


def _version(table: BoxTable) -> int:
    text = table.take("version", str)
    for number, name in VERSIONS.items():
        if name == text:
            return number
    known = ", ".join(VERSIONS.values())
    raise BoxError(f"{table.where}: version {text!r} is not one of {known}")


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two GPUs, and how many links join them."""

    gpu: int
    other: int
    count: int


def _pair(table: BoxTable, values: Sequence[Any], gpus: int) -> _Pair:
    # For Python, true and false are numbers.
    are_numbers = all(type(value) is int for value in values)
    if are_numbers and len(values) == 3:
        pair = _Pair(*values)
        are_gpus = {pair.gpu, pair.other} <= set(range(gpus))
        if are_gpus and pair.gpu != pair.other and pair.count > 0:
            return pair
    last = gpus - 1
    raise BoxError(f"{table.where}: pairs: {values!r} is not GPU, other GPU (0 to {last}), number of links")


def _members(table: BoxTable, gpus: int) -> list[int]:
    every = list(range(gpus))
    members = table.items("gpus", int, every)
    different = set(members)
    are_valid = different <= set(every) and len(different) == len(members)
    if not members or not are_valid:
        last = gpus - 1
        raise BoxError(f"{table.where}: gpus {members!r} must be different GPUs from 0 to {last}")
    return members


def _switch_links(table: BoxTable) -> list[BoxLink]:
    """The links of one GPU to the switches, spread evenly over `bus_ids`."""
    version = _version(table)
    count = table.take("links", int)
    if count < 1:
        raise BoxError(f"{table.where}: links must be at least 1, not {count}")
    pci_id = table.take("pci_id", str, "00000000")
    table.check("pci_id", [pci_id], _PCI_ID)
    bus_ids = table.items("bus_ids", str, [])
    table.check("bus_ids", bus_ids, BUS_ID)
    tells_type = table.take("tells_type", bool, True)
    spread = bus_ids or [""]
    links = []
    for number in range(count):
        link = BoxLink(
            version=version,
            end=End.SWITCH if tells_type else End.UNKNOWN,
            bus_id=spread[number % len(spread)],
            pci_id=int(pci_id, 16),
        )
        links.append(link)
    return links


def _fabric(table: BoxTable) -> BoxFabric | None:
    cluster = table.take("cluster", str, NO_CLUSTER)
    clique = table.take("clique", int, 0)
    table.check("cluster", [cluster], _CLUSTER)
    if clique < 0:
        raise BoxError(f"{table.where}: clique must not be below 0, but is {clique}")
    if table.take("fabric", bool, False):
        return BoxFabric(cluster, clique)
    if (cluster, clique) != (NO_CLUSTER, 0):
        raise BoxError(f"{table.where}: cluster and clique need fabric = true")
    return None
