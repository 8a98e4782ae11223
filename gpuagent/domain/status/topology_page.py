"""Reports on a node's topology: the page for people, and the ConfigMap that arena reads."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.topology import Link
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.pods.holdings import located
from gpuagent.domain.reconcile.configmap import ConfigMapFacts
from gpuagent.domain.scheduling.node_links import BANDWIDTH_KEY
from gpuagent.domain.sharing.mode import MODE_LABEL, Mode
from gpuagent.domain.state import State, once

INEXACT = (
    "the best sets are not computed: on a node with more than 16 GPUs, and during the first seconds where 16 are all "
    "joined differently. The agent builds a set link by link"
)


def page(state: State, sets: BestSets) -> dict[str, Any]:
    """Plain JSON values: GPUs, the link between every two, and the best set of each size among the free ones.

    Args:
        state: the current state.
        sets: the chooser of sets for its topology.
    """
    holders = _holders(state)
    gpus = [state.gpus.by_uuid[uuid] for uuid in state.gpus.topology.gpus]
    unhealthy = state.unhealthy
    taken = {*holders, *unhealthy}
    free = [n for n, gpu in enumerate(gpus) if gpu.uuid not in taken and not gpu.mig]
    return {
        "gpus": [
            {
                "index": gpu.index,
                "minor": gpu.minor,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "pci_bus_id": gpu.pci_bus_id,
                "numa_node": gpu.numa_node,
                "health": _health(gpu, unhealthy),
                "holders": holders.get(gpu.uuid, []),
            }
            for gpu in gpus
        ],
        "links": [[_link(link) for link in row] for row in state.gpus.topology.links],
        "best": [_best(sets, free, size, gpus) for size in range(1, len(free) + 1)],
        "notes": [*state.gpus.topology.notes, *([] if sets.exact else [INEXACT])],
    }


def _holders(state: State) -> dict[str, list[str]]:
    """GPU UUID to the containers that have it, or units of it. One with memory and compute is one."""
    holders: dict[str, dict[str, None]] = {}
    for holding in state.living_holdings:
        for uuid, _ in located(holding, state.gpus.by_uuid):
            holders.setdefault(uuid, {})[str(holding.owner)] = None
    return {uuid: list(owners) for uuid, owners in holders.items()}


def _health(gpu: Gpu, unhealthy: Collection[str]) -> str:
    """``Healthy``, ``Unhealthy`` or ``MIG``; only ``Healthy`` GPUs are available to new pods."""
    return "Unhealthy" if gpu.uuid in unhealthy else "MIG" if gpu.mig else "Healthy"


def _link(link: Link | None) -> Mapping[str, Any] | None:
    return None if link is None else {"type": link.type, "gbps": round(link.gbps, 3), "switched": link.switched}


def _best(sets: BestSets, free: list[int], size: int, gpus: list[Gpu]) -> dict[str, Any]:
    chosen = sets.choose(free, size)
    weakest = sets.weakest(chosen)
    return {
        "size": size,
        "gpus": [gpus[n].index for n in sets.ring(frozenset(chosen))],
        "weakest_gbps": None if weakest is None else weakest / 1000,
        "total_gbps": sets.total(chosen) / 1000,
    }


_KEYS = frozenset({"nodeName", "devices", BANDWIDTH_KEY, "linkType"})


def config_maps(state: State, node_name: str) -> tuple[ConfigMapFacts, ...]:
    """The desired ConfigMap: present in mode `topology`, absent in every other; none until the mode is determined."""
    shall_be = state.node.mode is Mode.TOPOLOGY
    if not state.node.mode_known or (shall_be and not state.gpus.by_uuid):
        return ()
    # Arena finds it by labels, not by name.
    labels = {MODE_LABEL: str(Mode.TOPOLOGY), "nodename": node_name}
    data = {"nodeName": node_name, **_squares(state)} if shall_be else None
    return (ConfigMapFacts("kube-system", f"{node_name}-gputopo-report", labels, data, _KEYS),)


def bandwidths(state: State) -> list[list[float]]:
    """GB/s each way between every two GPUs. GPU N is row and column N, by minor number as in annotations."""
    return [[round(one.gbps, 3) if one else 0 for one in row] for row in _square(state)]


@once
def _square(state: State) -> list[list[Link | None]]:
    """The links by minor number; None for a number that the driver does not list."""
    place = {state.gpus.by_uuid[uuid].minor: n for n, uuid in enumerate(state.gpus.topology.gpus)}
    every = range(max(place, default=-1) + 1)

    def link(i: int, j: int) -> Link | None:
        return state.gpus.topology.links[place[i]][place[j]] if i in place and j in place else None

    return [[link(i, j) for j in every] for i in every]


def _squares(state: State) -> dict[str, str]:
    listed = [state.gpus.by_uuid[uuid] for uuid in state.gpus.topology.gpus]
    # A GPU that the driver no longer lists is unhealthy, and another GPU may have its minor number.
    unhealthy = state.unhealthy
    health = {gpu.minor: _health(gpu, unhealthy) for gpu in state.gpus.by_uuid.values()}
    health |= {gpu.minor: _health(gpu, unhealthy) for gpu in listed}
    return {
        "devices": json.dumps({str(minor): health[minor] for minor in sorted(health)}),
        BANDWIDTH_KEY: json.dumps(bandwidths(state)),
        "linkType": json.dumps([[one.type if one else "N/A" for one in row] for row in _square(state)]),
    }
