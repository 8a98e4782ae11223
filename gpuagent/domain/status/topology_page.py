"""The page about a node's topology, for people."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.topology import Link
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.pods.holdings import located
from gpuagent.domain.state import State

Json = dict[str, Any]
Row = Sequence[Link | None]
"""The links of one GPU to all others; None to itself."""

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
    # In MIG mode, a GPU cannot be given whole.
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
        "health": health_word(gpu, state.unhealthy),
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


def health_word(gpu: Gpu, unhealthy: Collection[str]) -> str:
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
        "gbps": rounded_gbps(link),
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


def rounded_gbps(link: Link) -> float:
    """GB/s each way, as people and arena read it."""
    return round(link.gbps, 3)
