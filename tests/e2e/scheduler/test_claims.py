"""Pods with claims: kube-scheduler allots the devices, and gpuscheduler says which node it should take."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from tests.e2e.cluster import WAIT_S
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import EVENTS, ControlPlane
from tests.e2e.scheduler.dra_objects import (
    SLICES,
    WHOLE,
    claim,
    claiming_pod,
    classes,
    create_claims,
    node_slice,
    remove,
)
from tests.e2e.scheduler.nodes import node
from tests.e2e.scheduler.replica import Replica

NODES = [f"dra-{number}" for number in range(5)]


@pytest.fixture
def dra_nodes(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Five nodes of eight GPUs in mode `dra`."""
    client = control_plane.client
    for device_class in classes():
        client.apply(device_class)
    control_plane.add_nodes([node(name, [], {}) for name in NODES])
    client.create_all(SLICES, map(node_slice, NODES))
    yield control_plane
    control_plane.clear_pods()
    remove(client)


@pytest.fixture(params=["prioritize-claims", "prioritize"])
def replica(request: pytest.FixtureRequest, dra_nodes: ControlPlane, make_replica: Callable[..., Replica]) -> Replica:
    """It is ready before it has read slices and claims. Until then it scores no node."""
    replica = make_replica("a", scores=request.param)
    watches = [
        f'gpuscheduler_watch_up{{resource="{resource}.resource.k8s.io"}}'
        for resource in ("resourceslices", "resourceclaims")
    ]
    replica.extender.wait_for(lambda: all(replica.metric(watch) == 1 for watch in watches))
    return replica


def test_shares_fill_one_node_and_eight_whole_gpus_still_fit_another(dra_nodes: ControlPlane, replica: Replica) -> None:
    """32 shares of 20 GiB are all of eight GPUs. By itself, kube-scheduler prefers nodes with fewer pods."""
    names = [f"share-{number}" for number in range(32)]
    create_claims(dra_nodes.client, [claim(name, memory="20Gi") for name in names])
    dra_nodes.add_pods(map(claiming_pod, names))
    used = Counter(_nodes_of(dra_nodes, names))
    assert [*used.values()] == [32], used

    create_claims(dra_nodes.client, [claim("eight", WHOLE, count=8)])
    dra_nodes.add_pods([claiming_pod("eight")])
    (large,) = _nodes_of(dra_nodes, ["eight"])
    assert large not in used


def test_pods_with_claims_start_while_gpuscheduler_is_away(dra_nodes: ControlPlane, replica: Replica) -> None:
    replica.extender.kill()
    create_claims(dra_nodes.client, [claim("alone", memory="20Gi")])
    dra_nodes.add_pods([claiming_pod("alone")])
    assert _nodes_of(dra_nodes, ["alone"])


def test_people_learn_that_a_job_with_claims_may_start_in_part(dra_nodes: ControlPlane, replica: Replica) -> None:
    """Six pods want a node each, and there are five."""
    names = [f"member-{number}" for number in range(6)]
    create_claims(dra_nodes.client, [claim(name, WHOLE, count=8) for name in names])
    labels = {JOB_LABEL: "train", REPLICAS_LABEL: "6"}
    dra_nodes.add_pods(claiming_pod(name, labels) for name in names)
    pods = dra_nodes.pods.wait(lambda pods: len(_used(pods.values())) == len(NODES))
    assert {*_used(pods.values())} == {*NODES}
    assert "Pods of job train have ResourceClaims for GPUs" in _message(dra_nodes, "JobNotWhole")


def test_a_pod_of_another_scheduler_is_told_why_it_waits(dra_nodes: ControlPlane, replica: Replica) -> None:
    """The stock scheduler would only say that it cannot allocate all claims."""
    create_claims(dra_nodes.client, [claim("large", memory="100Gi")])
    pod = claiming_pod("large")
    pod["spec"]["schedulerName"] = "another"
    dra_nodes.add_pods([pod])
    message = _message(dra_nodes, "WaitingForGPUs")
    assert message.startswith("wants 100Gi on one GPU: the largest GPU has 80Gi"), message


def _message(control_plane: ControlPlane, reason: str) -> str:
    """Of the only Event with this reason; waits for it."""
    end = time.monotonic() + WAIT_S
    while not (events := control_plane.client.expect("GET", f"{EVENTS}?fieldSelector=reason={reason}")["items"]):
        assert time.monotonic() < end
        time.sleep(0.1)
    (event,) = events
    return str(event["message"])


def _used(pods: Iterable[Json]) -> list[str]:
    """The nodes of those pods that have one."""
    return [pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]]


def _nodes_of(control_plane: ControlPlane, names: Iterable[str]) -> list[str]:
    """The nodes of these pods, once all have one."""
    names = list(names)
    pods = control_plane.pods.wait(
        lambda pods: all(name in pods and pods[name]["spec"].get("nodeName") for name in names)
    )
    return [pods[name]["spec"]["nodeName"] for name in names]
