"""Which pods that kubelet failed are deleted, and when."""

from typing import Any

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.failed_pod import Failure
from gpuagent.domain.reconcile.failed_pods import FIRST_DELAY_S, MOST_DELAY_S, REFUSED_S, to_delete
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.status.problems import problems
from gpuagent.domain.step import deadline
from tests.unit.domain.builders import CORE, MEM, WHOLE, NodeUnderTest, box, in_force, pod_json

NO_DEVICES = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {}"
SHORT = "Allocate failed due to requested number of devices unavailable for {}. Requested: 1, Available: 0, which is"
UNREGISTERED = "Pod Allocate failed due to can't allocate unregistered device {}, which is unexpected"
UNKNOWN = "Allocate failed due to unknown Device Plugin {}, which is unexpected"
NOT_HEALTHY = (
    "Pod was rejected: Allocate failed due to previously allocated devices are no longer healthy; cannot allocate "
    "unhealthy devices {}, which is unexpected"
)
PREFERRED_DIED = (
    "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: "
    "code = Unavailable desc = error reading from server: EOF, which is unexpected"
)
STOPPED = "Allocate failed due to endpoint &{{0 0} /gpuagent.sock true} has been stopped, which is unexpected"
AGENT_DIED = "Allocate failed due to rpc error: code = Unavailable desc = error reading from server: EOF, which is"
REFUSED = (
    "Allocate failed due to rpc error: code = FailedPrecondition desc = ml/p[main] asks for 9, which is unexpected"
)
NAMES_OURS = (
    f"Allocate failed due to rpc error: code = Unknown desc = rdma/hca conflicts with {MEM}, which is unexpected"
)
NOT_REPLACING = [
    *(("batch/v1", "Job"), ("batch.volcano.sh/v1alpha1", "Job"), ("kubeflow.org/v1", "TFJob")),
    *(("argoproj.io/v1alpha1", "Workflow"), ("tekton.dev/v1", "TaskRun"), ("apps.kruise.io/v1alpha1", "BroadcastJob")),
    *(("v1", "Pod"), ("v1", "ReplicaSet"), ("example.com/v1", "StatefulSet")),
]
REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}


def failed(
    name: str = "p",
    message: str = NO_DEVICES.format(MEM),
    limits: dict[str, int] | None = None,
    owner: dict[str, Any] | None = REPLICA_SET,
    **metadata: str,
) -> dict[str, Any]:
    pod = pod_json(name, limits or {MEM: 1}, phase="Failed")
    pod["metadata"] |= {"resourceVersion": "7", **metadata, **({"ownerReferences": [owner]} if owner else {})}
    pod["status"] |= {"reason": "UnexpectedAdmissionError", "message": message}
    return pod


def serving(mode: Mode = Mode.SHARE, **policy: Any) -> NodeUnderTest:
    node = in_force(mode, **{"clean_failed_pods": True, **policy})
    for resource in node.state.policy.resources.names:
        node.send(ev.RegistrationChanged(resource, None, node.now, connected=True))
    return node


def doomed(node: NodeUnderTest) -> list[str]:
    return [pod.name.name for pod in to_delete(node.state)]


@pytest.mark.parametrize(
    "words",
    [
        *(NO_DEVICES.format(MEM), SHORT.format(MEM), UNREGISTERED.format(MEM), AGENT_DIED, UNKNOWN.format(MEM)),
        *(NOT_HEALTHY.format(MEM), PREFERRED_DIED, STOPPED),
    ],
)
def test_a_pod_that_found_no_plugin_is_deleted_at_once_when_the_node_serves(words: str) -> None:
    node = serving().pods(failed("a", words), failed("b", words))
    assert doomed(node) == ["a", "b"]
    (first, _) = to_delete(node.state)
    assert (first.uid, first.version, first.failure, first.words) == ("uid-a", "7", Failure.NO_DEVICES, words)


def test_it_is_a_setting() -> None:
    node = serving(clean_failed_pods=False).pods(failed())
    assert doomed(node) == []
    assert deadline(node.state) is None


@pytest.mark.parametrize(
    "pod",
    [
        failed(owner=None),
        failed(owner={**REPLICA_SET, "controller": False}),
        failed(owner={**REPLICA_SET, "apiVersion": "v1", "kind": "Node"}),
        *(failed(owner={**REPLICA_SET, "apiVersion": api, "kind": kind}) for api, kind in NOT_REPLACING),
        failed(message="Allocate failed due to not enough cpus available to satisfy request, which is unexpected"),
        failed(message=NO_DEVICES.format("rdma/hca"), limits={MEM: 1, "rdma/hca": 1}),
        failed(message=REFUSED, limits={MEM: 1, "rdma/hca": 1}),
        failed(message=AGENT_DIED, limits={MEM: 1, "rdma/hca": 1}),
        failed(message=NAMES_OURS, limits={MEM: 1, "rdma/hca": 1}),
        failed(message="Allocate failed due to rpc error: code = Unknown desc = not this agent's code, which is"),
        failed(message=f"Allocate failed due to {MEM} is not what this resource manager has, which is unexpected"),
        failed(message=f'Allocate failed due to pod "p" changed request for resource "{MEM}" from 1 to 2, which is'),
        failed(message=NO_DEVICES.format("rdma/hca") + f"; also {MEM}", limits={MEM: 1, "rdma/hca": 1}),
        failed(message=NO_DEVICES.format(MEM), limits={WHOLE: 1}),
        failed(message=NO_DEVICES.format(MEM + "ory"), limits={MEM: 1}),
        failed(limits={"cpu": 1}),
        failed(deletionTimestamp="2026-01-01T00:00:00Z"),
        pod_json("runs", {MEM: 1}, phase="Running"),
        {**failed(), "status": {"phase": "Failed", "reason": "Evicted", "message": NO_DEVICES.format(MEM)}},
        {**failed(), "status": {"phase": "Running", "reason": "UnexpectedAdmissionError", "message": MEM}},
    ],
    ids=[
        *("bare", "owner that is no controller", "static", *("/".join(owner) for owner in NOT_REPLACING)),
        *(
            "CPU Manager",
            "another plugin's resource",
            "perhaps another plugin's words",
            "perhaps its end",
            "words that name ours",
        ),
        *("a code of others", "a sentence of others", "a changed request", "another's sentence that goes on"),
        *("a resource it did not ask for", "a longer name", "nothing of ours"),
        *("going already", "running", "evicted", "not failed"),
    ],
)
def test_others_are_left_alone(pod: dict[str, Any]) -> None:
    node = serving().pods(pod)
    assert doomed(node) == []
    assert doomed(node.wait(REFUSED_S + MOST_DELAY_S)) == []


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        *(("apps/v1", kind) for kind in ("ReplicaSet", "StatefulSet", "DaemonSet")),
        *(("apps.kruise.io/v1beta1", kind) for kind in ("CloneSet", "StatefulSet", "DaemonSet")),
        ("v1", "ReplicationController"),
    ],
)
def test_pods_of_controllers_that_replace_them_are_deleted(api: str, kind: str) -> None:
    owner = {**REPLICA_SET, "apiVersion": api, "kind": kind}
    assert doomed(serving().pods(failed(owner=owner))) == ["p"]


def test_an_init_container_may_be_the_one_that_asked() -> None:
    pod = failed(limits={"cpu": 1})
    pod["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {MEM: "2"}}}]
    assert doomed(serving().pods(pod)) == ["p"]


def test_nothing_is_deleted_before_the_node_serves() -> None:
    node = NodeUnderTest(Mode.SHARE, clean_failed_pods=True).pods(failed())
    assert doomed(node) == []
    for resource in node.state.policy.resources.names:
        node.send(ev.RegistrationChanged(resource, None, node.now, connected=True))
    assert doomed(node) == []
    node.inventory(*box())
    assert doomed(node) == []
    node.holdings()
    assert doomed(node) == ["p"]


def test_nothing_is_deleted_while_kubelet_does_not_follow_the_list() -> None:
    node = serving().send(ev.RegistrationChanged(MEM, None, 0.0, connected=False)).pods(failed())
    assert doomed(node) == []
    node.send(ev.RegistrationChanged(MEM, None, node.now, connected=True))
    assert doomed(node) == ["p"]


def test_a_pod_that_asked_for_what_another_mode_sells_goes_elsewhere() -> None:
    node = serving(Mode.TOPOLOGY).pods(failed(message=NO_DEVICES.format(MEM)))
    assert doomed(node) == ["p"]


def test_a_pair_needs_both_resources() -> None:
    node = serving(Mode.CORE_MEM).send(ev.RegistrationChanged(CORE, None, 0.0, connected=False))
    node.pods(failed(limits={MEM: 1, CORE: 5}))
    assert doomed(node) == []


def test_nothing_is_deleted_on_old_knowledge_of_the_pods() -> None:
    node = serving().pods(failed())
    node.send(ev.ApiUnavailable("away", node.now, "pods"))
    assert doomed(node) == []


def test_a_pod_that_fails_again_waits_ever_longer() -> None:
    node = serving().pods(failed("p0"))
    assert doomed(node) == ["p0"]
    gaps = []
    for n in range(1, 9):
        node.pods(failed(f"p{n}"))
        assert doomed(node) == []
        due = deadline(node.state)
        assert due is not None
        gaps.append(due - node.now)
        node.wait(due - node.now - 0.1)
        assert doomed(node) == []
        node.wait(0.2)
        assert doomed(node) == [f"p{n}"]
        node.pods()
    assert [round(gap) for gap in gaps] == [10, 20, 40, 80, 160, 300, 300, 300]
    assert FIRST_DELAY_S < MOST_DELAY_S
    node.wait(3600).pods(failed("later"))
    assert doomed(node) == ["later"]


def test_each_controller_has_its_own_rounds() -> None:
    node = serving().pods(failed("a"))
    other = {**REPLICA_SET, "uid": "rs-2", "name": "other"}
    node.pods(failed("a2"), failed("b", owner=other))
    assert doomed(node) == ["b"]


def test_forged_owners_in_another_namespace_do_not_delay_a_controller() -> None:
    node = serving().pods(failed("forged", namespace="attackers"))
    node.pods(failed("forged-2", namespace="attackers"), failed("victim"))
    assert doomed(node) == ["victim"]


def test_a_pod_stays_due_until_it_is_gone_and_at_its_newest_version() -> None:
    node = serving().pods(failed())
    node.wait(1).pods(failed(resourceVersion="8"))
    assert [pod.version for pod in to_delete(node.state)] == ["8"]


def test_a_refused_pod_stands_for_a_while_so_that_it_can_be_read() -> None:
    node = serving().pods(failed(message=REFUSED))
    assert doomed(node) == []
    assert deadline(node.state) == node.now + REFUSED_S
    node.wait(REFUSED_S)
    assert [(pod.name.name, pod.failure) for pod in to_delete(node.state)] == [("p", Failure.REFUSED)]


def test_each_refused_pod_stands_for_that_long_whatever_others_do() -> None:
    first, second = failed("a", message=REFUSED), failed("b", message=REFUSED)
    node = serving().pods(first)
    node.wait(REFUSED_S - 1).pods(first, second, failed("c"))
    assert doomed(node) == ["c"]
    node.wait(1)
    assert doomed(node) == ["c"], "its controller's next round is ten seconds after its last"
    assert deadline(node.state) == node.now + FIRST_DELAY_S - 1
    node.wait(FIRST_DELAY_S - 1)
    assert doomed(node) == ["a", "c"]
    assert deadline(node.state) == node.now + REFUSED_S - FIRST_DELAY_S
    node.wait(REFUSED_S - FIRST_DELAY_S)
    assert doomed(node) == ["a", "b", "c"]
    assert deadline(node.state) is None


def test_what_a_refused_pod_had_is_in_its_own_event() -> None:
    node = serving().pods(failed(message=REFUSED)).wait(REFUSED_S)
    (pod,) = to_delete(node.state)
    node.announcements.clear()
    node.send(ev.FailedPodDeleted(pod, node.now))
    assert "GPURefused" in node.announcements[0].message
    assert REFUSED not in node.announcements[0].message


def test_a_deletion_is_reported_and_counted() -> None:
    node = serving().pods(failed())
    node.announcements.clear()
    (pod,) = to_delete(node.state)
    node.send(ev.FailedPodDeleted(pod, node.now))
    (announcements,) = node.announcements
    assert (announcements.reason, announcements.pods, announcements.owner) == (
        "FailedPodDeleted",
        (pod.name,),
        pod.controller,
    )
    assert NO_DEVICES.format(MEM) in announcements.message
    assert node.state.cleanup.deleted == {Failure.NO_DEVICES: 1}


def test_a_deletion_that_is_refused_is_a_problem() -> None:
    node = serving().send(ev.DeletionsSeen("no right", 0.0))
    assert [(p.reason, p.message, p.blocking) for p in problems(node.state)] == [
        ("FailedPodsNotDeleted", "no right", False)
    ]
    node.send(ev.DeletionsSeen(None, 0.0))
    assert problems(node.state) == []
