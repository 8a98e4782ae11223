"""Pods of running jobs as victims: with one of them the whole job ends, so others go first."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import pod_object, whole_node
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest

MORNING, NOON = "2026-01-01T06:00:00Z", "2026-01-01T12:00:00Z"


class FullCluster(JobUnderTest):
    """Nodes of two GPUs, all in use. Pods are named after their node."""

    def __init__(self, *names):
        super().__init__(*(whole_node(name, gpus=2) for name in names))

    def single(self, name, node, **given):
        made = self.create(name, job="", whole=given.pop("whole", 1), **given)
        answer = self.filter(name, [node])
        assert answer.nodes == (node,)
        self.write(name, self.bind(name, node))
        return made

    def job(self, *places, job="j", replicas=None, shown=None, **given):
        """A job that runs, with a pod on each of these nodes. The watch has shown so many of its bindings, or all."""
        names = [f"{job}{number}" for number in range(len(places))]
        for name, node in zip(names, places, strict=True):
            # kube-scheduler names one node for each pod, as with a node selector.
            self.create(name, job=job, replicas=replicas or len(places), whole=1, asked=False, **given)
            self.filter(name, [node])
        on = {name: self.filter(name, [node]).nodes[0] for name, node in zip(names, places, strict=True)}
        for name in names:
            self.bind(name, on[name])
        for name in names[:shown]:
            self.write(name, self.bind(name, on[name]))
        return names

    def preempt(self, proposed, violations=None, **given):
        """The victims by node, for a new pod of higher priority."""
        made = pod_object("urgent", uid="urgent", priority=1000, **({"whole": 1} | given))
        self.pods["urgent"] = made
        self.scheduling.pod_seen(pod_facts(made), self.now)
        return self.scheduling.preempt(pod_facts(made), proposed, self.now, violations or {})


def test_on_one_node_a_pod_of_no_job_goes_before_one_of_a_job():
    """kube-scheduler proposes the youngest."""
    cluster = FullCluster("n1", "n2")
    cluster.single("s1", "n1", created=MORNING)
    cluster.single("s2", "n2", created=MORNING)
    (member, _) = cluster.job("n1", "n2", created=NOON)
    assert cluster.preempt({"n1": [member]}) == {"n1": ["s1"]}


def test_a_pod_of_a_job_goes_where_all_others_have_a_higher_priority():
    cluster = FullCluster("n1", "n2")
    cluster.single("s1", "n1", priority=7)
    cluster.single("s2", "n2", priority=7)
    (member, _) = cluster.job("n1", "n2", priority=3)
    assert cluster.preempt({"n1": [member]}) == {"n1": [member]}


def job_or_singles(singles=0, job=0, shown=None):
    """A job on two nodes, and two pods of no job on a third one; what kube-scheduler proposes on each node."""
    cluster = FullCluster("n1", "n2", "n3")
    for name in ("a", "b"):
        cluster.single(name, "n3", priority=singles)
    for node in ("n1", "n2"):
        cluster.single(f"high-{node}", node, priority=2000)
    first, second = cluster.job("n1", "n2", priority=job, shown=shown)
    return cluster, {"n1": [first], "n2": [second], "n3": ["a"]}


def test_a_node_where_a_job_would_end_is_left_out_if_fewer_pods_end_on_another():
    cluster, proposed = job_or_singles()
    assert cluster.preempt(proposed) == {"n3": ["a"]}


def test_a_job_counts_as_a_whole_while_the_watch_has_not_shown_that_all_of_its_pods_are_bound():
    """Its plan is written, so that each of them is bound, or about to be."""
    cluster, proposed = job_or_singles(shown=1)
    assert cluster.preempt(proposed) == {"n3": ["a"]}


def test_the_lowest_priority_counts_before_jobs():
    """As with kube-scheduler itself: a job of low priority is no shield for pods of a higher one."""
    cluster, proposed = job_or_singles(singles=7, job=3)
    assert cluster.preempt(proposed) == proposed


def test_a_budget_counts_before_jobs():
    """kube-scheduler takes the node with the fewest violations of disruption budgets first."""
    cluster, proposed = job_or_singles()
    assert cluster.preempt(proposed, {"n1": 0, "n2": 0, "n3": 1}) == proposed


@pytest.mark.parametrize(("replicas", "expected"), [(3, {"n3"}), (2, {"n1", "n2", "n3"})], ids=["none", "one"])
def test_a_job_above_its_minimum_goes_on_without_a_pod(replicas, expected):
    cluster = FullCluster("n1", "n2", "n3")
    cluster.single("a", "n3")
    for node in ("n1", "n2"):
        cluster.single(f"high-{node}", node, priority=2000)
    cluster.single("high-n4", "n3", priority=2000)
    cluster.nodes = (*cluster.nodes, whole_node("n4", gpus=1))
    cluster.scheduling.node_seen(cluster.nodes[-1])
    names = cluster.job("n1", "n2", "n4", replicas=3)
    if replicas == 2:
        for name in names:
            cluster.pods[name]["metadata"]["labels"] = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
        cluster.start()
    proposed = {"n1": [names[0]], "n2": [names[1]], "n3": ["a"]}
    assert cluster.preempt(proposed).keys() == expected


def test_what_is_proposed_for_other_reasons_than_gpus_goes():
    """For example, the pod must not be beside a pod of the job, and there is a free GPU."""
    cluster = FullCluster("n1", "n2")
    (member, _) = cluster.job("n1", "n2")
    cluster.single("s", "n2")
    assert cluster.preempt({"n1": [member]}) == {"n1": [member]}


def test_of_two_jobs_the_smaller_ends():
    cluster = FullCluster("n1", "n2", "n3", "n4", "n5")
    for node in ("n1", "n2", "n3", "n4", "n5"):
        cluster.single(f"high-{node}", node, priority=2000)
    large = cluster.job("n1", "n2", "n3")
    small = cluster.job("n4", "n5", job="k")
    proposed = {"n1": [large[0]], "n2": [large[1]], "n4": [small[0]], "n5": [small[1]]}
    assert cluster.preempt(proposed).keys() == {"n4", "n5"}
