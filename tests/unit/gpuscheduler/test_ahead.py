"""While kube-scheduler is busy, the pods in its queue are nominated for their nodes."""

import pytest

from gpuscheduler.core.single_pods.ahead import AheadLimits
from tests.unit.gpuscheduler.running_scheduler import until

NODES = AheadLimits().nodes + 10
LEAD = AheadLimits().least_lead


def nominated(cluster):
    found = {pod["metadata"]["name"]: pod["status"].get("nominatedNodeName") for pod in cluster.api.pods()}
    return {name: node for name, node in found.items() if node}


def test_pods_in_line_are_nominated_and_bound_there(cluster):
    for number in range(NODES):
        cluster.share_node(f"n{number:03}")
    scheduler = cluster.start()
    scheduler.place(cluster.pod("first"))
    for number in range(LEAD + 3):
        cluster.pod(f"p{number}")
    expected = {f"p{number}" for number in range(LEAD, LEAD + 3)}
    until(lambda: nominated(cluster).keys() == expected)
    last = max(expected)
    node = nominated(cluster)[last]
    assert scheduler.filter(cluster.found(last), [node])["NodeNames"] == [node]
    assert scheduler.bind(cluster.found(last), node) == ""
    assert cluster.node_of(last) == node


@pytest.mark.parametrize("code", [404, 409, 422], ids=["gone", "another pod of its name", "bound"])
def test_a_nomination_that_comes_too_late_is_not_a_failure(cluster, caplog, code):
    """An alert counts failures, and its description names missing rights."""
    for number in range(NODES):
        cluster.share_node(f"n{number:03}")
    scheduler = cluster.start()
    scheduler.place(cluster.pod("first"))
    cluster.api.fail("patch", "pods/status", code)
    for number in range(LEAD + 3):
        cluster.pod(f"p{number}")
    until(lambda: len(nominated(cluster)) == 2)
    assert cluster.api.requests["patch pods/status"] == 3
    until(lambda: scheduler.metric('gpuscheduler_writes_total{kind="nominate",result="ok"}') == 2)
    assert scheduler.metric('gpuscheduler_writes_total{kind="nominate",result="refused"}') == 0
    assert "Failed to change a pod" not in caplog.text


def test_a_nomination_is_taken_back_when_kube_scheduler_finds_no_node(cluster):
    for number in range(NODES):
        cluster.share_node(f"n{number:03}")
    scheduler = cluster.start()
    scheduler.place(cluster.pod("first"))
    for number in range(LEAD + 1):
        cluster.pod(f"p{number}")
    last = f"p{LEAD}"
    until(lambda: nominated(cluster).keys() == {last})
    answer = scheduler.filter(cluster.found(last), ["control-plane"])
    assert answer["NodeNames"] == []
    until(lambda: nominated(cluster) == {})
    until(lambda: scheduler.metric("gpuscheduler_reservations") == 0)
