"""Pods that kubelet may have to try again: those without a sandbox."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.unprepared import unprepared
from gpuagent.domain.sharing.mode import Mode
from tests.unit.domain.builders import NodeUnderTest, box, pod_json


def node(mode=Mode.DRA):
    one = NodeUnderTest(mode, box(2), isolates=frozenset())
    return one.send(ev.DraRegistered(None, 0.0))


def pod(name="p", *conditions, **status):
    found = pod_json(name)
    found["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "mine"}]
    found["status"] |= {"conditions": [*conditions], **status}
    return found


def sandbox(status):
    return {"type": "PodReadyToStartContainers", "status": status}


def waiting(one):
    return [(found.name.name, found.claims) for found in unprepared(one.state)]


@pytest.mark.parametrize("conditions", [(), (sandbox("False"),)])
def test_a_pod_without_a_sandbox_waits(conditions):
    assert waiting(node().pods(pod("p", *conditions))) == [("p", {"mine"})]


def test_a_pod_whose_containers_a_reboot_ended_waits():
    """The ids of its containers are still there, and the agent has prepared its claim in the former run."""
    ended = [{"name": "main", "containerID": "containerd://" + "0" * 64, "state": {"terminated": {}}}]
    assert waiting(node().pods(pod("p", sandbox("False"), containerStatuses=ended)))


def test_a_pod_that_pulls_its_image_does_not_wait():
    assert not waiting(node().pods(pod("p", {"type": "Ready", "status": "False"}, sandbox("True"))))


def test_a_pod_without_claims_or_that_ends_does_not_wait():
    ending = pod("q")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not waiting(node().pods(pod_json("p"), ending, pod("r", phase="Succeeded")))


def test_no_pod_waits_for_a_driver_that_is_not_registered_or_not_in_use():
    assert not waiting(node().send(ev.DraRegistered("no", 1.0)).pods(pod()))
    assert not waiting(node(Mode.SHARE).pods(pod()))


def test_the_newer_of_two_agents_has_pods_tried_again():
    one = node().pods(pod())
    assert not waiting(one.send(ev.DraSuperseded(by_newer=True, at=1.0)))
    assert waiting(one.send(ev.DraSuperseded(by_newer=False, at=2.0)))
