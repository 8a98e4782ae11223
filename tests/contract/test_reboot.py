"""After a reboot kubelet fails pods before the agent is there: those of controllers come back; the start-up taint goes."""

from collections.abc import Callable
from typing import Any

import pytest

from gpuagent.domain.sharing.mode import MODE_LABEL
from tests.contract.harness import MEM, VERSIONS, WHOLE, Node, box, pod, wait_for

MakeNode = Callable[..., Node]
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}
KEY = "example.com/gpu-starting"


def reboot(one: Node) -> None:
    """Kubelet has known the resources, and starts without the agent."""
    before = one.run()
    one.offers(mem=48)
    one.stop(before)
    one.kubelet.restart()


def fail(one: Node, name: str, limits: dict[str, int], owner: dict[str, Any] | None = OWNER) -> str:
    """Bind a pod that kubelet fails at admission, with kubelet's own words; returns those."""
    asked = one.bind(pod(name, limits))
    if owner:
        one.server.patch_pod(name, {"metadata": {"ownerReferences": [owner]}})
    admission = one.kubelet.admit(asked)
    assert not admission
    status = {"phase": "Failed", "reason": admission.reason, "message": admission.failed}
    one.server.patch_pod(name, {"status": status}, subresource="status")
    return admission.failed


def there(one: Node) -> set[str]:
    return {found["metadata"]["name"] for found in one.server.pods()}


@pytest.mark.parametrize("version", VERSIONS)
def test_pods_that_kubelet_failed_before_the_agent_was_there_come_back(node: MakeNode, version: str) -> None:
    """Kubelet restarts without the plugin and fails its pods; the agent starts: a controller's pod is deleted, with an
    Event on the controller and a count; a bare pod stays."""
    one = node(version, box(2, 24), labels={MODE_LABEL: "share"})
    reboot(one)
    words = fail(one, "web-1", {MEM: 6})
    fail(one, "bare", {MEM: 6}, owner=None)
    agent = one.run(clean_failed_pods=True)
    assert one.server.wait(lambda: there(one) == {"bare"}), one.server.pods()
    event = one.event("FailedPodDeleted", words)
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["apiVersion"]) == ("ReplicaSet", "web", "apps/v1")
    one.offers(mem=48)
    assert one.kubelet.admit(one.bind(pod("web-2", {MEM: 1})))  # one: 1.18 spreads more
    wait_for(lambda: b'gpuagent_pods_cleaned_total{reason="no_devices"} 1.0' in agent.metrics.page())
    assert one.server.requests["delete pods"] == 1


def test_they_stay_where_the_setting_is_off(node: MakeNode) -> None:
    """Without --clean-failed-pods nothing is deleted, and no right to do so is needed."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    reboot(one)
    fail(one, "web-1", {WHOLE: 1})
    agent = one.run()
    one.offers(mem=48)
    one.connected(agent)
    wait_for(lambda: agent.state.pods.watched)
    assert one.server.requests["delete pods"] == 0


def test_a_missing_right_to_delete_is_reported(node: MakeNode) -> None:
    """403: a problem with the right that is missing; when it is given, the pod goes and the problem ends."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    reboot(one)
    fail(one, "web-1", {MEM: 6})
    one.server.deny("delete", "pods")
    agent = one.run(clean_failed_pods=True)
    assert one.event("FailedPodsNotDeleted", 'verb "delete" on resource "pods"')
    one.server.allow("delete", "pods")
    assert one.server.wait(lambda: there(one) == set())
    wait_for(lambda: agent.state.cleanup.problem is None)


def test_the_startup_taint_goes_when_the_node_shows_its_amounts(node: MakeNode) -> None:
    """The taint stays while the Node shows less than kubelet has, and goes then; a taint of others stays."""
    other = {"key": "example.com/other", "effect": "NoSchedule"}
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    path = ("nodes", "", one.server.node_name)
    taints = [{"key": KEY, "effect": "NoSchedule"}, other, {"key": KEY, "effect": "NoExecute", "value": "v"}]
    one.server.objects.patch(path, "", {"spec": {"taints": taints}}, strategic=False)
    agent = one.run(startup_taint=KEY)
    one.offers(mem=48)
    one.connected(agent)
    one.server.patch_node_status({"allocatable": {MEM: "47"}, "capacity": {MEM: "48"}})
    one.caught_up(agent)
    assert one.server.node()["spec"]["taints"] == taints
    one.server.patch_node_status({"allocatable": {MEM: "48"}})
    assert one.server.wait(lambda: one.server.node()["spec"]["taints"] == [other]), one.server.node()["spec"]
    assert one.event("StartupTaintRemoved", KEY)
