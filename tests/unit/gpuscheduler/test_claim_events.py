"""Events about pods with claims: on a running scheduler, with the objects that the API server has."""

import pytest

from gpuscheduler.cluster_api import claim_events
from gpuscheduler.core.explain.claim_reason import claim_reason
from standin.api.server import node_body
from standin.waiting import PATIENCE_S
from tests.unit.gpuscheduler.core.explain.cluster_objects import claim, classes, gpu, held, pod, request, slice_of


@pytest.fixture
def dra_cluster(cluster, monkeypatch):
    """A node of one GPU in mode `dra`, of which a claim of another namespace has 60Gi."""
    monkeypatch.setattr(claim_events, "LOOK_S", 0.05)
    monkeypatch.setattr(claim_events, "PAUSE_S", 0.05)
    monkeypatch.setattr(claim_events, "FAILED_S", 0.05)
    cluster.api.installed |= {"resourceslices", "resourceclaims"}
    create(cluster, "nodes", node_body("node-1", {"ack.node.gpu.schedule": "dra"}, ""))
    create(cluster, "resourceslices", slice_of("node-1", gpu(0)))
    for found in classes():
        create(cluster, "deviceclasses", found)
    create(cluster, "resourceclaims", held("other", "node-1", "gpu-0", memory="60Gi", namespace="b"), "b")
    return cluster


def create(cluster, resource, found, namespace=""):
    created = cluster.api.objects.create(resource, namespace, found)
    if "status" in found:
        key = resource, namespace, created["metadata"]["name"]
        cluster.api.objects.patch(key, "status", {"status": found["status"]}, strategic=False)


def messages(cluster):
    events = [event for event in cluster.api.events() if event["reason"] == "WaitingForGPUs"]
    return {event["involvedObject"]["name"]: event["message"] for event in events}


def test_a_pod_that_waits_is_told_why(dra_cluster):
    create(dra_cluster, "resourceclaims", claim("mine", request(memory="30Gi")), "default")
    create(dra_cluster, "resourceclaims", claim("small", request(memory="8Gi")), "default")
    create(dra_cluster, "pods", pod("mine", name="large"), "default")
    create(dra_cluster, "pods", pod("small", name="small"), "default")
    create(dra_cluster, "pods", pod("nothing", name="without"), "default")
    dra_cluster.start()
    expected = {"large": "wants 30Gi on one GPU: most free is 20Gi, on node-1 GPU 0"}
    assert dra_cluster.api.wait(lambda: messages(dra_cluster), PATIENCE_S)
    assert messages(dra_cluster) == expected


def test_pods_of_the_stock_scheduler_are_told_too(dra_cluster):
    """Nobody else tells them more than `cannot allocate all claims`. Those of a placeholder wait for no GPU."""
    create(dra_cluster, "resourceclaims", claim("mine", request(memory="30Gi")), "default")
    for scheduler in ("default-scheduler", "gpuagent.io-placeholder", "gpu-scheduler"):
        create(dra_cluster, "pods", pod("mine", name=scheduler, schedulerName=scheduler), "default")
    dra_cluster.start(scheduler_name=("gpu-scheduler",))
    assert dra_cluster.api.wait(lambda: len(messages(dra_cluster)) > 1, PATIENCE_S)
    assert messages(dra_cluster).keys() == {"default-scheduler", "gpu-scheduler"}


def test_pods_of_other_schedulers_cost_no_read_while_no_node_has_devices(dra_cluster):
    dra_cluster.api.objects.delete(("resourceslices", "", slice_of("node-1", gpu(0))["metadata"]["name"]))
    create(dra_cluster, "resourceclaims", claim("mine", request(memory="30Gi")), "default")
    create(dra_cluster, "pods", pod("mine", name="stock", schedulerName="default-scheduler"), "default")
    create(dra_cluster, "pods", pod("mine", name="ours", schedulerName="gpu-scheduler"), "default")
    dra_cluster.start(scheduler_name=("gpu-scheduler",))
    assert dra_cluster.api.wait(lambda: messages(dra_cluster), PATIENCE_S)
    assert messages(dra_cluster).keys() == {"ours"}


def test_a_pod_whose_explanation_fails_keeps_no_other_from_its_event(dra_cluster, monkeypatch, caplog):
    def explained(waiting, cluster):
        if waiting.name.name.startswith("hostile"):
            raise IndexError(waiting.name.name)
        return claim_reason(waiting, cluster)

    monkeypatch.setattr(claim_events, "claim_reason", explained)
    monkeypatch.setattr(claim_events, "FAILED_S", 1000)
    create(dra_cluster, "resourceclaims", claim("mine", request(memory="30Gi")), "default")
    for name in ("hostile-1", "hostile-2", "large"):
        create(dra_cluster, "pods", pod("mine", name=name), "default")
    dra_cluster.start()
    assert dra_cluster.api.wait(lambda: messages(dra_cluster), PATIENCE_S)
    assert messages(dra_cluster).keys() == {"large"}
    failures = [record for record in caplog.records if record.message == "Explaining claims failed"]
    assert failures
    assert failures[0].pod == "default/hostile-1"
    assert len(failures) <= 2  # One for each batch: pods that are seen apart are explained apart.


def test_selectors_beyond_the_most_that_are_kept_bring_no_event(dra_cluster, monkeypatch):
    monkeypatch.setattr(claim_events, "MOST_SELECTORS", 1000)
    large = request(memory="30Gi", cel=f"true || '{'x' * 2000}' == ''")
    create(dra_cluster, "resourceclaims", claim("a-small", request(memory="30Gi")), "default")
    create(dra_cluster, "resourceclaims", claim("b-large", large), "default")
    create(dra_cluster, "pods", pod("b-large", name="large"), "default")
    create(dra_cluster, "pods", pod("a-small", name="small"), "default")
    # Another namespace loses nothing by it.
    create(dra_cluster, "resourceclaims", claim("z", request(memory="30Gi"), namespace="z"), "z")
    other = pod("z", name="other")
    other["metadata"]["namespace"] = "z"
    create(dra_cluster, "pods", other, "z")
    dra_cluster.start()
    assert dra_cluster.api.wait(lambda: len(messages(dra_cluster)) > 1, PATIENCE_S)
    assert messages(dra_cluster).keys() == {"small", "other"}


@pytest.mark.parametrize("resource", ["resourceslices", "resourceclaims", "deviceclasses"])
def test_a_missing_right_is_logged_once_and_given_later(dra_cluster, caplog, resource):
    dra_cluster.api.deny("list", resource)
    create(dra_cluster, "resourceclaims", claim("mine", request(memory="30Gi")), "default")
    create(dra_cluster, "pods", pod("mine"), "default")
    scheduler = dra_cluster.start()

    def refusals():
        return [record for record in caplog.records if record.message.startswith("Failed to read why pods")]

    assert dra_cluster.api.wait(lambda: refusals() and dra_cluster.api.requests[f"list {resource}"] > 2, PATIENCE_S)
    assert len(refusals()) == 1
    assert scheduler.get("/healthz")[0] == 200
    dra_cluster.api.allow("list", resource)
    assert dra_cluster.api.wait(lambda: messages(dra_cluster), PATIENCE_S)


def test_nothing_is_read_while_no_pod_with_claims_waits(dra_cluster):
    create(dra_cluster, "pods", pod("mine", nodeName="node-1"), "default")
    dra_cluster.pod("limits")
    scheduler = dra_cluster.start()
    assert scheduler.get("/healthz")[0] == 200
    assert not any("deviceclasses" in call for call in dra_cluster.api.requests)
