"""A feature gate is turned off while pods have claims, as when a control plane goes back to its former version."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import SLICE, SLICES, claiming, of, wait_files, wait_published
from tests.e2e.agent.dra.test_claims_gates import SET_SLICE, WHOLE
from tests.e2e.cluster import Cluster

Json = dict[str, Any]


@pytest.fixture
def templates(cluster: Cluster, classes: None) -> Iterator[None]:
    """Of a pair of linked GPUs, and of all other GPUs."""
    pair = {
        "deviceClassName": "gpu-set.gpuagent.io",
        "selectors": [{"cel": {"expression": 'device.attributes["gpu.gpuagent.io"].gpus == 2'}}],
    }
    exactly = {"pair": pair, "others": {"deviceClassName": WHOLE, "count": 6}}
    made = []
    for name, request in exactly.items():
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
        made.append(of("ResourceClaimTemplate", name, {"spec": spec}, "default"))
        cluster.apply(made[-1])
    yield
    for template in made:
        cluster.api("DELETE", cluster.client.path_of(template))


@pytest.fixture
def node(make_node: Callable[..., Node], templates: None, no_claims: None) -> Node:
    made = make_node(mode="dra", flags=("--gpu-sets",), fresh=True)
    wait_published(made)
    return made


def names(found: Json | None) -> set[str]:
    return {device["name"] for device in found["spec"]["devices"]} if found else set()


def test_a_set_in_use_and_the_other_gpus_exclude_each_other_without_counters(node: Node, cluster: Cluster) -> None:
    """kube-scheduler takes no device with counters then, and without them it does not see that a set has a GPU."""
    node.run(claiming("pair", "pair"))
    pair = node.gpus_of("pair")
    with cluster.control_plane_flags("--feature-gates=DRAPartitionableDevices=false"):
        # The agent looks every 10 minutes, and at its start.
        node.restart_agent(node.agent.kill)
        slices = cluster.client
        slices.wait(SLICES, SET_SLICE, lambda found: found is None)
        slices.wait(SLICES, SLICE, lambda found: len(names(found)) == 6 and "consumesCounters" not in str(found))
        cluster.restart_scheduler()
        node.run(claiming("others", "others"))
        assert not set(pair) & set(node.gpus_of("others"))
        node.end("pair")
        wait_files(node, 1)
        slices.wait(SLICES, SLICE, lambda found: len(names(found)) == 8)
    node.restart_agent(node.agent.kill)
    slices.wait(SLICES, SET_SLICE, bool)
    cluster.restart_scheduler()
    node.run(claiming("pair", "pair"))
    assert not set(node.gpus_of("pair")) & set(node.gpus_of("others"))
