"""Pods of a job about which kube-scheduler asks before the watch shows them: what is known of the others may be old."""

import pytest

from gpuscheduler.core.calls import Nudge
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import pod_object, whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest
from tests.unit.gpuscheduler.core.test_jobs_again import delete, end, started

NOT_SHOWN = "the watch of gpuscheduler has not shown this pod yet"


@pytest.fixture
def cluster():
    cluster = JobUnderTest(whole_node("n1", gpus=4), whole_node("n2", gpus=4))
    started(cluster, "a", "b", "c")
    return cluster


def ask_unseen(cluster, name):
    """A pod of the job comes, and kube-scheduler asks about it before the watch shows it."""
    labels = cluster.pods["a"]["metadata"]["labels"]
    cluster.pods[name] = pod_object(name, uid=name, labels=labels, whole=1, owner="job-uid")
    return cluster.filter(name)


def show(cluster, name):
    cluster.scheduling.pod_seen(pod_facts(cluster.pods[name]), cluster.now)
    cluster.act()


def nudged(cluster):
    return [action.pod.name for action in cluster.done if isinstance(action, Nudge)]


def test_a_pod_starts_not_alone_because_the_watch_lacks_that_the_others_are_gone(cluster):
    """Kueue has evicted the job. The first of its next pods comes."""
    assert NOT_SHOWN in str(ask_unseen(cluster, "a2").unresolvable)
    assert cluster.reserved() == 0
    for name in "abc":
        delete(cluster, name)
    cluster.done.clear()
    show(cluster, "a2")
    assert nudged(cluster) == ["a2"], "it has another reason now"
    assert "1 of 3 pods are there" in str(cluster.filter("a2").unresolvable)
    assert cluster.reserved() == 0


def test_nor_beside_others_that_have_succeeded(cluster):
    end(cluster, "a")
    end(cluster, "b")
    delete(cluster, "c")
    assert NOT_SHOWN in str(ask_unseen(cluster, "c2").unresolvable)
    assert cluster.reserved() == 0
    show(cluster, "c2")
    cluster.run("c2")


def test_a_pod_that_replaces_one_of_a_running_job_starts_when_the_watch_shows_it(cluster):
    assert NOT_SHOWN in str(ask_unseen(cluster, "c2").unresolvable)
    delete(cluster, "c")
    cluster.done.clear()
    show(cluster, "c2")
    assert cluster.reserved() == 1
    assert nudged(cluster) == ["c2"], "kube-scheduler tries it again"
    cluster.run("c2")


def test_nor_if_the_watch_lacks_that_its_gate_is_lifted(cluster):
    """Kueue gates a pod that was added to the job, evicts the others, and lifts the gate before these are seen to go."""
    ask_unseen(cluster, "d")
    gated = cluster.pods["d"] | {"spec": cluster.pods["d"]["spec"] | {"schedulingGates": [{"name": "kueue.x-k8s.io"}]}}
    cluster.scheduling.pod_seen(pod_facts(gated), cluster.now)
    cluster.act()
    assert NOT_SHOWN in str(cluster.filter("d").unresolvable)
    assert cluster.reserved() == 0
    cluster.done.clear()
    show(cluster, "d")
    assert nudged(cluster) == ["d"], "the watch shows it without its gate"
