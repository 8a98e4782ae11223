"""Members of a job that come again after others have ended: they do not wait for ever, and no job starts in part."""

from dataclasses import replace

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import Nudge, Ungate
from gpuscheduler.core.constraints.labels import labels_of_node
from gpuscheduler.core.constraints.node_site import NodeSite, Taint
from gpuscheduler.core.jobs.due_jobs import FAILED_S
from gpuscheduler.core.jobs.job import JobState
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod_object, whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest


@pytest.fixture
def cluster():
    return JobUnderTest(whole_node("n1", gpus=4), whole_node("n2", gpus=4))


def started(cluster, *names, **given):
    """A job whose pods run."""
    for name in names:
        cluster.create(name, **{"whole": 1, "replicas": len(names), "owner": "job-uid"} | given)
    cluster.run(*names)


def end(cluster, name, phase="Succeeded"):
    """The API server keeps a pod that has ended."""
    cluster.pods[name]["status"]["phase"] = phase
    cluster.scheduling.pod_seen(pod_facts(cluster.pods[name]), cluster.now)
    cluster.act()


def delete(cluster, name):
    del cluster.pods[name]
    cluster.scheduling.pod_gone(name, cluster.now)
    cluster.act()


def again(cluster, name, **given):
    cluster.create(name, **{"whole": 1, "owner": "job-uid"} | given)


def waits(cluster, name, count):
    return set(cluster.filter(name).unresolvable.values()) == {f"node(s) not given to job j: {count} pods are there"}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_the_last_worker_of_an_indexed_job_is_tried_again_after_the_others_succeeded(cluster, crash, kept):
    started(cluster, "a", "b", "c")
    end(cluster, "a")
    end(cluster, "b")
    end(cluster, "c", "Failed")
    if not kept:
        delete(cluster, "c")
    if crash:
        cluster.start()
    again(cluster, "c2", replicas=3)
    cluster.run("c2")


@pytest.mark.parametrize("crash", [False, True])
def test_a_pod_of_another_controller_of_the_job_counts(cluster, crash):
    """Master and workers are often of two controllers."""
    cluster.create("master", whole=1, owner="m")
    cluster.create("worker", whole=1, owner="w")
    cluster.run("master", "worker")
    end(cluster, "master")
    end(cluster, "worker", "Failed")
    if crash:
        cluster.start()
    again(cluster, "worker2", owner="w")
    cluster.run("worker2")


def test_a_pod_without_a_controller_comes_again_under_its_name(cluster):
    started(cluster, "a", "b", owner=None)
    end(cluster, "a")
    end(cluster, "b", "Failed")
    delete(cluster, "b")
    cluster.create("other", whole=1)
    assert waits(cluster, "other", "1 of 2")
    delete(cluster, "other")
    cluster.create("b", whole=1)
    cluster.run("b")


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("owner", [None, "next-run"])
def test_the_next_run_of_a_name_starts_whole_although_pods_of_the_former_one_are_still_there(cluster, owner, crash):
    started(cluster, "a", "b")
    end(cluster, "a")
    end(cluster, "b")
    if crash:
        cluster.start()
    again(cluster, "a2", owner=owner)
    assert waits(cluster, "a2", "1 of 2")
    again(cluster, "b2", owner=owner)
    cluster.run("a2", "b2")


@pytest.mark.parametrize("crash", [False, True])
def test_the_next_run_of_one_controller_starts_whole(cluster, crash):
    """It makes pods of each run under its own UID, and keeps those that have ended."""
    started(cluster, "a", "b")
    end(cluster, "a")
    end(cluster, "b")
    if crash:
        cluster.start()
    again(cluster, "a2")
    assert waits(cluster, "a2", "1 of 2")
    again(cluster, "b2")
    cluster.run("a2", "b2")
    end(cluster, "a2")
    end(cluster, "b2", "Failed")
    again(cluster, "b3")
    cluster.run("b3")


def test_pods_of_another_namespace_do_not_count(cluster):
    started(cluster, "a", "b")
    end(cluster, "a")
    end(cluster, "b")
    made = cluster.pods["a2"] = cluster.create("a2", job=None, whole=1, owner="job-uid")
    cluster.scheduling.pod_gone("a2", 0.0)
    made["metadata"]["namespace"] = "other"
    made["metadata"]["labels"] = cluster.pods["a"]["metadata"]["labels"]
    cluster.scheduling.pod_seen(pod_facts(made), 0.0)
    assert waits(cluster, "a2", "1 of 2")
    assert cluster.scheduling.jobs.states() == {JobState.FORMING: 1}


def relabel(cluster, name, job):
    cluster.pods[name]["metadata"]["labels"] = {JOB_LABEL: job, REPLICAS_LABEL: "2"} if job else {}
    cluster.scheduling.pod_seen(pod_facts(cluster.pods[name]), cluster.now)
    cluster.act()


def test_a_running_member_stays_in_its_job_whatever_its_labels_say_later(cluster):
    started(cluster, "a", "b")
    relabel(cluster, "a", "other")
    end(cluster, "b", "Failed")
    again(cluster, "b2")
    cluster.run("b2")
    cluster.create("c", job="other", whole=1)
    assert set(cluster.filter("c").unresolvable.values()) == {"node(s) not given to job other: 1 of 2 pods are there"}


@pytest.mark.parametrize(("before", "after"), [("j", "other"), ("j", None), ("other", "j"), (None, "j")])
@pytest.mark.parametrize("crash", [False, True])
def test_a_bound_pod_without_gpus_counts_for_the_job_that_its_label_names_now(cluster, before, after, crash):
    """Nothing was decided for it. So it does not matter whether the scheduler has seen it before."""
    cluster.create("master", job=before, on="cpu-node")
    relabel(cluster, "master", after)
    if crash:
        cluster.start()
    cluster.create("worker", whole=1)
    if after == "j":
        cluster.run("worker")
    else:
        assert waits(cluster, "worker", "1 of 2")


def test_members_that_failed_together_start_together_again(cluster):
    started(cluster, "a", "b", "c")
    end(cluster, "a")
    end(cluster, "b", "Failed")
    end(cluster, "c", "Failed")
    again(cluster, "b2", replicas=3)
    assert waits(cluster, "b2", "2 of 3")
    again(cluster, "c2", replicas=3)
    cluster.run("b2", "c2")


def test_a_member_that_failed_for_good_is_not_waited_for_for_ever(cluster):
    """Its index is out of tries: nobody makes another pod for it."""
    started(cluster, "a", "b")
    end(cluster, "a", "Failed")
    end(cluster, "b", "Failed")
    again(cluster, "b2")
    assert waits(cluster, "b2", "1 of 2")
    assert cluster.scheduling.next_due(0.0) <= FAILED_S
    for cluster.now in (FAILED_S - 1, FAILED_S):
        cluster.done.clear()
        cluster.scheduling.tick(cluster.now)
        cluster.act()
    assert {action.uid for action in cluster.done if isinstance(action, Nudge)} == {"b2"}
    cluster.run("b2")


def test_a_gated_member_that_comes_again_is_let_in(cluster):
    started(cluster, "a", "b")
    end(cluster, "a")
    end(cluster, "b", "Failed")
    again(cluster, "b2")
    gated = pod_object("b3", whole=1, owner="job-uid", labels=cluster.pods["b2"]["metadata"]["labels"])
    gated["spec"]["schedulingGates"] = [{"name": "gpuagent.io/job"}]
    delete(cluster, "b2")
    cluster.scheduling.pod_seen(pod_facts(gated), 0.0)
    assert [action.pod.name for action in cluster.scheduling.actions() if isinstance(action, Ungate)] == ["b3"]


def gated(cluster, name, **given):
    """A pod that is created with the scheduler's gate; the stand-in's scheduler takes it off."""
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: str(given.pop("replicas", 2))}
    made = cluster.pods[name] = pod_object(name, uid=name, whole=1, labels=labels, **given)
    made["spec"]["schedulingGates"] = [{"name": "gpuagent.io/job"}]
    cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    cluster.act()


def let_in(cluster):
    return [action.pod.name for action in cluster.done if isinstance(action, Ungate)]


@pytest.mark.parametrize("crash", [False, True])
def test_gated_pods_are_let_in_when_another_scheduler_starts_the_job(cluster, crash):
    gated(cluster, "a", replicas=3)
    cluster.create("b", replicas=3, whole=1)
    assert let_in(cluster) == []
    cluster.pods["b"]["spec"]["nodeName"] = "n1"
    if crash:
        cluster.start()
    else:
        cluster.scheduling.pod_seen(pod_facts(cluster.pods["b"]), 0.0)
        cluster.act()
    assert let_in(cluster) == ["a"]


def test_gated_pods_are_let_in_when_the_pod_goes_that_asked_for_more(cluster):
    cluster.create("old", replicas=4, whole=1)
    gated(cluster, "a")
    gated(cluster, "b")
    assert let_in(cluster) == []
    delete(cluster, "old")
    assert let_in(cluster) == ["a", "b"]


def test_a_job_that_another_scheduler_starts_is_planned_at_once(cluster):
    """Its labels disagreed, which only a job that has not started is refused for."""
    cluster.create("a", replicas=3, whole=1)
    cluster.create("b", replicas=2, whole=1)
    cluster.scheduling.tick(0.0)
    assert cluster.scheduling.next_due(0.0) is None
    cluster.pods["b"]["spec"]["nodeName"] = "n1"
    cluster.done.clear()
    cluster.scheduling.pod_seen(pod_facts(cluster.pods["b"]), 0.0)
    assert cluster.scheduling.next_due(0.0) == 0.0
    cluster.scheduling.tick(0.0)
    cluster.act()
    assert {action.uid for action in cluster.done if isinstance(action, Nudge)} == {"a"}
    assert cluster.reserved() == 1


def test_a_member_that_waits_is_let_in_when_the_last_of_the_others_succeeds(cluster):
    started(cluster, "a", "b", "c")
    end(cluster, "a", "Failed")
    end(cluster, "b")
    end(cluster, "c", "Failed")
    delete(cluster, "c")
    again(cluster, "a2", replicas=3)
    assert waits(cluster, "a2", "2 of 3")
    again(cluster, "c2", replicas=3)
    cluster.run("a2", "c2")


def test_a_job_is_forgotten_when_its_last_pod_is(cluster):
    started(cluster, "a", "b")
    for name in ("a", "b"):
        end(cluster, name)
    assert cluster.scheduling.jobs.states() == {}
    for name in ("a", "b"):
        delete(cluster, name)
    again(cluster, "b2")
    assert waits(cluster, "b2", "1 of 2")


@pytest.mark.parametrize(
    "label",
    [
        "batch.kubernetes.io/job-completion-index",
        "apps.kubernetes.io/pod-index",
        "statefulset.kubernetes.io/pod-name",
    ],
)
def test_a_pod_that_comes_again_gets_a_place_near_one_pod_of_its_job(label):
    scheduling = Scheduling(LeastFree())
    for name in ("n1", "n2"):
        site = NodeSite(name, labels_of_node({"zone": name}))
        scheduling.node_seen(replace(whole_node(name), site=site))
    members = []
    for n in range(3):
        labels = {JOB_LABEL: "j", REPLICAS_LABEL: "3", label: str(n)}
        members.append(pod_object(f"p{n}", uid=f"p{n}", labels=labels, whole=int(n == 2)))
    for made, name in zip(members, ("n2", "n1"), strict=False):
        made["spec"]["nodeName"] = name
        scheduling.pod_seen(pod_facts(made), 0.0)
    scheduling.synced(0.0)
    near = {"topologyKey": "zone", "labelSelector": {"matchLabels": {label: "0"}}}
    again = members[2]
    again["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    scheduling.pod_seen(pod_facts(again), 1.0)
    assert scheduling.filter(pod_facts(again), ["n1", "n2"], 1.0).nodes == ("n2",)


HOST = "kubernetes.io/hostname"
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": HOST, "labelSelector": {"matchLabels": {"apart": "yes"}}}
        ]
    }
}


def tolerate(made):
    made["spec"]["tolerations"] = [{"key": "team", "operator": "Exists"}]


def shrink(made):
    """Containers of a pod may be resized before it has a node."""
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "40"}


def unlabel(made):
    del made["metadata"]["labels"]["apart"]


@pytest.mark.parametrize("edit", [tolerate, shrink, unlabel])
def test_a_job_that_did_not_fit_is_planned_again_when_its_waiting_pods_are_edited(edit):
    """People do that because of the reason that they read. Nothing else may change in the cluster for days."""
    taints = (Taint("team", "red", "NoSchedule"),) if edit is tolerate else ()
    site = NodeSite("n1", labels_of_node({HOST: "n1"}), taints)
    cluster = JobUnderTest(replace(whole_node("n1", gpus=4), site=site))
    for name in ("a", "b"):
        made = cluster.create(name, whole=1, asked=False)
        made["metadata"]["labels"]["apart"] = "yes"
        made["spec"]["affinity"] = APART if edit is unlabel else {}
        requests = {"cpu": "80"} if edit is shrink else {}
        made["spec"]["containers"][0]["resources"]["requests"] = requests
        cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    for name in ("a", "b"):
        assert not cluster.filter(name).nodes
    for made in cluster.pods.values():
        edit(made)
        cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    cluster.run("a", "b")
