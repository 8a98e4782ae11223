"""Nodes are kept for the first job that waits, from the pods that come after it."""

from dataclasses import replace

import pytest

from gpuscheduler.core.calls import Nudge
from gpuscheduler.core.constraints.node_site import Taint
from gpuscheduler.core.jobs.jobs import JobLimits
from gpuscheduler.core.jobs.priority.precedence import MOST_CLAIMS, NODES_AGAIN_S
from gpuscheduler.core.jobs.turns import EARLY_S
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import LeastFree, whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest
from tests.unit.gpuscheduler.core.work import calls_of

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


def half_full_cluster():
    """Three nodes of 4 GPUs. The pod `r0` has half of the node `n0`, and so on."""
    made = Cluster(*(whole_node(f"n{number}", gpus=4) for number in range(3)))
    for number in range(3):
        name = f"r{number}"
        made.create(name, job=None, asked=False, whole=2)
        assert made.filter(name, [f"n{number}"]).nodes
        made.write(name, made.bind(name, f"n{number}"))
    return made


@pytest.fixture
def cluster():
    return half_full_cluster()


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


def test_pods_are_evicted_for_a_job_on_the_nodes_that_kube_scheduler_proposes(cluster):
    """Of a large cluster, it proposes a part."""
    unasked_job(cluster, priority=1000)
    for number in range(3):
        nodes = cluster.scheduling.preempt(
            pod_facts(cluster.pods["a"]), {f"n{number}": [f"r{number}"]}, cluster.now + 60.0 * number
        )
        assert nodes == {f"n{number}": [f"r{number}"]}


@pytest.mark.parametrize("shown", ["never", "later", "the second only"])
def test_pods_are_evicted_for_a_job_although_the_watch_is_late(cluster, shown):
    """kube-scheduler has a watch of its own, and does not ask a second time."""
    see = cluster.scheduling.pod_seen
    cluster.scheduling.pod_seen = lambda pod, now: None
    for name in ("a", "b"):
        cluster.create(name, whole=4, asked=False, priority=1000)
    cluster.scheduling.pod_seen = see
    assert preempted(cluster, "a") == {}
    if shown != "never":
        names = "ab" if shown == "later" else "b"
        for name in names:
            see(pod_facts(cluster.pods[name]), cluster.now)
    assert len(preempted(cluster, "b")) == 2


def test_no_pods_are_evicted_for_a_job_with_a_pod_that_the_watch_never_shows(cluster):
    see = cluster.scheduling.pod_seen
    cluster.scheduling.pod_seen = lambda pod, now: None
    for name in ("a", "b"):
        cluster.create(name, whole=4, asked=False, priority=1000)
    cluster.scheduling.pod_seen = see
    assert preempted(cluster, "a") == {}
    cluster.now += EARLY_S
    assert preempted(cluster, "b") == {}


def test_pods_are_evicted_for_the_next_pod_of_a_job_while_freed_gpus_are_kept_for_the_first():
    cluster = Cluster(*(whole_node(f"n{number}", gpus=4) for number in range(2)))
    for number in range(2):
        name = f"r{number}"
        cluster.create(name, job=None, asked=False, whole=2)
        assert cluster.filter(name, [f"n{number}"]).nodes
        cluster.write(name, cluster.bind(name, f"n{number}"))
    unasked_job(cluster, priority=1000)
    assert cluster.scheduling.preempt(pod_facts(cluster.pods["b"]), {"n0": ["r0"]}, cluster.now)
    cluster.pods["b"]["status"]["nominatedNodeName"] = "n0"
    cluster.scheduling.pod_seen(pod_facts(cluster.pods["b"]), cluster.now)
    cluster.ends("r0")
    assert cluster.reserved() == 1
    victims = cluster.scheduling.preempt(pod_facts(cluster.pods["a"]), {"n1": ["r1"]}, cluster.now)
    assert victims == {"n1": ["r1"]}


def partly_free(cluster):
    """Two pods that each want a whole node. One of the nodes is free, which kube-scheduler names alone."""
    cluster.ends("r0")
    for name in ("a", "b"):
        cluster.create(name, whole=4, asked=False, priority=1000)
    for name in ("a", "b"):
        assert not cluster.filter(name, ["n0"]).nodes
    cluster.at(cluster.now)


def test_nodes_that_are_full_are_kept_beside_one_that_is_free(cluster):
    partly_free(cluster)
    assert len(kept(cluster)) == 2
    assert "n0" in kept(cluster)


def test_pods_are_evicted_beside_a_node_that_is_free(cluster):
    partly_free(cluster)
    proposed = {"n1": ["r1"], "n2": ["r2"]}
    victims = cluster.scheduling.preempt(pod_facts(cluster.pods["a"]), proposed, cluster.now)
    assert victims in ({"n1": ["r1"]}, {"n2": ["r2"]})


def test_nodes_that_kube_scheduler_rejects_although_they_have_room_are_not_kept(cluster):
    """For example because a volume is elsewhere, which only kube-scheduler knows."""
    cluster.ends("r1")
    partly_free(cluster)
    assert kept(cluster) == {"n0", "n2"}
    victims = cluster.scheduling.preempt(pod_facts(cluster.pods["a"]), {"n2": ["r2"]}, cluster.now)
    assert victims == {"n2": ["r2"]}


def test_a_claim_leaves_a_node_that_kube_scheduler_rejects_since(cluster):
    cluster.ends("r1")
    names = unasked_job(cluster, priority=1000)
    assert "n1" in kept(cluster)
    for name in names:
        cluster.filter(name, [])
    cluster.at(cluster.now + 1)
    assert kept(cluster) == {"n0", "n2"}


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


@pytest.mark.parametrize(
    ("other", "is_evicted"),
    [
        ({"priority": 1000}, True),
        ({"priority": 500}, True),
        # The running pods have priority 0.
        ({"priority": 0}, False),
        ({"priority": -5}, False),
        ({"priority": 1000, "preemptionPolicy": "Never"}, False),
    ],
)
def test_one_urgent_pod_evicts_none_for_others_of_its_job_that_could_not(cluster, other, is_evicted):
    cluster.create("a", whole=4, asked=False, priority=1000)
    cluster.create("b", whole=4, asked=False, priority=other["priority"])
    for name in ("a", "b"):
        cluster.pods[name]["status"]["conditions"] = SHORT
    cluster.pods["b"]["spec"] |= other
    for name in ("a", "b"):
        cluster.scheduling.pod_seen(pod_facts(cluster.pods[name]), cluster.now)
    assert bool(preempted(cluster, "a")) is is_evicted


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
    cluster.at(cluster.now + 1)
    assert gone not in kept(cluster)
    assert len(kept(cluster)) == 2


def test_a_claim_of_an_overdue_job_ends_and_comes_again_after_a_pause(cluster):
    """One pod that never ends may keep the job from starting for ever."""
    cluster.scheduling.jobs.precedence.patience_s = PATIENCE_S
    waiting_job(cluster)
    kept_at = []
    for minute in range(10, 160, 5):
        cluster.at(minute * 60.0)
        if kept(cluster):
            kept_at.append(minute)
    first = range(10, 20, 5)
    second = range(40, 60, 5)
    third = range(100, 140, 5)
    assert kept_at == [*first, *second, *third], "each time twice as long, and twice as long a pause"


def test_the_next_overdue_job_has_its_turn_while_the_first_pauses(cluster):
    cluster.scheduling.jobs.precedence.patience_s = PATIENCE_S
    waiting_job(cluster)
    cluster.at(PATIENCE_S)
    cluster.at(PATIENCE_S * 1.9)
    assert cluster.scheduling.jobs.precedence.claim.key.name == "j"
    for name in ("c", "d"):
        cluster.create(name, job="k", whole=4, created=LATER)
    cluster.at(PATIENCE_S * 2)
    cluster.at(PATIENCE_S * 2.95)
    assert not kept(cluster), "other pods have their turn first"
    cluster.at(PATIENCE_S * 3)
    assert cluster.scheduling.jobs.precedence.claim.key.name == "k"


@pytest.mark.parametrize("replaced", [False, True])
def test_many_overdue_jobs_keep_nodes_for_half_of_the_time_at_most(cluster, replaced):
    """Of one tenant or of several, and also if one that keeps nodes is deleted and made again."""
    precedence = cluster.scheduling.jobs.precedence
    precedence.patience_s = PATIENCE_S
    waiting_job(cluster)
    kept_for = 0
    keepers = set()
    minutes = range(1, 180)
    for minute in minutes:
        cluster.at(minute * 60.0)
        if minute % 5 == 0:
            for name in ("c", "d"):
                cluster.create(f"{name}{minute}", job=f"k{minute}", whole=4, created=LATER)
        cluster.at(cluster.now)
        if precedence.claim is None:
            continue
        kept_for += 1
        number = precedence.claim.key.name[1:]
        keepers.add(number)
        has_its_time = precedence.claim.since < cluster.now - 180
        if replaced and number and has_its_time:
            for name in ("c", "d"):
                cluster.ends(f"{name}{number}")
    assert len(keepers) > 1
    assert kept_for <= len(minutes) / 2


def test_an_overdue_job_of_high_priority_still_keeps_its_nodes_from_lower_ones(cluster):
    cluster.scheduling.jobs.precedence.patience_s = PATIENCE_S
    waiting_job(cluster, priority=1000)
    for minute in range(0, 160, 5):
        cluster.at(minute * 60.0)
        assert kept(cluster)


@pytest.mark.parametrize("how", ["cordoned", "not ready"])
@pytest.mark.parametrize("asked", [True, False])
def test_a_claim_follows_the_nodes_that_accept_the_job(cluster, asked, how):
    if asked:
        waiting_job(cluster, priority=1000)
    else:
        unasked_job(cluster, priority=1000)
    gone = min(kept(cluster))
    others = [node.name for node in cluster.nodes if node.name != gone]
    facts = cluster.scheduling.usage.nodes[gone].facts
    taint = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
    site = replace(facts.site, cordoned=True) if how == "cordoned" else replace(facts.site, taints=(taint,))
    cluster.scheduling.node_seen(replace(facts, site=site))
    cluster.at(cluster.now + 1)
    assert kept(cluster) == set(others)


def test_a_claim_stays_where_nodes_are_not_named_for_lack_of_gpus(cluster):
    """kube-scheduler names the one node that is free by now, and leaves out the other one, which is not."""
    names = unasked_job(cluster, priority=1000)
    nodes = kept(cluster)
    first = min(nodes)
    cluster.ends(f"r{first[1]}")
    for name in names:
        cluster.filter(name, [first])
    cluster.at(cluster.now + 1)
    assert kept(cluster) == nodes


def test_a_claim_stays_where_it_is_while_pods_come_and_go(cluster):
    waiting_job(cluster, priority=1000)
    nodes = kept(cluster)
    (other,) = {"n0", "n1", "n2"} - nodes
    cluster.ends(f"r{other[1]}")
    cluster.at(cluster.now + 1)
    assert kept(cluster) == nodes


def test_events_of_a_job_with_kept_nodes_have_no_plan_made():
    """Each of hundreds of pods has several events while it waits."""
    cluster = Cluster(*(whole_node(f"n{number}", gpus=4) for number in range(32)))
    cluster.create("r", job=None, asked=False, whole=2)
    cluster.write("r", cluster.bind("r", cluster.filter("r").nodes[0]))
    for number in range(64):
        made = cluster.create(f"p{number}", replicas=64, whole=2, asked=False, priority=1000)
        made["status"]["conditions"] = SHORT
        cluster.scheduling.pod_seen(pod_facts(made), cluster.now)
    cluster.at(cluster.now)
    assert len(kept(cluster)) == 32
    seen = pod_facts(cluster.pods["p0"])
    calls, _ = calls_of(lambda: cluster.scheduling.pod_seen(seen, cluster.now))
    assert calls < 2000
    cluster.scheduling.usage.frees += 1
    planned, _ = calls_of(lambda: cluster.scheduling.pod_seen(seen, cluster.now))
    assert planned > 4 * calls, "its nodes are compared with the cluster when that has changed"


def test_nodes_with_pods_of_a_higher_priority_are_not_kept():
    cluster = Cluster(*(whole_node(f"n{number}", gpus=4) for number in range(3)))
    pods = {"urgent": ("n0", 5000)}
    for number in (1, 2):
        pods |= {f"p{number}": (f"n{number}", 0), f"q{number}": (f"n{number}", 1000)}
    for name, (node, priority) in pods.items():
        cluster.create(name, job=None, asked=False, whole=2, priority=priority)
        assert cluster.filter(name, [node]).nodes
        cluster.write(name, cluster.bind(name, node))
    waiting_job(cluster, priority=1000)
    assert kept(cluster) == {"n1", "n2"}


def test_nodes_are_chosen_again_when_there_were_none(cluster):
    for number in range(3):
        cluster.create(f"u{number}", job=None, asked=False, whole=2, priority=5000)
        assert cluster.filter(f"u{number}", [f"n{number}"]).nodes
        cluster.write(f"u{number}", cluster.bind(f"u{number}", f"n{number}"))
    waiting_job(cluster, priority=1000)
    assert not kept(cluster)
    for number in range(2):
        cluster.ends(f"u{number}")
    cluster.at(cluster.now + NODES_AGAIN_S)
    assert len(kept(cluster)) == 2


def test_a_job_that_fits_nowhere_leaves_the_claim_to_the_next_one(cluster):
    waiting_job(cluster, priority=1000)
    nodes = kept(cluster)
    for name in ("c", "d", "e", "f"):
        cluster.create(name, job="k", replicas=4, whole=4, priority=2000)
    cluster.at(cluster.now + 1)
    assert kept(cluster) == nodes


def test_a_job_of_the_default_priority_keeps_nodes_from_pods_of_a_negative_one(cluster):
    cluster.create("spot", job=None, asked=False, whole=4, priority=-10)
    assert not cluster.filter("spot").nodes
    waiting_job(cluster)
    assert len(kept(cluster)) == 2
    (other,) = {"n0", "n1", "n2"} - kept(cluster)
    assert cluster.small("s1", priority=-10).nodes == (other,)
    assert not cluster.small("s2", priority=-10).nodes
    assert all(cluster.small(f"t{number}").nodes for number in range(2)), "its own priority is not behind it"


def nodes_of(cluster, name):
    """The nodes that are kept for a job."""
    claims = cluster.scheduling.jobs.precedence.claims.values()
    return next((claim.nodes for claim in claims if claim.key.name == name), frozenset())


def full_cluster(nodes):
    """Nodes of 4 GPUs, with a running pod of 2 on each."""
    made = Cluster(*(whole_node(f"n{number}", gpus=4) for number in range(nodes)))
    for number in range(nodes):
        name = f"r{number}"
        made.create(name, job=None, asked=False, whole=2)
        assert made.filter(name, [f"n{number}"]).nodes
        made.write(name, made.bind(name, f"n{number}"))
    return made


def second_job(cluster, priority=900, **given):
    for name in ("c", "d"):
        cluster.create(name, job="k", whole=4, priority=priority, created=LATER, **given)
    cluster.at(cluster.now + 1)


@pytest.mark.parametrize("priority", [900, 1000], ids=["lower", "the same"])
def test_a_second_job_of_high_priority_keeps_other_nodes(priority):
    cluster = full_cluster(5)
    waiting_job(cluster, priority=1000)
    second_job(cluster, priority)
    assert len(nodes_of(cluster, "j")) == len(nodes_of(cluster, "k")) == 2
    assert nodes_of(cluster, "j").isdisjoint(nodes_of(cluster, "k"))
    (other,) = {node.name for node in cluster.nodes} - nodes_of(cluster, "j") - nodes_of(cluster, "k")
    assert cluster.small("s1").nodes == (other,)
    answer = cluster.small("s2")
    for name in ("j", "k"):
        why = f"node(s) were kept for job {name}, which comes first"
        assert {answer.unresolvable[node] for node in nodes_of(cluster, name)} == {why}


def test_both_jobs_start_when_their_nodes_are_free():
    cluster = full_cluster(4)
    waiting_job(cluster, priority=1000)
    second_job(cluster)
    for number in range(4):
        cluster.small(f"s{number}")
        cluster.ends(f"r{number}")
        cluster.at(cluster.now + 1)
    first = cluster.run("a", "b")
    second = cluster.run("c", "d")
    assert {write.node for write in (*first.values(), *second.values())} == {f"n{number}" for number in range(4)}
    assert not cluster.scheduling.jobs.precedence.claims


def test_a_second_job_leaves_its_nodes_to_an_urgent_one_and_takes_others():
    cluster = full_cluster(6)
    second_job(cluster)
    former = nodes_of(cluster, "k")
    waiting_job(cluster, priority=1000)
    cluster.at(cluster.now + 1)
    assert nodes_of(cluster, "j") == former, "the first nodes are the cheapest"
    assert len(nodes_of(cluster, "k")) == 2
    assert nodes_of(cluster, "j").isdisjoint(nodes_of(cluster, "k"))


def test_a_second_job_for_which_no_nodes_are_left_keeps_none():
    cluster = full_cluster(3)
    waiting_job(cluster, priority=1000)
    second_job(cluster)
    assert len(nodes_of(cluster, "j")) == 2
    assert not nodes_of(cluster, "k")
    assert cluster.small("s1").nodes, "the third node is of no use for the second job"


def test_few_jobs_keep_nodes_at_one_time():
    """Each choice of nodes takes as long as a plan. The first jobs keep theirs, whichever of them came first."""
    cluster = full_cluster(12)
    for number in range(12):
        for name in ("a", "b"):
            cluster.create(f"{name}{number}", job=f"j{number}", whole=3, priority=100 + number)
        cluster.at(cluster.now + 1)
    claims = cluster.scheduling.jobs.precedence.claims
    kept_nodes = [name for claim in claims.values() for name in claim.nodes]
    assert len(kept_nodes) == len(set(kept_nodes))
    assert [key.name for key in claims] == [f"j{number}" for number in range(11, 5, -1)]
    assert len(claims) <= MOST_CLAIMS


def test_one_overdue_job_keeps_nodes_beside_those_of_high_priority():
    cluster = full_cluster(6)
    cluster.scheduling.jobs.precedence.patience_s = PATIENCE_S
    waiting_job(cluster, priority=1000)
    for job in ("k", "l"):
        for number in range(2):
            cluster.create(f"{job}{number}", job=job, whole=4)
    cluster.at(PATIENCE_S)
    overdue = [claim.key.name for claim in cluster.scheduling.jobs.precedence.claims.values() if claim.overdue]
    assert overdue == ["j"]


def test_other_nodes_are_kept_when_a_pod_of_a_higher_priority_takes_one():
    """Nothing becomes free by that."""
    cluster = full_cluster(4)
    waiting_job(cluster, priority=1000)
    taken = min(kept(cluster))
    cluster.create("urgent", job=None, asked=False, whole=2, priority=5000)
    assert cluster.filter("urgent", [taken]).nodes
    cluster.write("urgent", cluster.bind("urgent", taken))
    cluster.at(cluster.now)
    assert taken not in kept(cluster)
    assert len(kept(cluster)) == 2
