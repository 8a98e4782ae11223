"""From the old gpushare-device-plugin to the chart, with its pods running."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuagent.kubelet.pod_resources import PodResources
from tests.e2e.agent.allocation_audit import holdings
from tests.e2e.agent.conftest import MODE, PLACEMENT, Node, kubelet_has
from tests.e2e.chart.oldplugin import RESOURCE, OldPlugin
from tests.e2e.chart.release import Release
from tests.e2e.cluster import WAIT_S, Cluster, pod_manifest

BOX = "pcie-4x-a10"
UNITS = 22  # of one GPU
OLD = {"old-1": (8, 2), "old-2": (8, 2), "old-3": (4, 0)}
"""Pods of the old plugin: units and GPU."""


@pytest.fixture
def old(cluster: Cluster) -> Iterator[OldPlugin]:
    """The old plugin with its pods, as its scheduler extender placed them: GPU 2 and GPU 0, of four."""
    cluster.label_node({MODE: None, PLACEMENT: None, "gpushare": "true"})
    with OldPlugin(BOX) as plugin:
        # The node may still show as much of the agent before.
        end = time.monotonic() + WAIT_S
        while kubelet_has() != {RESOURCE: 4 * UNITS}:
            assert time.monotonic() < end, kubelet_has()
            time.sleep(0.05)
        cluster.wait_node(lambda node: node["status"]["allocatable"].get(RESOURCE) == str(4 * UNITS))
        for name, (units, gpu) in OLD.items():
            assert plugin.run(cluster, name, units, gpu)["status"]["phase"] == "Running"
        yield plugin
    for name in OLD:
        cluster.delete_pod(name, grace=1)
    cluster.label_node({"gpushare": None})


@pytest.fixture
def node(cluster: Cluster, pod_resources: PodResources, release: Callable[..., Release]) -> Iterator[Node]:
    """Nothing is installed yet."""
    one: Any = release(box=BOX)
    found = Node(cluster, pod_resources, one)
    yield found
    found.end(*found.pods)


def story(node: Node) -> dict[str, Any]:
    """Processes, starts and kubelet's allocations of the old plugin's pods."""
    held = {h.owner.pod.name: sorted(h.ids) for h in holdings(node.pod_resources)}
    return {
        name: (
            node.cluster.container(name),
            node.cluster.pod(name)["status"]["containerStatuses"][0]["state"],
            node.cluster.exec_env(name)["NVIDIA_VISIBLE_DEVICES"],
            held[name],
        )
        for name in OLD
    }


def index_of(node: Node, pod: str) -> list[int]:
    uuids = {gpu["uuid"]: gpu["index"] for gpu in node.agent.status()["gpus"]}
    return [uuids[uuid] for uuid in node.gpus_of(pod)]


def settled(node: Node) -> None:
    """GPUs 1 and 3 are offered; 0 and 2 wait for the old pods, although the ids in kubelet's allocations name others."""
    node.wait_amounts(mem=2 * UNITS)
    wanted = {f"default/{name}[main]" for name in OLD}

    def waits_for_old_pods(page: dict[str, Any]) -> bool:
        waited = {holding["container"] for holding in page["switch"]["waiting_for"]}
        return page["switch"]["phase"] == "waiting" and waited == wanted

    node.agent.wait(waits_for_old_pods)


def test_running_pods_of_the_old_plugin_keep_their_gpus(node: Node, old: OldPlugin) -> None:
    release: Any = node.agent
    before = story(node)
    ids = {device_id.split("-_-")[0] for _, _, _, held in before.values() for device_id in held}
    annotated = {old.gpus[gpu].uuid for _, gpu in OLD.values()}
    assert ids != annotated, "kubelet has picked the very GPUs of the annotations: the test shows nothing"

    old.stop()
    node.label("share")
    release.install()
    settled(node)
    # The scheduler takes what old pods asked for from what is offered: 44 less 20.
    for number, units in enumerate((UNITS, 2)):
        node.run(pod_manifest(f"new-{number}", {RESOURCE: units}))
        assert index_of(node, f"new-{number}")[0] in (1, 3), "on a GPU that an old pod has"
    assert story(node) == before

    # What may happen to them later: kubelet restarts, the agent restarts, a container of theirs ends and starts again.
    node.cluster.restart_kubelet()
    node.agent.wait_ready()
    node.cluster.delete_pod(release.pod()["metadata"]["name"], grace=1, namespace=release.namespace)
    release.wait_rolled_out()
    node.end("new-0", "new-1")
    settled(node)
    assert story(node) == before
    os.kill(node.cluster.container("old-3").pid, signal.SIGKILL)
    node.cluster.wait_pod("old-3", lambda pod: _restarts(pod) == 1 and "running" in _state(pod))
    assert node.cluster.exec_env("old-3")["NVIDIA_VISIBLE_DEVICES"] == "0"

    node.cluster.delete_pod("old-3", grace=1)
    node.wait_amounts(mem=3 * UNITS)
    node.run(pod_manifest("new-2", {RESOURCE: UNITS}))
    node.cluster.delete_pod("old-1", grace=1)
    node.agent.wait(lambda page: len(page["switch"]["waiting_for"]) == 1)
    node.cluster.delete_pod("old-2", grace=1)
    node.wait_amounts(mem=4 * UNITS)
    node.audit()


def test_the_new_agent_may_come_before_the_old_plugin_goes(node: Node, old: OldPlugin) -> None:
    release: Any = node.agent
    before = story(node)
    node.label("share")
    release.install()
    settled(node)
    assert story(node) == before
    old.stop()
    settled(node)
    node.run(pod_manifest("new", {RESOURCE: UNITS}))
    assert index_of(node, "new")[0] in (1, 3)
    assert story(node) == before


def _state(pod: dict[str, Any]) -> dict[str, Any]:
    return dict(pod["status"]["containerStatuses"][0]["state"])


def _restarts(pod: dict[str, Any]) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])
