"""Pods that another scheduler places."""

import pytest

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
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


def test_a_call_for_its_pods_is_an_error_that_names_the_setting(scheduling):
    answer = scheduling.filter(pod("p", mem=6, scheduler="other"), ["n1"], 0.0)
    assert answer.error == "pod default/p is of scheduler other, which --scheduler-name leaves out"
