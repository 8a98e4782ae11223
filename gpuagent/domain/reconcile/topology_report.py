"""The ConfigMap with the node's topology, which arena reads, and the bandwidths in it."""

import json
from collections.abc import Sequence

from gpuagent.domain.gpus.topology import Link
from gpuagent.domain.reconcile.configmap import ConfigMapFacts
from gpuagent.domain.scheduling.node_links import BANDWIDTH_KEY
from gpuagent.domain.sharing.mode import MODE_LABEL, Mode
from gpuagent.domain.state import State, once
from gpuagent.domain.status.topology_page import health_word, rounded_gbps

Row = Sequence[Link | None]
"""The links of one GPU to all others; None to itself."""
Square = list[list[Link | None]]

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
    return [rounded_gbps(link) if link else 0 for link in row]


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


def _health_by_minor(state: State) -> dict[int, str]:
    by_uuid = state.gpus.by_uuid
    listed = [by_uuid[uuid] for uuid in state.gpus.topology.gpus]
    # A GPU that the driver no longer lists is unhealthy. Another GPU may have its minor number, and then counts.
    listed_last = [*by_uuid.values(), *listed]
    health = {}
    for gpu in listed_last:
        health[gpu.minor] = health_word(gpu, state.unhealthy)
    return health


def _report_texts(state: State) -> dict[str, str]:
    health = _health_by_minor(state)
    minors = sorted(health)
    devices = {str(minor): health[minor] for minor in minors}
    types = [_types(row) for row in _links_by_minor(state)]
    return {
        "devices": json.dumps(devices),
        BANDWIDTH_KEY: json.dumps(bandwidths(state)),
        "linkType": json.dumps(types),
    }
