"""The agent as a process, at a start on a node that has large pods: what they carry is never all in memory."""

import shutil
import time

import pytest

from bench.agent.memory import BOX, LONGEST_S, fail, of
from bench.node import Node
from gpuagent.domain.sharing.mode import GPU_MEM

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")

PODS, BYTES, MOST_MIB = 200, 200_000, 15.0


def peak(node: Node) -> float:
    """MiB that a new agent takes at most until it has read the pods."""
    node.start_agent()
    node.registered(LONGEST_S)
    node.offers(GPU_MEM, 640, LONGEST_S)
    node.run_pod(f"last-{time.monotonic_ns()}", {GPU_MEM: 1})
    found = of(node).peak
    node.stop_agent()
    return found


def test_a_start_on_a_node_with_40_mb_of_annotations_takes_little_more_than_one_without() -> None:
    with Node(BOX, "share") as node:
        without = peak(node)
        fail(node, PODS, BYTES)
        assert peak(node) < without + MOST_MIB
