"""The bandwidths between a node's GPUs: a ConfigMap of the agent has them, `gpuagent.io/gpus` their hash.

Schedulers read them once for each hash, because most nodes of a cluster are alike.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from gpuagent.domain.scheduling.node_gpus import NodeGpus

BANDWIDTH_KEY = "bandwidth"
"""Key of the ConfigMap `<node>-gputopo-report` with a JSON square of GB/s, row and column N for minor number N."""

Mbps = tuple[tuple[int, ...], ...]
"""Square of whole MB/s between the published GPUs, by ascending minor number; 0 on the diagonal."""


def link_mbps(gbps: Sequence[Sequence[float]], minors: Sequence[int]) -> Mbps:
    """The bandwidths between the GPUs `minors`, of the ConfigMap's square; 0 for GPUs that it does not have."""
    rows: list[tuple[int, ...]] = []
    for minor in minors:
        row = [_mbps(gbps, minor, other) for other in minors]
        rows.append(tuple(row))
    return tuple(rows)


def _mbps(gbps: Sequence[Sequence[float]], minor: int, other: int) -> int:
    is_known = max(minor, other) < len(gbps)
    if not is_known:
        return 0
    return round(1000.0 * gbps[minor][other])


def links_hash(mbps: Mbps) -> str:
    """Equal for equal bandwidths only."""
    text = json.dumps(mbps)
    return sha256(text.encode()).hexdigest()[:16]


def node_links(data: Mapping[str, Any], gpus: NodeGpus) -> Mbps | None:
    """Read the bandwidths from the ConfigMap's `data`; None unless they are those of which `gpus` has the hash.

    The agent writes annotation and ConfigMap in two requests, so one of them may be older.
    """
    minors = [gpu.minor for gpu in gpus.gpus]
    try:
        gbps = json.loads(data[BANDWIDTH_KEY])
        mbps = link_mbps(gbps, minors)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return None
    return mbps if links_hash(mbps) == gpus.links else None
