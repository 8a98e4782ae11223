"""When a job is planned, with how many of its pods, and what happens to the others of a plan when one is refused."""

from dataclasses import replace
from itertools import permutations

import pytest

from gpuagent.domain.scheduling.node_gpus import NodeGpu, NodeGpus
from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import BindRefused, BindWrite, Nominate, Nudge
from gpuscheduler.core.constraints.resources import Resources
from gpuscheduler.core.jobs.due_jobs import CALL_S
from gpuscheduler.core.jobs.job import RETRY_FIRST_S
from gpuscheduler.core.jobs.planning.planning import MOST_DEFERRALS, UNSUITABLE_S
from gpuscheduler.core.jobs.planning.start_plans import BARRIER_S
from gpuscheduler.core.jobs.turns import MOST_EARLY, EarlyCalls
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import node, pod_object, whole_node
from tests.unit.gpuscheduler.core.random_rules import accepted, node_labels, put_rule
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


# -- places that depend on other pods --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(["even-1", "even-2", "fixed-1", "fixed-2"])), ids="".join)
def test_pods_start_in_any_order_although_some_suit_their_nodes_only_after_others(order):
    """Two pods are spread evenly over two zones, and count two others that may be in one zone only.

    Together, two and two are even. But kube-scheduler accepts the second one in its zone only after one of the others.
    """
    gpus = NodeGpus(tuple(NodeGpu(n, whole=True) for n in range(2)))
    cluster = JobUnderTest(*(node(name, gpus, labels=node_labels(name)) for name in ("n1", "n3")))
    for name in order:
        made = cluster.pods[name] = pod_object(
            name, uid=name, labels={JOB_LABEL: "j", REPLICAS_LABEL: "4"}, namespace="default", whole=1
        )
        put_rule(made, "even by zone" if name.startswith("even") else "one zone only")
        cluster.scheduling.pod_seen(pod_facts(made), 0.0)
    cluster.act()
    cluster.done.clear()
    queue, on = list(order), {}
    for _ in range(30):
        if not queue:
            break
        name = queue.pop(0)
        made = cluster.pods[name]
        placed = [
            cluster.pods[other] | {"spec": cluster.pods[other]["spec"] | {"nodeName": where}}
            for other, where in on.items()
        ]
        answer = cluster.filter(name, accepted(made, ["n1", "n3"], placed))
        if answer.nodes:
            on[name] = answer.nodes[0]
            cluster.bind(name, on[name])
        queue += [other for other in dict.fromkeys(nudged(cluster)) if other not in {*on, *queue}]
        cluster.done.clear()
    assert sorted(on.values()) == ["n1", "n1", "n3", "n3"]
    writes = [cluster.bind(name, where) for name, where in on.items()]
    assert all(isinstance(write, BindWrite) for write in writes), writes


def by_kube_scheduler(cluster, order, seconds):
    """Have kube-scheduler try the pods that are not in bind in this order, twice a second; where they are then."""
    on = {}
    for _ in range(2 * seconds):
        for name in order:
            if name in on:
                continue
            placed = []
            for other, where in on.items():
                made = cluster.pods[other]
                placed.append(made | {"spec": made["spec"] | {"nodeName": where}})
            names = accepted(cluster.pods[name], [node.name for node in cluster.nodes], placed)
            answer = cluster.filter(name, names) if names else None
            if answer and answer.nodes:
                on[name] = answer.nodes[0]
                cluster.bind(name, on[name])
        answers = {name: cluster.bind(name, where) for name, where in on.items()}
        if len(answers) == len(order) and all(isinstance(answer, BindWrite) for answer in answers.values()):
            break
        for name, answer in answers.items():
            if isinstance(answer, BindRefused):
                del on[name]
        cluster.now += 0.5
        cluster.scheduling.tick(cluster.now)
        cluster.act()
    return on


@pytest.mark.parametrize("order", list(permutations(["even", "near"])), ids="".join)
def test_pods_start_in_any_order_although_one_suits_its_node_only_before_others(order):
    """One is to be near pods of its own kind, so that it may be in any zone as long as it is the first.

    The other one is spread evenly, and has its GPUs in the other zone. kube-scheduler comes to the pods in one order,
    whatever it has placed them in before, for example because their priorities differ.
    """
    cluster = cluster_with_a_pod_that_comes_first(order)
    assert by_kube_scheduler(cluster, order, seconds=60) == {"near": "n1", "even": "n3"}


def test_the_last_pod_of_a_plan_in_order_waits_and_says_so():
    cluster = cluster_with_a_pod_that_comes_first(["even", "near"])
    assert cluster.filter("even").nodes == ("n3",)
    cluster.bind("even", "n3")
    assert not cluster.filter("near", ["n3"]).nodes
    assert cluster.reserved() == 0
    cluster.done.clear()
    cluster.now = RETRY_FIRST_S
    cluster.scheduling.tick(cluster.now)
    cluster.act()
    assert nudged(cluster) == ["near"]
    answer = cluster.filter("even")
    assert set(answer.unresolvable.values()) == {
        "node(s) not given to job j: planned on node n3, which suits the pod after other pods of the job"
    }
    assert cluster.filter("near").nodes == ("n1",)
    cluster.done.clear()
    cluster.bind("near", "n1")
    assert nudged(cluster) == ["even"]
    assert cluster.filter("even", ["n3"]).nodes == ("n3",)


def test_a_place_that_is_refused_in_order_too_is_passed_over():
    """kube-scheduler has another reason, which it gives the extender as little as any."""
    cluster = cluster_with_a_pod_that_comes_first(["even", "near"])
    cluster.filter("even")
    cluster.bind("even", "n3")
    cluster.filter("near", ["n3"])
    cluster.now = RETRY_FIRST_S
    cluster.scheduling.tick(cluster.now)
    assert cluster.reserved() == 2
    assert not cluster.filter("near", ["n3"]).nodes
    assert cluster.reserved() == 0
    for cluster.now in range(2, int(UNSUITABLE_S)):
        cluster.scheduling.tick(cluster.now)
        assert cluster.reserved() == 0


def cluster_with_a_pod_that_comes_first(names):
    """A job that was planned with `near` on n1 and then `even` on n3."""
    shared = NodeGpus((NodeGpu(0, 10),))
    whole = NodeGpus((NodeGpu(0, whole=True),))
    cluster = JobUnderTest(node("n1", shared, labels=node_labels("n1")), node("n3", whole, labels=node_labels("n3")))
    for name in names:
        asked = {"mem": 1} if name == "near" else {"whole": 1}
        labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
        made = cluster.pods[name] = pod_object(name, uid=name, labels=labels, **asked)
        put_rule(made, "in one zone" if name == "near" else "even by zone")
        cluster.scheduling.pod_seen(pod_facts(made), 0.0)
    for name in names:
        cluster.filter(name)
    assert cluster.reserved() == 2
    return cluster


def test_pods_wait_for_others_of_their_plan_a_limited_number_of_times():
    """The others never come, and each search for another place takes time."""
    cluster = JobUnderTest(whole_node("n1", gpus=3), whole_node("n2", gpus=4))
    for port, (name, gpus) in enumerate([("a", 1), ("b", 1), ("c", 1), ("large", 4)], 1):
        labels = {JOB_LABEL: "j", REPLICAS_LABEL: "4"}
        made = cluster.pods[name] = pod_object(name, uid=name, labels=labels, whole=gpus)
        made["spec"]["containers"][0]["ports"] = [{"hostPort": port}]
        cluster.scheduling.pod_seen(pod_facts(made), 0.0)
    for name in cluster.pods:
        cluster.filter(name)
    assert cluster.reserved() == 4
    number = 0
    while cluster.reserved():
        assert not cluster.filter("large", ["n1"]).nodes
        number += 1
    assert number == MOST_DEFERRALS + 1


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
    for name, nominated in nominations(cluster).items():
        cluster.pods[name]["status"]["nominatedNodeName"] = nominated
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


def create_with_nic(cluster, *names):
    """Pods of a job, each with a GPU and a unit of a resource that gpuscheduler does not know."""
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: str(len(names))}
    for name in names:
        limits = {"aliyun.com/gpu": "1", "example.com/nic": "1"}
        made = pod_object(
            name, {"name": "c", "resources": {"limits": limits, "requests": limits}}, uid=name, labels=labels
        )
        cluster.pods[name] = made
        cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
        cluster.act()


def test_a_resource_that_kube_scheduler_does_not_check_keeps_no_job_from_starting():
    """By `ignoredResourceGroups`, another extender's `ignoredByScheduler`, or since a DRA driver gives it."""
    cluster = JobUnderTest(whole_node("n1", gpus=1), whole_node("n2", gpus=1))
    create_with_nic(cluster, "a", "b")
    cluster.filter("a")
    assert {*cluster.filter("b").nodes, *cluster.filter("a").nodes} == {"n1", "n2"}


def test_a_resource_of_which_the_named_nodes_have_some_is_checked():
    one_nic = Resources(cpu=96_000, pods=110, others=(("example.com/nic", 1),))
    with_nic = [replace(whole_node(name), allocatable=one_nic) for name in ("n1", "n2")]
    cluster = JobUnderTest(*with_nic, whole_node("none"))
    create_with_nic(cluster, "a", "b", "c")
    for name in ("a", "b", "c"):
        answer = cluster.filter(name, ["n1", "n2"])
    assert not answer.nodes
