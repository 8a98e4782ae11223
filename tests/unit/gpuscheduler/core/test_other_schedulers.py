"""Pods that another scheduler places."""

import pytest

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.placeholders import PLACEHOLDER_SCHEDULER
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod, pod_object, shared_node, whole_node

LABELS = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}


@pytest.fixture
def scheduling():
    made = Scheduling(LeastFree(), schedulers={"gpu-scheduler"})
    made.node_seen(shared_node("n1"))
    made.node_seen(whole_node("n2"))
    made.synced(0.0)
    return made


def test_its_jobs_hold_no_gpu_and_are_not_woken(scheduling):
    for _ in range(2):
        scheduling.pod_seen(pod(whole=4, labels=LABELS, scheduler="other"), 0.0)
    scheduling.tick(1.0)
    assert scheduling.actions() == []
    assert len(scheduling.reservations) == 0
    assert scheduling.pods == {}


def test_its_pods_count_once_they_are_bound(scheduling):
    asked = pod_object(mem=6, scheduler="other")
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [10, 10]
    asked["metadata"]["annotations"] = {MEMORY_ANNOTATION: '{"0":{"0":6}}'}
    asked["spec"]["nodeName"] = "n1"
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [4, 10]


def test_its_waiting_pods_are_known_with_a_reason_until_they_have_a_node(scheduling):
    asked = pod_object("p", mem=6, scheduler="gpu-schedular", uid="u")
    scheduling.pod_seen(pod_facts(asked), 0.0)
    (waiting,) = scheduling.others.pods.values()
    assert scheduling.others.why(waiting) == (
        "scheduler gpu-schedular has not tried it yet: is it running, or did you mean gpu-scheduler?"
    )
    refused = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    asked["status"]["conditions"] = [refused]
    scheduling.pod_seen(pod_facts(asked), 0.0)
    (waiting,) = scheduling.others.pods.values()
    assert scheduling.others.why(waiting) == refused["message"]
    asked["spec"]["nodeName"] = "n1"
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert scheduling.others.pods == {}


def test_its_waiting_pods_are_forgotten_when_they_end_or_are_gone(scheduling):
    for uid, phase in (("ended", "Failed"), ("gone", "Pending")):
        scheduling.pod_seen(pod(uid=uid, mem=6, scheduler="other"), 0.0)
        scheduling.pod_seen(pod(uid=uid, mem=6, scheduler="other", phase=phase), 0.0)
    assert [*scheduling.others.pods] == ["gone"]
    scheduling.pod_gone("gone", 0.0)
    assert scheduling.others.pods == {}


def test_pods_without_gpus_and_placeholders_do_not_wait_for_another(scheduling):
    scheduling.pod_seen(pod(scheduler="other"), 0.0)
    scheduling.pod_seen(pod(mem=6, scheduler=PLACEHOLDER_SCHEDULER), 0.0)
    scheduling.pod_seen(pod(mem=6), 0.0)
    assert scheduling.others.pods == {}
    (own,) = scheduling.pods.values()
    assert scheduling.others.why(own) == ""


def test_a_call_for_its_pods_is_an_error_that_names_the_setting(scheduling):
    answer = scheduling.filter(pod("p", mem=6, scheduler="other"), ["n1"], 0.0)
    assert answer.error == "pod default/p is of scheduler other, which --scheduler-name leaves out"
