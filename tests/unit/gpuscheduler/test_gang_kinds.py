"""Kinds that say which pods belong together: the API server may not have them, get them later, or forbid them."""

import pytest

from gpuscheduler import app
from gpuscheduler.cluster_api import optional_kind
from tests.unit.gpuscheduler.core.gangs.workloads import pod_group
from tests.unit.gpuscheduler.running_scheduler import until

LABELS = {"scheduling.x-k8s.io/pod-group": "pg"}
UP = 'gpuscheduler_watch_up{resource="podgroups.scheduling.x-k8s.io"}'
ERRORS = 'gpuscheduler_watch_errors_total{resource="podgroups.scheduling.x-k8s.io"}'


@pytest.fixture(autouse=True)
def short_looks(monkeypatch):
    monkeypatch.setattr(optional_kind, "WANTED_S", 0.02)
    monkeypatch.setattr(optional_kind, "LOOK_S", 0.1)


def pods(cluster, *names):
    cluster.whole_node("n1")
    gpu = {"aliyun.com/gpu": "1"}
    return [cluster.api.create_pod(name, gpu, node="", labels=LABELS) for name in names]


def why(scheduler, pod):
    return scheduler.filter(pod)["FailedAndUnresolvableNodes"].get("n1", "")


def is_up(scheduler):
    return scheduler.metric(UP) == 1


def placed(scheduler, pod, other):
    """The node of a pod, once kube-scheduler has asked about both pods of the group."""

    def node():
        scheduler.filter(other)
        return (scheduler.filter(pod)["NodeNames"] or [""])[0]

    return until(node)


def test_an_object_that_was_there_before_is_read_before_pods(cluster):
    cluster.api.installed.add("podgroups")
    cluster.api.objects.create("podgroups", "default", pod_group(3))
    pod, other = pods(cluster, "a", "b")
    scheduler = cluster.start()
    assert why(scheduler, pod) == "node(s) not given to PodGroup pg: 2 of 3 pods are there"


def test_a_kind_that_is_installed_later_is_found(cluster):
    pod, other = pods(cluster, "a", "b")
    scheduler = cluster.start()
    assert (
        why(scheduler, pod)
        == "node(s) not given to PodGroup pg: the cluster has no objects podgroups.scheduling.x-k8s.io"
    )
    assert UP not in scheduler.get("/metrics")[1]
    cluster.api.installed.add("podgroups")
    until(lambda: why(scheduler, pod) == "node(s) not given to PodGroup pg: its object has not been seen")
    until(lambda: is_up(scheduler))
    cluster.api.objects.create("podgroups", "default", pod_group(2))
    assert placed(scheduler, pod, other) == "n1"


def test_a_kind_that_is_removed_and_comes_back(cluster):
    cluster.api.installed.add("podgroups")
    cluster.api.objects.create("podgroups", "default", pod_group(2))
    pod, other = pods(cluster, "a", "b")
    scheduler = cluster.start()
    assert placed(scheduler, pod, other) == "n1"
    cluster.api.installed.clear()
    cluster.api.drop_watches()
    until(lambda: "has no objects podgroups" in why(scheduler, pod))
    assert UP not in scheduler.get("/metrics")[1]
    cluster.api.installed.add("podgroups")
    assert placed(scheduler, pod, other) == "n1"


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_missing_right_is_said_and_may_be_given_later(cluster, caplog, verb):
    cluster.api.installed.add("podgroups")
    cluster.api.objects.create("podgroups", "default", pod_group(2))
    cluster.api.deny(verb, "podgroups")
    pod, other = pods(cluster, "a", "b")
    scheduler = cluster.start()
    until(lambda: scheduler.metric(ERRORS) > 1)
    if verb == "list":
        expected = "node(s) not given to PodGroup pg: gpuscheduler may not list and watch podgroups.scheduling.x-k8s.io"
        until(lambda: why(scheduler, pod) == expected)
    assert scheduler.metric(UP) == 0
    warnings = [record for record in caplog.records if "Missing the right" in record.message]
    assert {record.kind for record in warnings} == {"PodGroup"}
    assert len(warnings) == 1
    cluster.api.allow(verb, "podgroups")
    until(lambda: is_up(scheduler))
    assert placed(scheduler, pod, other) == "n1"


def test_a_deleted_object_is_forgotten(cluster):
    cluster.api.installed.add("podgroups")
    cluster.api.objects.create("podgroups", "default", pod_group(3))
    pod, other = pods(cluster, "a", "b")
    scheduler = cluster.start()
    cluster.api.objects.delete(("podgroups", "default", "pg"))
    until(lambda: why(scheduler, pod) == "node(s) not given to PodGroup pg: its object has not been seen")


def test_a_list_that_hangs_holds_up_pods_for_a_while_only(cluster, monkeypatch):
    """Such as where the webhook of a custom resource is away."""
    monkeypatch.setattr(app, "KINDS_S", 0.1)
    cluster.api.installed.add("podgroups")
    cluster.api.objects.create("podgroups", "default", pod_group(2))
    cluster.api.hold_lists("podgroups")
    pod, other = pods(cluster, "a", "b")
    scheduler = cluster.start()
    assert why(scheduler, pod) == "node(s) not given to PodGroup pg: its object has not been seen"
    cluster.api.resume()
    assert placed(scheduler, pod, other) == "n1"


def test_discovery_that_fails_holds_up_nothing(cluster):
    pod, other = pods(cluster, "a", "b")
    cluster.share_node("n2")
    cluster.api.discovery_code = 500
    scheduler = cluster.start()
    assert why(scheduler, pod) == "node(s) not given to PodGroup pg: its object has not been seen"
    assert scheduler.place(cluster.pod()) == "n2"
