"""Decisions of schedulers while the API server's watches are late, or kubelet's pod-resources API is slow, busy or silent."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpuagent._pb import podresources_v1_pb2 as pb
from gpuagent._pb import podresources_v1_pb2_grpc as pb_grpc
from gpuagent.kubelet.pod_resources import PodResources
from tests.e2e.agent.allocation_audit import holdings
from tests.e2e.agent.bursts import GPUS, MANY, WHOLE, burst, manifest
from tests.e2e.agent.conftest import KUBELET_DIR, Node
from tests.e2e.agent.decision_audit import audit_decisions
from tests.e2e.agent.share_scheduler import ShareScheduler
from tests.e2e.agent.slow_proxies import SlowSocket, slow_api
from tests.e2e.amounts import older_kubelet_in_long
from tests.e2e.cluster import WAIT_S, Cluster

SOCKET = KUBELET_DIR / "pod-resources" / "kubelet.sock"
LATE_S = 5.0
_AT_ONCE = 30
"""Calls, of which kubelet answers the first ten in any case."""


@older_kubelet_in_long
def test_watches_that_are_five_seconds_late(
    kubelet: str, cluster: Cluster, make_node: Callable[..., Node], never_starts: str, tmp_path: Path
) -> None:
    with slow_api(cluster, tmp_path) as api:
        api.watches_late_s = LATE_S
        node = make_node(mode="share", flags=(*MANY, "--kubeconfig", str(api.kubeconfig)))
        node.wait_amounts(mem=GPUS * WHOLE)
        scheduler = placed(node, never_starts, 60)
        audit_decisions(node, scheduler.decided)
        node.end(*node.pods)


@pytest.fixture
def slow_socket(pod_resources: PodResources) -> Iterator[SlowSocket]:
    """Kubelet's, for the agent; the test's own connection is there before."""
    holdings(pod_resources)
    with SlowSocket(SOCKET) as made:
        yield made


def test_a_slow_pod_resources_api(
    kubelet: str, slow_socket: SlowSocket, make_node: Callable[..., Node], never_starts: str
) -> None:
    node = make_node(mode="share", flags=MANY, fresh=True)
    node.wait_amounts(mem=GPUS * WHOLE)
    # Less than the agent waits after a silent look, so that one stall of the machine refuses no pods of the next seconds.
    slow_socket.late_s = 0.05
    audit_decisions(node, placed(node, never_starts, 30).decided)


def test_a_pod_resources_api_at_its_limit(kubelet: str, make_node: Callable[..., Node], never_starts: str) -> None:
    node = make_node(mode="share", flags=MANY)
    node.wait_amounts(mem=GPUS * WHOLE)
    with busy_api():
        scheduler = placed(node, never_starts, 30)
        for name in node.pods:
            taken(node, name)
    audit_decisions(node, scheduler.decided)


def test_a_silent_pod_resources_api(
    kubelet: str, slow_socket: SlowSocket, make_node: Callable[..., Node], never_starts: str
) -> None:
    """Where pods differ the agent refuses, and places none of them on another pod's GPU."""
    node = make_node(mode="share", flags=MANY, fresh=True)
    node.wait_amounts(mem=GPUS * WHOLE)
    slow_socket.late_s = None
    scheduler = placed(node, never_starts, 20)
    failed = []
    for name in node.pods:
        status = taken(node, name)
        failed += [status["message"]] if status["phase"] == "Failed" else []
    slow_socket.late_s = 0.0
    assert failed, "no two pods differed"
    assert all("the agent cannot identify the requesting pod" in message for message in failed), failed
    audit_decisions(node, scheduler.decided)


def taken(node: Node, name: str) -> dict[str, Any]:
    """The pod's status, once kubelet has admitted or rejected it."""
    status: dict[str, Any] = node.cluster.wait_pod(name, lambda pod: "startTime" in pod["status"])["status"]
    return status


def placed(node: Node, never_starts: str, pods: int) -> ShareScheduler:
    """Pods of few sizes, in one burst and in random order."""
    rng = random.Random(pods)
    scheduler = ShareScheduler(node.cluster, GPUS, WHOLE - 25, WHOLE, seed=pods)
    burst(node, scheduler, {f"slow-{n}": manifest(f"slow-{n}", rng, never_starts) for n in range(pods)}, rng)
    return scheduler


@contextmanager
def busy_api() -> Iterator[None]:
    """Another client takes all that kubelet allows: 100 calls a second, for all clients together."""
    ended, limited = threading.Event(), threading.Event()

    def ask() -> None:
        with grpc.insecure_channel(f"unix:{SOCKET}", options=[("grpc.default_authority", "localhost")]) as channel:
            stub = pb_grpc.PodResourcesListerStub(channel)
            while not ended.is_set():
                # All at once: one after the other, a slow machine makes fewer than 100 a second.
                request = pb.AllocatableResourcesRequest()
                calls = [stub.GetAllocatableResources.future(request, timeout=WAIT_S) for _ in range(_AT_ONCE)]
                if any(call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for call in calls):
                    limited.set()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert limited.wait(WAIT_S), "kubelet refused no call"
        yield
    finally:
        ended.set()
        thread.join()
