"""Pods that another scheduler places."""

import pytest

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import Nudge
from gpuscheduler.core.gangs.job_set import read_job_set
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.placeholders import PLACEHOLDER_SCHEDULER
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod, pod_object, shared_node, whole_node
from tests.unit.gpuscheduler.core.gangs.workloads import job_set, job_set_pod, replicated_job

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


def why_of(scheduling, name):
    """Why a pod waits, as kube-scheduler is told, and as Events have it."""
    waiting = next(found for found in scheduling.pods.values() if found.name.name == name)
    said = set(scheduling.filter(waiting, ["n1", "n2"], 0.0).unresolvable.values())
    assert said == {f"node(s) not given to {scheduling.jobs.why(waiting)}"}
    return scheduling.jobs.why(waiting)


def nudged(scheduling):
    return [action.pod.name for action in scheduling.actions() if isinstance(action, Nudge)]


def test_a_job_names_its_pods_that_ask_for_another_scheduler(scheduling):
    labels = {**LABELS, REPLICAS_LABEL: "3"}
    scheduling.pod_seen(pod("a", whole=4, labels=labels), 0.0)
    assert why_of(scheduling, "a") == "job j: 1 of 3 pods are there"
    scheduling.pod_seen(pod("b", whole=4, labels=labels, scheduler="default-scheduler", uid="b"), 0.0)
    assert nudged(scheduling) == ["a"], "kube-scheduler shows the former reason until it asks again"
    assert why_of(scheduling, "a") == (
        "job j: 1 of 3 pods are there, and 1 names another scheduler, default-scheduler: "
        "set spec.schedulerName to gpu-scheduler in its template"
    )
    scheduling.pod_seen(pod("c", labels=labels, scheduler="gpu-schedular", uid="c"), 0.0)
    assert nudged(scheduling) == []
    assert why_of(scheduling, "a") == (
        "job j: 1 of 3 pods are there, and 2 name another scheduler, such as default-scheduler: "
        "set spec.schedulerName to gpu-scheduler in their template"
    )
    scheduling.pod_gone("b", 0.0)
    scheduling.pod_gone("c", 0.0)
    assert nudged(scheduling) == ["a"]
    assert why_of(scheduling, "a") == "job j: 1 of 3 pods are there"


def test_pods_of_another_job_or_namespace_and_those_that_end_are_not_named(scheduling):
    scheduling.pod_seen(pod("a", whole=4, labels=LABELS), 0.0)
    scheduling.pod_seen(pod(whole=4, labels={**LABELS, JOB_LABEL: "k"}, scheduler="other"), 0.0)
    scheduling.pod_seen(pod(whole=4, labels=LABELS, scheduler="other", namespace="team-b"), 0.0)
    scheduling.pod_seen(pod(whole=4, labels=LABELS, scheduler=PLACEHOLDER_SCHEDULER), 0.0)
    ending = pod_object("b", whole=4, labels=LABELS, scheduler="other")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    scheduling.pod_seen(pod_facts(ending), 0.0)
    assert nudged(scheduling) == []
    assert why_of(scheduling, "a") == "job j: 1 of 2 pods are there"


def test_a_pod_that_another_scheduler_binds_is_there(scheduling):
    labels = {**LABELS, REPLICAS_LABEL: "3"}
    scheduling.pod_seen(pod("a", whole=1, labels=labels), 0.0)
    scheduling.pod_seen(pod("b", labels=labels, scheduler="other", uid="b"), 0.0)
    assert "1 names another scheduler, other" in why_of(scheduling, "a")
    scheduling.pod_seen(pod("b", labels=labels, scheduler="other", uid="b", on="n1"), 0.0)
    assert why_of(scheduling, "a") == "job j: 2 of 3 pods are there"


def test_gates_and_other_schedulers_are_said_together_in_one_short_line(scheduling):
    labels = {**LABELS, REPLICAS_LABEL: "3"}
    scheduling.pod_seen(pod("a", whole=1, labels=labels), 0.0)
    scheduling.pod_seen(pod("b", whole=1, labels=labels, gates=["queue.example/admission"]), 0.0)
    scheduling.pod_seen(pod("c", whole=1, labels=labels, scheduler="x\n" * 1000), 0.0)
    why = why_of(scheduling, "a")
    start = "job j: 1 of 3 pods are there, and 1 have scheduling gate queue.example/admission, and 1 names another "
    assert why.startswith(f"{start}scheduler, x x x")
    assert "\n" not in why
    assert len(why) < 300


def test_a_pod_of_another_scheduler_follows_its_object_to_another_job(scheduling):
    """The JobSet says later than its pods that each entry starts by itself."""
    own = pod_facts(job_set_pod("w-0", "workers", whole=1))
    scheduling.pod_seen(own, 0.0)
    scheduling.pod_seen(pod_facts(job_set_pod("w-1", "workers", whole=1, scheduler="other")), 0.0)
    scheduling.pod_seen(pod_facts(job_set_pod("d-0", "driver", whole=1, scheduler="other")), 0.0)
    entries = [replicated_job("driver"), replicated_job("workers", pods=3)]
    set_in_order = read_job_set(job_set(*entries, startupPolicy={"startupPolicyOrder": "InOrder"}))
    scheduling.gang_seen(set_in_order)
    scheduling.tick(0.0)
    assert "w-0" in nudged(scheduling)
    start = "replicated job train/workers: 1 of 3 pods are there, and 1 names another scheduler, other: "
    assert scheduling.jobs.why(scheduling.gang_objects.resolved(own)).startswith(start)
    scheduling.pod_gone("w-1", 0.0)
    assert why_of(scheduling, "w-0").endswith(": 1 of 3 pods are there")
    for uid in ("w-0", "d-0"):
        scheduling.pod_gone(uid, 0.0)
    assert not scheduling.gang_objects.is_referred_to(ObjectKind.JOB_SET)
