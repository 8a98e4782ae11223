"""Pods that have to be near others of their job: kube-scheduler asks about them only when those are bound."""

import pytest

from gpuagent.domain.scheduling.node_gpus import NodeGpu, NodeGpus
from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import BindWait, BindWrite, Nominate
from gpuscheduler.core.jobs.attached import MOST_STEPS, attached
from gpuscheduler.core.jobs.planning.start_plans import BARRIER_S, COMMITTED_S
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import node, pod_object
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest

ZONE = "topology.kubernetes.io/zone"
REFUSED = "0/4 nodes are available: 4 node(s) didn't match pod affinity rules. preemption: 0/4 nodes are available."
LEADER = {"role": "leader"}


def near(*wanted, key=ZONE):
    terms = [{"topologyKey": key, "labelSelector": {"matchLabels": labels}} for labels in wanted]
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


class Cluster(JobUnderTest):
    """Four nodes of 4 GPUs in two zones."""

    def __init__(self):
        gpus = NodeGpus(tuple(NodeGpu(minor, whole=True) for minor in range(4)))
        zones = {"n0": "z0", "n1": "z1", "n2": "z0", "n3": "z1"}
        super().__init__(*(node(name, gpus, labels={ZONE: zone}) for name, zone in zones.items()))

    def add(self, name, *wanted, labels=None, replicas=3, whole=4):
        """A new pod. If it wants others near it, kube-scheduler does not ask about it."""
        own = {JOB_LABEL: "j", REPLICAS_LABEL: str(replicas), **(labels or {})}
        made = self.pods[name] = pod_object(name, uid=name, labels=own, whole=whole)
        if wanted:
            made["spec"]["affinity"] = near(*wanted)
        self.see(name)
        if wanted:
            self.refuse(name)
        else:
            self.filter(name)

    def see(self, name):
        self.scheduling.pod_seen(pod_facts(self.pods[name]), self.now)
        self.settle()

    def refuse(self, name):
        """kube-scheduler has no node for the pod, as none of those that it has to be near is on one."""
        condition = {"type": "PodScheduled", "status": "False", "message": REFUSED}
        self.pods[name]["status"]["conditions"] = [condition]
        self.see(name)

    def settle(self):
        self.act()
        for _ in range(20):
            due = self.scheduling.next_due(self.now)
            if due is None or due > self.now:
                return
            self.scheduling.tick(self.now)
            self.act()

    def start(self):
        super().start()
        self.settle()

    def bound(self):
        on = {name: made["spec"].get("nodeName") for name, made in self.pods.items()}
        return {name: node for name, node in on.items() if node}

    def try_to_bind(self, name):
        """As kube-scheduler does; whether the pod is bound now."""
        nodes = self.filter(name).nodes
        answer = self.bind(name, nodes[0]) if nodes else None
        if isinstance(answer, BindWait):
            # The plan may have been written by this very call.
            answer = self.bind(name, nodes[0])
        if isinstance(answer, BindWrite):
            self.write(name, answer)
            self.settle()
            return True
        return False


@pytest.fixture
def cluster():
    return Cluster()


def zones(cluster):
    return {int(node[1:]) % 2 for node in cluster.bound().values()}


@pytest.mark.parametrize("is_leader_first", [True, False])
def test_workers_near_their_leader_are_bound_after_it(cluster, is_leader_first):
    if is_leader_first:
        cluster.add("leader", labels=LEADER, whole=2)
    cluster.add("w1", LEADER, whole=2)
    cluster.add("w2", LEADER)
    if not is_leader_first:
        assert cluster.reserved() == 0
        cluster.add("leader", labels=LEADER, whole=2)
    assert cluster.reserved() == 3
    assert cluster.try_to_bind("leader")
    nominated = {action.pod.name: action.node for action in cluster.done if isinstance(action, Nominate)}
    assert nominated.keys() == {"w1", "w2"}
    for name in ("w1", "w2"):
        assert cluster.try_to_bind(name)
    assert {name: cluster.bound()[name] for name in nominated} == nominated
    assert len(zones(cluster)) == 1


def test_no_pod_is_bound_unless_all_fit_near_the_leader(cluster):
    """One zone has 8 GPUs."""
    cluster.add("leader", labels=LEADER)
    cluster.add("w1", LEADER)
    cluster.add("w2", LEADER)
    assert not cluster.try_to_bind("leader")
    assert cluster.reserved() == 0


def test_pods_that_follow_one_another_are_bound_in_turn(cluster):
    cluster.add("last", {"role": "second"}, whole=2)
    cluster.add("second", LEADER, labels={"role": "second"}, whole=2)
    cluster.add("leader", labels=LEADER, whole=2)
    for name in ("leader", "second", "last"):
        assert cluster.try_to_bind(name)
    assert len(zones(cluster)) == 1


def test_pods_that_wait_for_each_other_are_not_planned_and_the_reason_says_what_to_change(cluster):
    cluster.add("leader", labels=LEADER, whole=2)
    cluster.add("w1", {"role": "b"}, labels={"role": "a"}, whole=2)
    cluster.add("w2", {"role": "a"}, labels={"role": "b"}, whole=2)
    assert not cluster.try_to_bind("leader")
    assert cluster.reserved() == 0
    reason = next(iter(cluster.filter("leader").unresolvable.values()))
    assert "no node yet for 2 of its pods, such as w1, which has to be near pods that" in reason
    assert "change its affinity to pods" in reason


def test_nothing_is_reserved_for_pods_that_have_to_be_near_pods_outside_of_their_job(cluster):
    """No pod of the job can help."""
    cluster.add("leader", labels=LEADER, whole=2)
    cluster.add("w1", {"app": "database"}, whole=2)
    cluster.add("w2", {"app": "database"}, LEADER, whole=2)
    assert cluster.reserved() == 0


def test_nothing_is_reserved_before_kube_scheduler_has_said_that_nothing_but_the_affinity_is_missing(cluster):
    cluster.add("leader", labels=LEADER, whole=2, replicas=2)
    made = pod_object("w", uid="w", labels={JOB_LABEL: "j", REPLICAS_LABEL: "2"}, whole=2)
    made["spec"]["affinity"] = near(LEADER)
    cluster.pods["w"] = made
    cluster.see("w")
    assert cluster.reserved() == 0
    cluster.refuse("w")
    assert cluster.reserved() == 2


def test_a_worker_that_lacks_gpus_on_some_nodes_is_planned_once(cluster):
    """kube-scheduler says both of it, so that nodes may be kept for the job."""
    cluster.add("leader", labels=LEADER, whole=2, replicas=2)
    cluster.add("w", whole=2, replicas=2)
    made = cluster.pods["w"]
    made["spec"]["affinity"] = near(LEADER)
    message = f"3 Insufficient aliyun.com/gpu, {REFUSED}"
    made["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
    jobs = Cluster()
    jobs.pods = cluster.pods
    jobs.start()
    (job,) = vars(jobs.scheduling.jobs)["_jobs"].values()
    jobs.filter("leader")
    uids = [pod.uid for pod in job.wants_nodes()]
    assert sorted(uids) == sorted(set(uids))


def test_a_leader_that_does_not_come_into_bind_holds_nothing_for_long(cluster):
    cluster.add("leader", labels=LEADER, whole=2, replicas=2)
    cluster.add("w", LEADER, whole=2, replicas=2)
    assert cluster.reserved() == 2
    cluster.now += BARRIER_S
    cluster.settle()
    assert cluster.reserved() == 0
    cluster.now += 60.0
    cluster.settle()
    assert cluster.try_to_bind("leader")
    assert cluster.try_to_bind("w")


@pytest.mark.parametrize("has_crashed", [True, False])
def test_the_gpus_of_the_workers_stay_reserved_when_the_leader_is_bound(cluster, has_crashed):
    cluster.add("leader", labels=LEADER, whole=2, replicas=2)
    cluster.add("w", LEADER, whole=2, replicas=2)
    assert cluster.try_to_bind("leader")
    if has_crashed:
        cluster.start()
    assert cluster.reserved() == 1
    assert cluster.try_to_bind("w")
    assert cluster.reserved() == 0


def test_a_worker_that_never_comes_leaves_its_gpus_to_others_after_a_while(cluster):
    cluster.add("leader", labels=LEADER, whole=2, replicas=2)
    cluster.add("w", LEADER, whole=2, replicas=2)
    assert cluster.try_to_bind("leader")
    for _ in range(10):
        cluster.now += COMMITTED_S / 5
        cluster.settle()
    assert cluster.reserved() == 0


def test_a_worker_is_bound_also_if_kube_scheduler_comes_to_it_while_its_leader_is_in_bind(cluster):
    """kube-scheduler counts a pod on its node from then on."""
    cluster.add("leader", labels=LEADER, whole=2)
    cluster.add("w1", LEADER, whole=2)
    cluster.add("other", whole=2)
    on = {name: cluster.filter(name).nodes[0] for name in ("leader", "w1", "other")}
    for name in ("leader", "w1", "other"):
        cluster.bind(name, on[name])
    for name in ("w1", "leader", "other"):
        cluster.write(name, cluster.bind(name, on[name]))


def test_many_terms_of_many_pods_are_compared_up_to_a_bound():
    facts = []
    for number in range(100):
        made = pod_object(f"p{number}", labels={"n": str(number)}, whole=1)
        made["spec"]["affinity"] = near(*({"n": str(other)} for other in range(32)))
        facts.append(pod_facts(made))
    terms = {id(term): term for pod in facts for term in pod.rules.affinity}
    assert len(terms) >= 32
    compared = []
    kept = type(facts[0].rules.affinity[0]).matches
    cls = type(facts[0].rules.affinity[0])
    try:
        cls.matches = lambda *args: compared.append(1) or kept(*args)
        attached(facts[1:], facts[:1])
    finally:
        cls.matches = kept
    assert 0 < len(compared) <= MOST_STEPS
