"""Pods that kubelet may have to try again: those without a sandbox, and those that end."""

from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.unprepared import may_be_unprepared, unused_claims, waiting_pods
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.sharing.mode import Mode
from tests.unit.domain.builders import NodeUnderTest, box, pod_json
from tests.unit.domain.dra.prepared_claims import prepared


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
    return [(found.name.name, found.claims) for found in waiting_pods(one.state)]


@pytest.mark.parametrize("conditions", [(), (sandbox("False"),)])
def test_a_pod_without_a_sandbox_waits(conditions):
    assert waiting(node().pods(pod("p", *conditions))) == [("p", {"mine"})]


def test_a_pod_whose_containers_a_reboot_ended_waits():
    """The ids of its containers are still there, and the agent has prepared its claim in the former run."""
    ended = [{"name": "main", "containerID": "containerd://" + "0" * 64, "state": {"terminated": {}}}]
    assert waiting(node().pods(pod("p", sandbox("False"), containerStatuses=ended)))


def test_a_pod_that_pulls_its_image_does_not_wait():
    assert not waiting(node().pods(pod("p", {"type": "Ready", "status": "False"}, sandbox("True"))))


def test_a_pod_without_claims_or_that_has_ended_does_not_wait():
    assert not waiting(node().pods(pod_json("p"), pod("r", phase="Succeeded")))


def test_a_pod_that_needs_no_claim_of_its_template_does_not_wait():
    """`runs a pod without a generated resource claim`: the controller of claims says so in the pod's status."""
    without = pod("p", resourceClaimStatuses=[{"name": "gpu"}])
    without["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "optional"}]
    assert not waiting(node().pods(without))


def test_no_pod_waits_for_a_driver_that_is_not_registered():
    assert not waiting(node().send(ev.DraRegistered("no", 1.0)).pods(pod()))
    assert not waiting(node(Mode.SHARE).send(ev.DraStopped(1.0)).pods(pod()))


def test_a_pod_that_was_bound_before_the_node_left_the_mode_waits():
    """Kubelet would try it each 60 to 90 s only, and its user would learn as late why it waits."""
    assert waiting(node(Mode.SHARE).pods(pod())) == [("p", {"mine"})]


def test_a_pod_that_waits_shows_which_gpus_claims_do_not_get():
    """A fence that is lifted, and a mode that is left, must not have it wait until kubelet tries again by itself."""
    one = node().holdings().pods(pod())
    first, second = box(2)
    (found,) = waiting_pods(one.send(ev.FenceRead(Fence(uuids=frozenset({first.uuid})), 1.0)).state)
    assert found.in_the_way == {first.uuid}
    (found,) = waiting_pods(one.send(ev.FenceRead(Fence(), 2.0)).state)
    assert not found.in_the_way
    (found,) = waiting_pods(node(Mode.SHARE).holdings().pods(pod()).state)
    assert found.in_the_way == {first.uuid, second.uuid}


def test_the_newer_of_two_agents_has_pods_tried_again():
    one = node().pods(pod())
    assert not waiting(one.send(ev.DraSuperseded(by_newer=True, at=1.0)))
    assert waiting(one.send(ev.DraSuperseded(by_newer=False, at=2.0)))


def claimed(name, namespace):
    """A pod with claim `mine`."""
    found = pod(name)
    found["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{name}"}
    return found


def holding(*claims):
    """A registered node with these claims prepared, and kubelet's allocations read."""
    return node().holdings().send(ev.ClaimsPrepared(claims, 0.0))


MINE = prepared("mine", box(2)[0])
THEIRS = replace(prepared("mine", box(2)[1]), namespace="blue", uid="uid-theirs")


def test_a_claim_is_left_over_if_no_pod_of_its_namespace_has_it():
    """A pod in another namespace has a claim of the same name."""
    one = holding(MINE, THEIRS)
    assert [*unused_claims(one.pods(claimed("p", "ml"), claimed("p", "blue")).state)] == []
    assert [*unused_claims(one.pods(claimed("p", "blue")).state)] == [MINE]
    assert [*unused_claims(one.pods(claimed("p", "ml")).state)] == [THEIRS]
    assert [*unused_claims(one.pods().state)] == [MINE, THEIRS]


def test_nothing_is_left_over_before_all_was_read():
    one = holding(MINE).pods()
    assert [*unused_claims(one.state)] == [MINE]
    for event in (
        ev.DraRegistered("no", 1.0),
        ev.DraSuperseded(by_newer=True, at=1.0),
        ev.HoldingsUnavailable("kubelet is away", 1.0),
    ):
        assert not [*unused_claims(holding(MINE).pods().send(event).state)]
    assert not [*unused_claims(holding(MINE).state)], "the pods were not read yet"
    unread = replace(MINE, gpus=())
    assert not [*unused_claims(holding(unread).pods().state)], "its record cannot be read"


def test_pods_of_one_name_in_two_namespaces_both_wait():
    one = node().pods(claimed("p", "ml"), claimed("p", "blue"))
    assert [(found.name.namespace, found.uid) for found in waiting_pods(one.state)] == [
        ("ml", "uid-ml-p"),
        ("blue", "uid-blue-p"),
    ]


def ending(found):
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return found


def test_a_pod_that_ends_may_wait_for_its_claims_to_be_unprepared():
    """Kubelet may have called while the agent was away. It calls also for a claim that it began to prepare."""
    sandboxed = ending(claimed("p", "ml"))
    sandboxed["status"]["conditions"] = [sandbox("True")]
    one = holding(MINE).pods(sandboxed, ending(claimed("q", "blue")), ending(pod_json("without")))
    assert [(found.uid, found.is_ending) for found in waiting_pods(one.state)] == [
        ("uid-ml-p", True),
        ("uid-blue-q", True),
    ]
    assert not [*waiting_pods(one.send(ev.DraRegistered("no", 1.0)).state)]


def test_a_pod_that_waits_shows_which_claims_may_be_in_its_way():
    one = holding(MINE, THEIRS).pods(pod())
    (found,) = waiting_pods(one.state)
    assert found.in_the_way == {MINE.uid, THEIRS.uid}
    (found,) = waiting_pods(one.send(ev.ClaimsPrepared((THEIRS,), 1.0)).state)
    assert found.in_the_way == {THEIRS.uid}


def test_claims_of_pods_that_are_there_may_be_unprepared():
    """Also in another mode, and also if the agent has prepared none of them."""
    assert may_be_unprepared(node(Mode.SHARE).pods(pod()).state)
    assert may_be_unprepared(node(Mode.SHARE).pods(ending(pod())).state)
    assert not may_be_unprepared(node().pods(pod_json("without"), pod("q", phase="Succeeded")).state)
