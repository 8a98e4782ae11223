"""When a job is planned, with how many of its pods, and what happens to the others of a plan when one is refused."""

import pytest

from gpuscheduler.core.calls import Nominate, Nudge
from gpuscheduler.core.jobs.due_jobs import CALL_S
from gpuscheduler.core.jobs.planning import BARRIER_S
from gpuscheduler.core.jobs.turns import MOST_EARLY, EarlyCalls
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest

NAMES = ("a", "b", "c", "d", "e", "f")


def cluster_of(nodes, gpus=4):
    return JobUnderTest(*(whole_node(f"n{number:03}", gpus=gpus) for number in range(nodes)))


def tick_at(cluster, now):
    cluster.now = now
    cluster.scheduling.tick(now)
    cluster.act()


def nudged(cluster):
    return [action.pod.name for action in cluster.done if isinstance(action, Nudge)]


def nominations(cluster):
    """The node that each pod is nominated for now."""
    nodes = {}
    for action in cluster.done:
        if isinstance(action, Nominate):
            nodes[action.pod.name] = action.node
    return {name: node for name, node in nodes.items() if node}


# -- kube-scheduler comes to each pod --------------------------------------------------------------------------------


def test_nothing_is_reserved_for_a_pod_that_kube_scheduler_never_asks_about():
    cluster = cluster_of(2)
    cluster.create("a", whole=4)
    cluster.create("b", whole=4, asked=False)
    for now in (0.0, CALL_S, 100.0):
        tick_at(cluster, now)
        assert cluster.reserved() == 0
    assert nudged(cluster).count("b") == 1, "kube-scheduler is woken once"
    reasons = set(cluster.filter("a").unresolvable.values())
    assert reasons == {"node(s) not given to job j: kube-scheduler has found no node yet for 1 of its pods, such as b"}


def test_pods_that_wait_when_the_scheduler_starts_are_asked_about_again():
    cluster = cluster_of(1)
    cluster.create("a", whole=4)
    cluster.create("b", whole=4)
    cluster.nodes = (whole_node("n000", gpus=4), whole_node("n001", gpus=4))
    cluster.start()
    cluster.done.clear()
    tick_at(cluster, cluster.now + CALL_S)
    assert sorted(nudged(cluster)) == ["a", "b"]
    cluster.filter("a")
    cluster.filter("b")
    cluster.run("a", "b")


def test_a_pod_that_is_asked_about_before_the_watch_shows_it_is_not_asked_about_twice():
    cluster = cluster_of(2)
    cluster.create("a", whole=4)
    made = cluster.create("b", whole=4, asked=False)
    cluster.scheduling.pod_gone("b", cluster.now)
    cluster.create("c", job="other", whole=4)
    assert not cluster.filter("b").nodes or cluster.reserved() == 2
    cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    cluster.act()
    assert cluster.reserved() == 2


@pytest.mark.parametrize("early", ["a", "ab"], ids=["the first pod", "all pods"])
def test_a_job_knows_which_of_its_pods_were_asked_about_before_the_watch_showed_any(early):
    cluster = cluster_of(2)
    pods = {name: cluster.create(name, whole=4, asked=False) for name in "ab"}
    for name in pods:
        cluster.scheduling.pod_gone(name, cluster.now)
    for name in early:
        assert not cluster.filter(name).nodes
    for made in pods.values():
        cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
        cluster.act()
    for name in sorted(pods.keys() - set(early)):
        cluster.filter(name)
    assert cluster.reserved() == 2


def test_of_pods_of_jobs_that_the_watch_never_shows_the_latest_are_kept():
    early = EarlyCalls()
    for number in range(MOST_EARLY + 1):
        early.add(str(number))
    assert not early.take("0")
    assert early.take(str(MOST_EARLY))
    assert not early.take(str(MOST_EARLY))


# -- nominations -----------------------------------------------------------------------------------------------------


def test_nominations_end_with_their_plan():
    cluster = cluster_of(150)
    for name in ("a", "b"):
        cluster.create(name, whole=4)
    assert nominations(cluster)
    tick_at(cluster, BARRIER_S)
    assert cluster.reserved() == 0
    assert not nominations(cluster)


def test_nominations_of_a_former_run_end_when_the_scheduler_starts():
    cluster = cluster_of(150)
    for name in ("a", "b"):
        cluster.create(name, whole=4)
    for name, node in nominations(cluster).items():
        cluster.pods[name]["status"]["nominatedNodeName"] = node
    cluster.start()
    assert not nominations(cluster)


def test_the_nomination_of_a_pod_that_is_moved_is_of_its_new_node():
    cluster = cluster_of(150)
    for name in ("a", "b"):
        cluster.create(name, whole=4)
    (planned,) = nominations(cluster).values()
    cluster.pods["a"]["status"]["nominatedNodeName"] = planned
    named = [node.name for node in cluster.nodes if node.name != planned][:120]
    (node,) = cluster.filter("a", named).nodes
    assert node in named


# -- one refusal moves one pod ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [4, 8, 60, 150])
def test_a_node_that_kube_scheduler_rejects_for_one_pod_moves_that_pod_alone(nodes):
    cluster = cluster_of(nodes)
    for name in NAMES[:3]:
        cluster.create(name, replicas=3, whole=4)
    before = {name: cluster.filter(name).nodes[0] for name in NAMES[:3]}
    for name in NAMES[1:3]:
        cluster.bind(name, before[name])
    cluster.pods["a"]["status"]["nominatedNodeName"] = before["a"]
    accepted = [node.name for node in cluster.nodes if node.name not in before.values()]
    (moved,) = cluster.filter("a", accepted).nodes
    assert moved in accepted
    cluster.bind("a", moved)
    on = before | {"a": moved}
    for name in NAMES[:3]:
        cluster.write(name, cluster.bind(name, on[name]))


def test_anti_affinity_that_the_plan_does_not_know_costs_one_call_a_pod():
    """kube-scheduler does not name the nodes of pods that it has placed, as for one pod a node."""
    cluster = cluster_of(8, gpus=8)
    for name in NAMES:
        cluster.create(name, replicas=6, whole=1)
    taken = {}
    for name in NAMES:
        free = [node.name for node in cluster.nodes if node.name not in taken.values()]
        (taken[name],) = cluster.filter(name, free).nodes
        cluster.bind(name, taken[name])
    for name in NAMES:
        cluster.write(name, cluster.bind(name, taken[name]))
    assert len(set(taken.values())) == 6


# -- more pods than have to start together ---------------------------------------------------------------------------


def test_a_job_with_more_pods_than_its_number_starts_with_those_that_fit():
    cluster = cluster_of(1, gpus=8)
    for name in NAMES:
        cluster.create(name, replicas=4, whole=2)
    starting = [name for name in NAMES if cluster.filter(name).nodes]
    assert len(starting) == 4
    cluster.run(*starting)
    assert cluster.reserved() == 0


def test_the_rest_is_added_one_by_one_as_room_is_made():
    cluster = cluster_of(1, gpus=8)
    for name in NAMES:
        cluster.create(name, replicas=4, whole=2)
    starting = [name for name in NAMES if cluster.filter(name).nodes]
    cluster.run(*starting)
    left = [name for name in NAMES if name not in starting]
    cluster.nodes = (*cluster.nodes, whole_node("n001", gpus=2))
    cluster.scheduling.node_seen(cluster.nodes[1])
    tick_at(cluster, 20.0)
    added = [name for name in left if cluster.filter(name).nodes]
    assert len(added) == 1
    cluster.run(*added)


def test_fewer_than_the_number_never_start():
    cluster = cluster_of(1, gpus=8)
    for name in NAMES:
        cluster.create(name, replicas=5, whole=2)
    assert not any(cluster.filter(name).nodes for name in NAMES)
    assert cluster.reserved() == 0
