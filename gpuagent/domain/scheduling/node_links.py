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
    width = len(gbps)
    return tuple(tuple(round(1000.0 * gbps[i][j]) if max(i, j) < width else 0 for j in minors) for i in minors)


def links_hash(mbps: Mbps) -> str:
    """Equal for equal bandwidths only."""
    return sha256(json.dumps(mbps).encode()).hexdigest()[:16]


def node_links(data: Mapping[str, Any], gpus: NodeGpus) -> Mbps | None:
    """Read the bandwidths from the ConfigMap's `data`; None unless they are those of which `gpus` has the hash.

    The agent writes annotation and ConfigMap in two requests, so one of them may be older.
    """
    try:
        found = link_mbps(json.loads(data[BANDWIDTH_KEY]), [gpu.minor for gpu in gpus.gpus])
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return None
    return found if links_hash(found) == gpus.links else None
