"""How many pods of a job are there: all of its pods say the same number, although each was told when it came."""

import pytest

from gpuscheduler.core.calls import Nudge, Report
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.waiting.said_count import MOST_WOKEN, REFRESH_S
from tests.unit.gpuscheduler.core.api_objects import whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest


@pytest.fixture
def cluster():
    return JobUnderTest(whole_node("n1", gpus=4), whole_node("n2", gpus=4))


def say(cluster, name, message):
    """kube-scheduler writes why a pod waits."""
    made = cluster.pods[name]
    made["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
    cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    cluster.act()


def ask(cluster, name):
    """kube-scheduler asks about a pod and writes the answer into it."""
    (why,) = set(cluster.filter(name).unresolvable.values())
    say(cluster, name, f"0/2 nodes are available: 2 {why}. no new claims to deallocate")


def come(cluster, *names, **given):
    for name in names:
        cluster.create(name, **{"whole": 1, "replicas": 4, "asked": False} | given)
        if not given.get("gates"):
            ask(cluster, name)


def woken(cluster, wait_s=REFRESH_S):
    """The pods that are woken within this time, about each of which kube-scheduler asks again."""
    end = cluster.now + wait_s
    names = []
    while True:
        due = cluster.scheduling.next_due(cluster.now)
        if due is None or due > end:
            break
        cluster.now = max(due, cluster.now)
        cluster.done.clear()
        cluster.scheduling.tick(cluster.now)
        cluster.act()
        names += [action.pod.name for action in cluster.done if isinstance(action, Nudge)]
    cluster.now = end
    return names


def said(cluster):
    conditions = [made["status"].get("conditions") for made in cluster.pods.values()]
    return {condition["message"].split(": ")[2].split(". ")[0] for (condition,) in filter(None, conditions)}


def test_pods_that_say_a_former_number_are_woken(cluster):
    come(cluster, "a", "b", "c")
    assert said(cluster) == {f"{count} of 4 pods are there" for count in (1, 2, 3)}
    assert woken(cluster) == ["a", "b"]
    ask(cluster, "a")
    ask(cluster, "b")
    assert said(cluster) == {"3 of 4 pods are there"}
    assert woken(cluster, 3_600) == []


def test_pods_are_not_woken_while_the_others_may_come_in_a_moment(cluster):
    come(cluster, "a", "b", "c")
    assert woken(cluster, REFRESH_S - 1) == []
    cluster.create("d", whole=1, replicas=4)
    assert all(cluster.filter(name).nodes for name in cluster.pods)
    assert woken(cluster) == [], "the last pod has woken them"


def test_pods_of_a_job_that_loses_one_say_so(cluster):
    come(cluster, "a", "b", "c")
    assert woken(cluster) == ["a", "b"]
    ask(cluster, "a")
    ask(cluster, "b")
    cluster.scheduling.pod_gone("c", cluster.now)
    del cluster.pods["c"]
    assert woken(cluster) == ["a", "b"]


def test_a_pod_that_was_told_just_before_the_number_changed_is_woken_later(cluster):
    """Its answer is not written yet when the others are looked at."""
    come(cluster, "a")
    cluster.now += REFRESH_S - 0.1
    (why,) = set(cluster.filter("a").unresolvable.values())
    cluster.create("b", whole=1, replicas=4, asked=False)
    assert woken(cluster, 0.2) == ["a"]
    say(cluster, "a", f"0/2 nodes are available: 2 {why}.")
    cluster.filter("a")
    ask(cluster, "b")
    assert woken(cluster, 3_600) == []


def test_many_pods_are_woken_some_at_a_time(cluster):
    names = [f"p{number:03}" for number in range(2 * MOST_WOKEN + 2)]
    come(cluster, *names, replicas=len(names) + 1)
    first = woken(cluster)
    assert first == names[:MOST_WOKEN]
    assert woken(cluster, 3_600) == names[MOST_WOKEN:-1]


def test_pods_that_wait_when_the_scheduler_starts_are_woken_as_well(cluster):
    come(cluster, "a", "b")
    cluster.start()
    assert woken(cluster) == ["a"]


def test_a_pod_that_another_controller_holds_back_is_not_woken(cluster):
    come(cluster, "a")
    come(cluster, "b", gates=["example.com/quota"])
    assert woken(cluster) == ["a"]
    ask(cluster, "a")
    assert "1 have scheduling gate example.com/quota" in said(cluster).pop()


def test_an_event_about_a_pod_that_kube_scheduler_does_not_ask_about_follows_the_number(cluster):
    """The pod is woken, and is seen with that."""
    cluster.create("a", whole=1, replicas=4, asked=False)
    say(cluster, "a", "0/2 nodes are available: 2 Insufficient aliyun.com/gpu.")
    cluster.create("b", whole=1, replicas=4, asked=False)
    assert woken(cluster) == ["a"]
    cluster.done.clear()
    say(cluster, "a", "0/2 nodes are available: 2 Insufficient aliyun.com/gpu.")
    (report,) = [action for action in cluster.done if isinstance(action, Report)]
    assert report.message == "job j: 2 of 4 pods are there"
