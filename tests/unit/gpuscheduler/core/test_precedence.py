"""Nodes are kept for the first job that waits, from the pods that come after it."""

import pytest

from gpuscheduler.core.calls import Nudge
from gpuscheduler.core.jobs.jobs import JobLimits
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import LeastFree, whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest

PATIENCE_S = 600.0
LATER = "2026-01-02T00:00:00Z"
WHY = "node(s) were kept for job j, which comes first"


class Cluster(JobUnderTest):
    """Two nodes of 4 GPUs, with a running pod on each, and an operator's patience."""

    patience_s = 0.0

    def start(self):
        super().start()
        self.scheduling.jobs.precedence.patience_s = self.patience_s

    def at(self, now):
        """Time passes, and what is due is done."""
        self.now = now
        for _ in range(20):
            due = self.scheduling.next_due(self.now)
            if due is None or due > self.now:
                break
            self.scheduling.tick(self.now)
            self.act()

    def small(self, name, **given):
        """A pod of its own; the answer to its first call."""
        self.create(name, job=None, asked=False, whole=2, **{"created": LATER, **given})
        return self.filter(name)

    def ends(self, name):
        self.scheduling.pod_gone(name, self.now)
        self.act()


@pytest.fixture
def cluster():
    made = Cluster(*(whole_node(f"n{number}", gpus=4) for number in range(3)))
    for number in range(3):
        name = f"r{number}"
        made.create(name, job=None, asked=False, whole=2)
        assert made.filter(name, [f"n{number}"]).nodes
        made.write(name, made.bind(name, f"n{number}"))
    return made


def waiting_job(cluster, **given):
    """Two pods that each want a whole node, none of which is free."""
    for name in ("a", "b"):
        cluster.create(name, whole=4, **given)
    cluster.at(cluster.now)
    assert cluster.reserved() == 0


def kept(cluster):
    claim = cluster.scheduling.jobs.precedence.claim
    return claim.nodes if claim else frozenset()


def test_a_waiting_job_keeps_its_nodes_from_pods_of_lower_priority(cluster):
    waiting_job(cluster, priority=1000)
    assert len(kept(cluster)) == 2
    (other,) = {"n0", "n1", "n2"} - kept(cluster)
    assert cluster.small("s1").nodes == (other,), "other nodes are free for all"
    answer = cluster.small("s2")
    assert not answer.nodes
    assert {answer.unresolvable[name] for name in kept(cluster)} == {WHY}, "no pod is evicted there for it"


def test_pods_of_another_namespace_do_not_learn_the_name_of_the_job(cluster):
    waiting_job(cluster, priority=1000)
    cluster.small("s1", namespace="other")
    answer = cluster.small("s2", namespace="other")
    why = "node(s) were kept for a job of another namespace, which comes first"
    assert {answer.unresolvable[name] for name in kept(cluster)} == {why}


def test_pods_of_the_same_or_a_higher_priority_take_what_is_free(cluster):
    waiting_job(cluster, priority=1000)
    assert all(cluster.small(f"s{number}", priority=1000).nodes for number in range(3))


def test_jobs_of_the_default_priority_keep_nothing(cluster):
    waiting_job(cluster)
    assert not kept(cluster)
    assert all(cluster.small(f"s{number}").nodes for number in range(3))


def test_the_job_starts_when_its_nodes_are_free_and_the_others_go_on(cluster):
    waiting_job(cluster, priority=1000)
    nodes = kept(cluster)
    assert cluster.small("s1").nodes
    assert not cluster.small("s2").nodes
    on = {made["spec"]["nodeName"]: name for name, made in cluster.pods.items() if "nodeName" in made["spec"]}
    for node in nodes:
        cluster.ends(on[node])
    cluster.at(cluster.now + 1)
    writes = cluster.run("a", "b")
    assert {write.node for write in writes.values()} == nodes
    assert not kept(cluster)


SHORT = [
    {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient aliyun.com/gpu."}
]


def unasked_job(cluster, count=2, **given):
    """Its pods want whole nodes. No node has as much in all, so kube-scheduler does not ask about them."""
    names = ("a", "b", "c", "d")[:count]
    for name in names:
        made = cluster.create(name, replicas=count, whole=4, asked=False, **given)
        made["status"]["conditions"] = SHORT
        cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    cluster.at(cluster.now)
    return names


def test_nodes_are_kept_for_a_job_that_kube_scheduler_does_not_ask_about(cluster):
    unasked_job(cluster, priority=1000)
    assert len(kept(cluster)) == 2
    assert cluster.reserved() == 0
    assert cluster.small("s1").nodes
    assert not cluster.small("s2").nodes


def test_a_job_that_is_not_complete_keeps_nothing(cluster):
    made = cluster.create("a", replicas=2, whole=4, asked=False, priority=1000)
    made["status"]["conditions"] = SHORT
    cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    cluster.at(cluster.now)
    assert not kept(cluster)


def preempted(cluster, name):
    """Nodes on which kube-scheduler may evict the pods of lower priority for a pod."""
    proposed = {f"n{number}": [f"r{number}"] for number in range(3)}
    return cluster.scheduling.preempt(pod_facts(cluster.pods[name]), proposed, cluster.now)


def test_pods_are_evicted_for_a_job_that_starts_whole_then(cluster):
    names = unasked_job(cluster, priority=1000)
    nodes = preempted(cluster, names[0])
    assert len(nodes) == 2
    assert all(nodes[f"n{number}"] == [f"r{number}"] for number in range(3) if f"n{number}" in nodes)


def test_pods_are_evicted_for_a_job_before_kube_scheduler_has_written_that_there_is_no_room(cluster):
    """kube-scheduler asks for victims first, and tries the pod again only when one of them has ended."""
    for name in ("a", "b"):
        cluster.create(name, whole=4, asked=False, priority=1000)
    assert preempted(cluster, "a") == {}, "the other pod may have no node at all"
    assert len(preempted(cluster, "b")) == 2
    assert len(preempted(cluster, "a")) == 2


@pytest.mark.parametrize("text", ["Insufficient cpu", "Insufficient memory", "Too many pods"])
def test_nodes_are_kept_for_a_job_that_lacks_something_else_than_gpus(text):
    cluster = Cluster(*(whole_node(f"n{number}", gpus=4) for number in range(2)))
    message = f"0/2 nodes are available: 2 {text}."
    for name in ("a", "b"):
        made = cluster.create(name, whole=1, asked=False, priority=1000)
        made["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
        cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    cluster.at(cluster.now)
    assert kept(cluster)


@pytest.mark.parametrize("why", ["too large", "too low", "not complete"])
def test_no_pod_is_evicted_for_a_job_that_would_not_start(cluster, why):
    if why == "too large":
        names = unasked_job(cluster, count=4, priority=1000)
    elif why == "too low":
        names = unasked_job(cluster)
    else:
        names = ("a",)
        cluster.create("a", replicas=2, whole=4, asked=False, priority=1000)
    assert preempted(cluster, names[0]) == {}


@pytest.mark.parametrize("end", ["deleted", "raised"])
def test_the_nodes_are_free_again_when_the_job_does_not_wait_any_more(cluster, end):
    waiting_job(cluster, priority=1000)
    for name in ("s1", "s2"):
        cluster.small(name)
    assert kept(cluster)
    cluster.done.clear()
    cluster.ends("a")
    if end == "deleted":
        cluster.ends("b")
    assert not kept(cluster)
    cluster.at(cluster.now + 10)
    assert "s2" in [action.pod.name for action in cluster.done if isinstance(action, Nudge)], "it is woken"
    assert cluster.filter("s2").nodes


def test_another_job_leaves_the_nodes_to_the_first(cluster):
    waiting_job(cluster, priority=1000)
    for name in ("c", "d"):
        cluster.create(name, job="k", whole=2, created=LATER)
    cluster.at(cluster.now + 1)
    answers = [cluster.filter(name) for name in ("c", "d")]
    assert not any(answer.nodes for answer in answers)
    (why,) = set(answers[0].unresolvable.values())
    assert "2 node(s) were kept for job j, which comes first" in why


def test_a_job_of_higher_priority_takes_precedence_over_the_first(cluster):
    waiting_job(cluster, priority=1000)
    for name in ("c", "d"):
        cluster.create(name, job="k", whole=4, priority=2000, created=LATER)
    cluster.at(cluster.now + 1)
    assert cluster.scheduling.jobs.precedence.claim.key.name == "k"


def test_a_job_that_no_empty_cluster_has_room_for_keeps_nothing(cluster):
    for name in ("a", "b", "c", "d"):
        cluster.create(name, replicas=4, whole=4, priority=1000)
    cluster.at(cluster.now)
    assert not kept(cluster)


def test_a_job_that_has_waited_for_too_long_keeps_its_nodes_from_later_pods(cluster):
    cluster.scheduling.jobs.precedence.patience_s = PATIENCE_S
    waiting_job(cluster)
    cluster.at(PATIENCE_S - 1)
    assert not kept(cluster)
    cluster.at(PATIENCE_S)
    assert len(kept(cluster)) == 2
    assert cluster.small("s1").nodes
    assert not cluster.small("s2").nodes
    older = {"created": "2025-12-31T00:00:00Z"}
    assert cluster.small("s3", **older).nodes, "pods that came before the job are not behind it"


def test_patience_is_a_setting_of_the_core():
    assert Scheduling(LeastFree(), job_limits=JobLimits(patience_s=7.0)).jobs.precedence.patience_s == 7.0


def test_a_claim_follows_the_cluster_when_a_node_goes(cluster):
    waiting_job(cluster, priority=1000)
    gone = min(kept(cluster))
    cluster.scheduling.node_gone(gone)
    cluster.nodes = tuple(node for node in cluster.nodes if node.name != gone)
    cluster.scheduling.pod_seen(pod_facts(cluster.pods["a"]), cluster.now)
    cluster.scheduling.usage.frees += 1
    cluster.at(cluster.now + 1)
    assert gone not in kept(cluster)
    assert len(kept(cluster)) == 2
