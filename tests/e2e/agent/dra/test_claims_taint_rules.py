"""Taints that administrators give devices by a DeviceTaintRule: Kubernetes 1.37 and later."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import SLICE, SLICES, claiming, of
from tests.e2e.build import KUBERNETES
from tests.e2e.cluster import NODE_NAME, Cluster

pytestmark = pytest.mark.skipif(KUBERNETES != "1.37", reason="Kubernetes has taint rules by default from 1.37 on")
Json = dict[str, Any]


@pytest.fixture
def taint(cluster: Cluster) -> Iterator[Callable[[str, str], None]]:
    """Gives a device of the node a taint with an effect."""
    made: list[Json] = []

    def tainting(device: str, effect: str) -> None:
        selector = {"driver": "gpu.gpuagent.io", "pool": NODE_NAME, "device": device}
        spec = {"deviceSelector": selector, "taint": {"key": "example.com/repair", "effect": effect}}
        made.append(of("DeviceTaintRule", f"repair-{len(made)}", spec))
        cluster.apply(made[-1])

    yield tainting
    for rule in made:
        cluster.api("DELETE", cluster.client.path_of(rule))


def names(node: Node) -> dict[str, str]:
    """UUID to the device's name, in the order in which the scheduler takes them."""
    devices = node.cluster.client.expect("GET", f"{SLICES}/{SLICE}")["spec"]["devices"]
    return {device["attributes"]["uuid"]["string"]: device["name"] for device in devices}


def test_a_tainted_gpu_is_given_to_no_claim(node: Node, taint: Callable[[str, str], None]) -> None:
    (first, *_) = names(node).items()
    taint(first[1], "NoSchedule")
    node.cluster.restart_scheduler()
    node.run(claiming("share", "share-8g"))
    assert node.gpus_of("share") != [first[0]]


def test_a_taint_evicts_the_pods_of_a_gpu(node: Node, taint: Callable[[str, str], None]) -> None:
    node.run(claiming("share", "share-8g"))
    (uuid,) = node.gpus_of("share")
    taint(names(node)[uuid], "NoExecute")
    node.cluster.wait_pod_gone("share")
    node.pods.remove("share")
    node.cluster.restart_scheduler()
    node.run(claiming("again", "share-8g"))
    assert node.gpus_of("again") != [uuid]
