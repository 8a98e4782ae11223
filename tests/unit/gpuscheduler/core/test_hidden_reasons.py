"""kube-scheduler's own comparison with a node's total hides the reason of gpuscheduler: an Event shows it."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import Report
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.placeholders import PLACEHOLDER_SCHEDULER
from gpuscheduler.core.waiting.hidden_reasons import AGAIN_S, EXPLAINED_A_TICK, KEPT_S
from tests.unit.gpuscheduler.core.api_objects import LeastFree, container, pod_object, shared_node, whole_node
from tests.unit.gpuscheduler.core.test_scheduling import cluster

MEMBER = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}


def told(scheduling, made, now=0.0, short="aliyun.com/gpu-mem"):
    """The messages of the Events after kube-scheduler said that this is short."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": f"0/9 nodes are available: 9 Insufficient {short}.",
    }
    made["status"]["conditions"] = [condition] if short else []
    scheduling.pod_seen(pod_facts(made), now)
    events = [action for action in scheduling.actions() if isinstance(action, Report)]
    assert {event.reason for event in events} <= {"WaitingForGPUs"}
    return [event.message for event in events]


def bound(scheduling, made, node):
    made["spec"]["nodeName"] = node
    scheduling.pod_seen(pod_facts(made), 0.0)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (pod_object(mem=200), "node(s) had no GPU with 200 GiB"),
        (pod_object(mem=200, labels=MEMBER), "job j: 1 of 2 pods are there"),
        (pod_object(mem="much"), "the pod asks for an amount that is no whole number (aliyun.com/gpu-mem of c)"),
        (
            pod_object(None, container("a", mem=2, whole=1)),
            "the pod asks for aliyun.com/gpu and for aliyun.com/gpu-mem",
        ),
    ],
)
def test_a_pod_about_which_no_call_comes_says_why_it_waits(made, text):
    scheduling = cluster(shared_node("n1"))
    (message,) = told(scheduling, made)
    assert message.startswith(text)
    assert told(scheduling, made, 1.0) == [], "the same is not said twice"
    assert told(scheduling, made, AGAIN_S) == [message]


@pytest.fixture
def beside_another():
    """Beside the stock scheduler, which places some pods."""
    scheduling = Scheduling(LeastFree(), schedulers={"gpu-scheduler"})
    scheduling.node_seen(shared_node("n1"))
    scheduling.synced(0.0)
    return scheduling


def test_a_pod_of_another_scheduler_says_why_it_waits(beside_another):
    """The stock scheduler says only that a node lacks units."""
    asked = pod_object(mem=200, scheduler="default-scheduler")
    (message,) = told(beside_another, asked)
    assert message == "node(s) had no GPU with 200 GiB"
    assert told(beside_another, asked, 1.0) == [], "the same is not said twice"
    assert told(beside_another, asked, AGAIN_S) == [message]


@pytest.mark.parametrize(
    ("made", "short"),
    [
        (pod_object(mem=200, scheduler="default-scheduler"), "cpu"),
        (pod_object(mem=5, scheduler="default-scheduler"), "aliyun.com/gpu-mem"),
        (pod_object(mem=200, scheduler=PLACEHOLDER_SCHEDULER), "aliyun.com/gpu-mem"),
        (pod_object(scheduler="default-scheduler"), "aliyun.com/gpu-mem"),
    ],
    ids=["for something else", "with room by now", "as a placeholder", "without GPUs"],
)
def test_a_pod_of_another_scheduler_that_waits_otherwise_gets_no_event(beside_another, made, short):
    assert told(beside_another, made, short=short) == []


def test_pods_of_another_scheduler_get_no_event_in_a_cluster_without_gpus_of_ours():
    """They wait for the GPUs of another plugin."""
    scheduling = Scheduling(LeastFree(), schedulers={"gpu-scheduler"})
    scheduling.synced(0.0)
    assert told(scheduling, pod_object(mem=200, scheduler="default-scheduler")) == []


@pytest.mark.parametrize("short", ["", "cpu", "nvidia.com/gpu", "example.com/aliyun.com"])
def test_a_pod_that_waits_for_something_else_gets_no_event(short):
    assert told(cluster(shared_node("n1")), pod_object(mem=200), short=short) == []


def test_a_pod_that_is_being_deleted_gets_no_event():
    made = pod_object(mem=200)
    made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert told(cluster(shared_node("n1")), made) == []


def test_a_pod_for_which_too_little_is_free_says_how_much_is():
    scheduling = cluster(shared_node("n1", gpus=1))
    bound(scheduling, pod_object(mem=7), "n1")
    asked = pod_object(mem=5)
    text = "node(s) had at most {} GiB free on one GPU, 5 GiB wanted"
    assert told(scheduling, asked) == [text.format(3)]
    bound(scheduling, pod_object(mem=2), "n1")
    assert told(scheduling, asked, KEPT_S) == [text.format(1)]


def test_a_pod_for_which_room_was_made_meanwhile_gets_no_event():
    """kube-scheduler tries it again at once."""
    assert told(cluster(shared_node("n1")), pod_object(mem=5)) == []


def test_the_reason_of_a_job_is_said_again_when_it_changes():
    scheduling = cluster(whole_node("n1", gpus=2))
    first, second = (pod_object(whole=2, labels=MEMBER) for _ in range(2))
    assert told(scheduling, first, short="aliyun.com/gpu") == ["job j: 1 of 2 pods are there"]
    assert told(scheduling, second, short="") == []
    text = "job j: it asks for 4 of aliyun.com/gpu, and the cluster has 2"
    assert told(scheduling, first, short="aliyun.com/gpu") == [text]


@pytest.mark.parametrize("scheduler", ["gpu-scheduler", "default-scheduler"])
def test_pods_that_wait_when_the_scheduler_starts_are_told(scheduler):
    scheduling = cluster(shared_node("n1"))
    (message,) = told(scheduling, asked := pod_object(mem=200, scheduler=scheduler))
    again = Scheduling(LeastFree(), schedulers={"gpu-scheduler"})
    again.node_seen(shared_node("n1"))
    again.pod_seen(pod_facts(asked), 0.0)
    again.synced(0.0)
    assert again.next_due(0.0) == 0.0
    again.tick(0.0)
    assert [action.message for action in again.actions() if isinstance(action, Report)] == [message]


def test_the_reasons_of_many_pods_that_wait_at_the_start_leave_time_for_calls():
    """Each of them wants another amount, so that one look at all nodes does not serve two."""
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(shared_node("n1"))
    condition = {"type": "PodScheduled", "status": "False", "message": "Insufficient aliyun.com/gpu-mem."}
    waiting = [pod_object(mem=200 + n) for n in range(100)]
    for made in waiting:
        made["status"]["conditions"] = [condition]
        scheduling.pod_seen(pod_facts(made), 0.0)
    scheduling.synced(0.0)
    told_uids = []
    for _ in waiting:
        reports = [action for action in scheduling.actions() if isinstance(action, Report)]
        assert len(reports) <= EXPLAINED_A_TICK
        told_uids += [report.uid for report in reports]
        scheduling.tick(0.0)
    assert told_uids == [made["metadata"]["uid"] for made in waiting]
