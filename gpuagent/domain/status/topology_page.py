"""Reports on a node's topology: the page for people, and the ConfigMap that arena reads."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.topology import Link
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.pods.holdings import located
from gpuagent.domain.reconcile.configmap import ConfigMapFacts
from gpuagent.domain.scheduling.node_links import BANDWIDTH_KEY
from gpuagent.domain.sharing.mode import MODE_LABEL, Mode
from gpuagent.domain.state import State, once

Json = dict[str, Any]
Row = Sequence[Link | None]
"""The links of one GPU to all others; None to itself."""
Square = list[list[Link | None]]

INEXACT = (
    "the best sets are not computed: on a node with more than 16 GPUs, and during the first seconds where 16 are all "
    "joined differently. The agent builds a set link by link"
)


def page(state: State, sets: BestSets) -> Json:
    """Plain JSON values: GPUs, the link between every two, and the best set of each size among the free ones.

    Args:
        state: the current state.
        sets: the chooser of sets for its topology.
    """
    topology = state.gpus.topology
    holders = _holders(state)
    gpus = [state.gpus.by_uuid[uuid] for uuid in topology.gpus]
    taken = {*holders, *state.unhealthy}
    free = []
    for position, gpu in enumerate(gpus):
        if gpu.uuid not in taken and not gpu.mig:
            free.append(position)
    sizes = range(1, len(free) + 1)
    notes = list(topology.notes)
    if not sets.exact:
        notes.append(INEXACT)
    return {
        "gpus": [_gpu(gpu, state, holders) for gpu in gpus],
        "links": [_links(row) for row in topology.links],
        "best": [_best(sets, free, size, gpus) for size in sizes],
        "notes": notes,
    }


def _gpu(gpu: Gpu, state: State, holders: Mapping[str, list[str]]) -> Json:
    return {
        "index": gpu.index,
        "minor": gpu.minor,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "pci_bus_id": gpu.pci_bus_id,
        "numa_node": gpu.numa_node,
        "health": _health(gpu, state.unhealthy),
        "holders": holders.get(gpu.uuid, []),
    }


def _holders(state: State) -> dict[str, list[str]]:
    """GPU UUID to the containers that have it, or units of it. One with memory and compute is one."""
    holders: dict[str, dict[str, None]] = {}
    for holding in state.living_holdings:
        owner = str(holding.owner)
        held = located(holding, state.gpus.by_uuid)
        for uuid, _ in held:
            owners = holders.setdefault(uuid, {})
            owners[owner] = None
    return {uuid: list(owners) for uuid, owners in holders.items()}


def _health(gpu: Gpu, unhealthy: Collection[str]) -> str:
    """``Healthy``, ``Unhealthy`` or ``MIG``; only ``Healthy`` GPUs are available to new pods."""
    if gpu.uuid in unhealthy:
        return "Unhealthy"
    if gpu.mig:
        return "MIG"
    return "Healthy"


def _links(row: Row) -> list[Json | None]:
    return [_link(link) for link in row]


def _link(link: Link | None) -> Json | None:
    if link is None:
        return None
    return {
        "type": link.type,
        "gbps": _rounded_gbps(link),
        "switched": link.switched,
    }


def _best(sets: BestSets, free: list[int], size: int, gpus: list[Gpu]) -> Json:
    chosen = sets.choose(free, size)
    weakest_mbps = sets.weakest(chosen)
    total_mbps = sets.total(chosen)
    ring = sets.ring(frozenset(chosen))
    return {
        "size": size,
        "gpus": [gpus[position].index for position in ring],
        "weakest_gbps": None if weakest_mbps is None else weakest_mbps / 1000,
        "total_gbps": total_mbps / 1000,
    }


_KEYS = frozenset({"nodeName", "devices", BANDWIDTH_KEY, "linkType"})


def config_maps(state: State, node_name: str) -> tuple[ConfigMapFacts, ...]:
    """The desired ConfigMap: present in mode `topology`, absent in every other; none until the mode is determined."""
    shall_be = state.node.mode is Mode.TOPOLOGY
    has_gpus = bool(state.gpus.by_uuid)
    if not state.node.mode_known:
        return ()
    if shall_be and not has_gpus:
        return ()  # they may just not have been read yet, and a report of an earlier run stays until then
    data = None
    if shall_be:
        data = {"nodeName": node_name, **_report_texts(state)}
    facts = ConfigMapFacts(
        namespace="kube-system",
        name=f"{node_name}-gputopo-report",
        # Arena finds it by labels, not by name.
        labels={MODE_LABEL: str(Mode.TOPOLOGY), "nodename": node_name},
        data=data,
        keys=_KEYS,
    )
    return (facts,)


def bandwidths(state: State) -> list[list[float]]:
    """GB/s each way between every two GPUs. GPU N is row and column N, by minor number as in annotations."""
    return [_gbps(row) for row in _links_by_minor(state)]


def _gbps(row: Row) -> list[float]:
    return [_rounded_gbps(link) if link else 0 for link in row]


def _rounded_gbps(link: Link) -> float:
    return round(link.gbps, 3)


def _types(row: Row) -> list[str]:
    return [link.type if link else "N/A" for link in row]


@once
def _links_by_minor(state: State) -> Square:
    """The links by minor number; None for a number that the driver does not list."""
    topology = state.gpus.topology
    by_uuid = state.gpus.by_uuid
    minors = [by_uuid[uuid].minor for uuid in topology.gpus]
    highest = max(minors, default=-1)
    width = highest + 1
    square: Square = []
    for _ in range(width):
        square.append([None] * width)
    for minor, links in zip(minors, topology.links, strict=True):
        row = square[minor]
        for other, link in zip(minors, links, strict=True):
            row[other] = link
    return square


def _report_texts(state: State) -> dict[str, str]:
    by_uuid = state.gpus.by_uuid
    listed = [by_uuid[uuid] for uuid in state.gpus.topology.gpus]
    # A GPU that the driver no longer lists is unhealthy. Another GPU may have its minor number, and then counts.
    listed_last = [*by_uuid.values(), *listed]
    health = {gpu.minor: _health(gpu, state.unhealthy) for gpu in listed_last}
    minors = sorted(health)
    devices = {str(minor): health[minor] for minor in minors}
    types = [_types(row) for row in _links_by_minor(state)]
    return {
        "devices": json.dumps(devices),
        BANDWIDTH_KEY: json.dumps(bandwidths(state)),
        "linkType": json.dumps(types),
    }
