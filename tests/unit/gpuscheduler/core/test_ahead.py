"""Pods that wait in kube-scheduler's queue are decided before it asks about them."""

from dataclasses import replace

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import BindOutcome, BindWrite, Nominate
from gpuscheduler.core.constraints.labels import labels_of
from gpuscheduler.core.constraints.node_site import NodeSite, Taint
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.ahead import REFUSALS, AheadLimits
from gpuscheduler.core.single_pods.pauses import PAUSE_S
from gpuscheduler.core.single_pods.single_pods import RESERVED_S
from tests.unit.gpuscheduler.core.api_objects import LeastFree, container, pod_object, shared_node
from tests.unit.gpuscheduler.core.work import calls_of

LIMITS = AheadLimits(nodes=1, least_lead=1, most=4)
NAMES = [f"n{number}" for number in range(8)]


class Cluster:
    """Nodes with one GPU each, of which a pod takes all, and kube-scheduler's queue."""

    def __init__(self, limits=LIMITS, nodes=8, **given):
        self.core = Scheduling(LeastFree(), ahead=limits, **given)
        self.names = NAMES[:nodes]
        for name in self.names:
            self.core.node_seen(shared_node(name, gpus=1))
        self.core.synced(0.0)
        self.now = 0.0
        self.objects = {}
        # Only once kube-scheduler asks is it known which scheduler's pods it places.
        self.create("first")
        self.place("first")

    def create(self, *names, **given):
        containers = given.pop("containers", None) or [container(mem=given.pop("mem", 10))]
        spec = given.pop("spec", {})
        for name in names:
            self.objects[name] = pod_object(name, *containers, uid=name, **given)
            self.objects[name]["spec"] |= spec
            self.show(name)

    def show(self, name):
        self.core.pod_seen(pod_facts(self.objects[name]), self.now)

    def ask(self, name, names=None):
        return self.core.filter(pod_facts(self.objects[name]), self.names if names is None else names, self.now)

    def place(self, name, names=None):
        """The node that the pod is bound to."""
        (node,) = self.ask(name, names).nodes
        write = self.core.bind(name, node, self.now, 1)
        assert isinstance(write, BindWrite)
        self.core.bound(name, BindOutcome.BOUND)
        self.objects[name]["spec"]["nodeName"] = node
        self.objects[name]["metadata"]["annotations"] = dict(write.annotations)
        self.show(name)
        return node

    def tick(self, seconds=0.0):
        """The nominations that follow: pod to node, "" where one is taken back."""
        self.now += seconds
        while (due := self.core.next_due(self.now)) is not None and due <= self.now:
            self.core.tick(self.now)
        nominated = {}
        for action in self.core.actions():
            if isinstance(action, Nominate):
                nominated[action.uid] = action.node
                self.objects[action.uid]["status"]["nominatedNodeName"] = action.node
        return nominated

    def reserved(self):
        return {name for name in self.objects if self.core.reservations.get(name)}


def test_pods_in_line_are_reserved_and_nominated_and_their_calls_confirm_it():
    cluster = Cluster()
    cluster.create("a", "b", "c")
    nominated = cluster.tick()
    assert nominated.keys() == {"b", "c"}, "kube-scheduler asks about the first one before it sees a nomination"
    assert cluster.reserved() == {"b", "c"}
    assert nominated["b"] != nominated["c"]
    cluster.place("a")
    for name in ("b", "c"):
        assert cluster.place(name, [nominated[name]]) == nominated[name]
    assert cluster.tick() == {}
    assert cluster.reserved() == set()


def test_a_call_confirms_without_another_search():
    cluster = Cluster()
    cluster.create("a", "b")
    nominated = cluster.tick()
    asked = pod_facts(cluster.objects["b"])
    calls, answer = calls_of(lambda: cluster.core.filter(asked, [nominated["b"]], cluster.now))
    assert answer.nodes == (nominated["b"],)
    assert calls < 200
    assert cluster.core.reservations.get("b").until == cluster.now + RESERVED_S


def test_the_highest_priority_is_decided_first_then_the_oldest():
    cluster = Cluster(AheadLimits(nodes=1, least_lead=0, most=3))
    cluster.create("low1", "low2")
    cluster.create("high1", "high2", priority=5)
    assert list(cluster.tick()) == ["high1", "high2", "low1"]


def test_few_have_a_decision_at_one_time_and_the_next_one_follows_each_call():
    cluster = Cluster()
    names = [f"p{number}" for number in range(20)]
    cluster.create(*names, mem=1)
    assert list(cluster.tick()) == names[1:4]
    cluster.place(names[0])
    assert list(cluster.tick()) == names[4:5]
    cluster.place(names[1])
    assert list(cluster.tick()) == names[5:6]
    assert cluster.reserved() == set(names[2:6])


NOT_DECIDED = {
    "gated": {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}},
    "of another scheduler": {"scheduler": "other"},
    "has preferences": {
        "spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}}
    },
    "has rules about other pods": {
        "spec": {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
            ]
        }
    },
    "may have a volume elsewhere": {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}},
    "wants nodes that are not there": {"spec": {"nodeSelector": {"pool": "x"}}},
    "asks for too much": {"mem": 99},
    "has a bad request": {"containers": [container(mem=1, whole=1)]},
    "asks for more cores than there are": {
        "containers": [
            container(mem=1) | {"resources": {"limits": {"aliyun.com/gpu-mem": "1"}, "requests": {"cpu": "99"}}}
        ]
    },
}


@pytest.mark.parametrize("given", NOT_DECIDED.values(), ids=NOT_DECIDED)
def test_what_kube_scheduler_would_not_place_holds_nothing(given):
    cluster = Cluster()
    cluster.create("a")
    cluster.create("odd", **given)
    cluster.create("b")
    assert cluster.tick().keys() == {"b"}
    assert cluster.reserved() == {"b"}


def test_a_pod_is_decided_when_its_gates_are_gone():
    cluster = Cluster()
    cluster.create("a")
    cluster.create("gated", spec={"schedulingGates": [{"name": "other"}]})
    assert cluster.tick() == {}
    cluster.objects["gated"]["spec"]["schedulingGates"] = []
    cluster.show("gated")
    assert cluster.tick().keys() == {"gated"}


def test_pods_of_others_hold_nothing_where_no_scheduler_is_named():
    cluster = Cluster()
    cluster.create("a", "b", scheduler="other")
    assert cluster.tick() == {}
    cluster.ask("a")
    cluster.create("c", "d", "e", scheduler="other")
    assert cluster.tick().keys() >= {"d", "e"}


def test_a_small_cluster_and_a_queue_without_calls_need_none():
    small = Cluster(AheadLimits(nodes=8))
    small.create("a", "b", "c")
    assert small.tick() == {}
    quiet = Cluster()
    quiet.tick(LIMITS.held_s)
    quiet.create("a", "b", "c")
    assert quiet.tick() == {}, "kube-scheduler has nothing to ask about, or another replica leads"


def test_a_decision_that_is_not_confirmed_ends_and_its_namespace_pauses():
    cluster = Cluster()
    cluster.create("a")
    cluster.create("impossible", "another", namespace="evil")
    cluster.create("b")
    assert cluster.tick().keys() == {"impossible", "another", "b"}
    cluster.place("a")
    cluster.place("b")
    assert cluster.tick(LIMITS.held_s) == {"impossible": "", "another": ""}
    assert cluster.reserved() == set()
    cluster.create("c")
    cluster.place("c")
    cluster.create("front", "d")
    cluster.create("third", namespace="evil")
    cluster.create("e")
    assert cluster.tick().keys() == {"d", "e"}
    cluster.tick(PAUSE_S)
    cluster.place("front")
    cluster.create("front2")
    cluster.create("fourth", namespace="evil")
    assert cluster.tick().keys() == {"fourth"}


def test_kube_schedulers_own_refusal_ends_a_decision_at_once():
    cluster = Cluster()
    cluster.create("a", "b")
    assert cluster.tick().keys() == {"b"}
    condition = {"type": "PodScheduled", "status": "False", "message": "0/8 nodes are available: 8 didn't match"}
    cluster.objects["b"]["status"]["conditions"] = [condition]
    cluster.show("b")
    assert cluster.tick() == {"b": ""}
    assert cluster.reserved() == set()


def test_a_pod_is_decided_once_in_its_life():
    cluster = Cluster()
    cluster.create("a", "b")
    cluster.tick()
    cluster.tick(LIMITS.held_s + PAUSE_S)
    cluster.place("a")
    cluster.create("c")
    cluster.show("b")
    assert "b" not in cluster.tick()


def test_pods_that_kube_scheduler_asks_about_take_what_others_behind_them_have():
    cluster = Cluster(nodes=3)
    cluster.create("a", "b", "c")
    nominated = cluster.tick()
    cluster.create("late")
    answer = cluster.ask("late")
    assert answer.nodes == (nominated["c"],), "the last in line gives way"
    assert cluster.tick() == {"c": ""}
    assert cluster.reserved() == {"b", "late"}


def test_a_higher_priority_does_not_give_way():
    cluster = Cluster(nodes=3)
    cluster.create("a")
    cluster.create("b", "c", priority=5)
    cluster.ask("a")
    cluster.create("front", priority=9)
    cluster.tick()
    cluster.create("late")
    assert not cluster.ask("late").nodes


def test_nominations_that_kube_scheduler_refuses_in_a_row_have_their_kind_pause():
    cluster = Cluster(AheadLimits(nodes=1, least_lead=0, most=9))
    for number in range(REFUSALS):
        name = f"tainted{number}"
        cluster.create(name, mem=1, owner="rs")
        nominated = cluster.tick()
        others = [other for other in cluster.names if other != nominated[name]]
        cluster.show(name)
        assert cluster.place(name, others) in others
    cluster.create("again", mem=1, owner="rs")
    cluster.create("other", mem=1, owner="rs2")
    assert cluster.tick().keys() == {"other"}


def test_a_nomination_is_taken_back_when_no_node_takes_the_pod():
    cluster = Cluster()
    cluster.create("a", "z")
    assert cluster.tick().keys() == {"z"}
    assert not cluster.ask("z", []).nodes
    assert cluster.tick() == {"z": ""}


def test_pods_that_were_there_before_are_asked_about_in_an_unknown_order():
    core = Scheduling(LeastFree(), ahead=LIMITS)
    cluster = Cluster.__new__(Cluster)
    cluster.core, cluster.names, cluster.now, cluster.objects = core, NAMES, 0.0, {}
    for name in NAMES:
        core.node_seen(shared_node(name))
    cluster.create("old1", "old2", "old3", mem=1)
    core.synced(0.0)
    cluster.create("a", "b", mem=1)
    assert cluster.tick() == {}
    cluster.place("old2")
    assert cluster.tick() == {}, "kube-scheduler asks about the others first"
    cluster.place("old3")
    assert cluster.tick().keys() == {"a", "b"}


def test_nothing_is_decided_while_kube_scheduler_asks_in_another_order():
    cluster = Cluster(AheadLimits(nodes=1, least_lead=0, most=4))
    names = [f"p{number}" for number in range(20)]
    cluster.create(*names, mem=1)
    assert cluster.tick().keys() == set(names[:4])
    for name in reversed(names[10:]):
        cluster.place(name)
    assert cluster.reserved() == set()
    cluster.create("z", mem=1)
    assert "z" not in cluster.tick()
    for name in names[:10]:
        cluster.place(name)
    assert cluster.tick() == {"z": cluster.objects["z"]["status"]["nominatedNodeName"]}


def test_the_lead_grows_while_nominations_come_too_late():
    cluster = Cluster(AheadLimits(nodes=1, least_lead=1, most=99))
    names = [f"p{number}" for number in range(30)]
    cluster.create(*names, mem=1)
    nominated = cluster.tick()
    assert names[1] in nominated
    # kube-scheduler has seen none of the nominations, and named other nodes.
    for name in names[1:]:
        cluster.objects[name]["status"].pop("nominatedNodeName", None)
        others = [other for other in cluster.names if other != nominated[name]]
        assert cluster.ask(name, others).nodes
    later = [f"q{number}" for number in range(99)]
    cluster.create(*later, mem=1)
    cluster.tick()
    assert not cluster.core.reservations.get(later[8])


@pytest.mark.parametrize("change", ["deleted", "gone", "bound", "relabeled"])
def test_a_pod_that_changes_ends_its_decision(change):
    cluster = Cluster()
    cluster.create("a", "b")
    cluster.tick()
    made = cluster.objects["b"]
    if change == "gone":
        cluster.core.pod_gone("b", 0.0)
    if change == "deleted":
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if change == "bound":
        made["spec"]["nodeName"] = "n7"
    if change == "relabeled":
        made["metadata"]["labels"]["aliyun.com/gpu-count"] = "2"
    if change != "gone":
        cluster.show("b")
    assert cluster.reserved() == set()
    assert cluster.tick() == ({"b": ""} if change == "relabeled" else {})


def test_another_term_begins_without_decisions():
    cluster = Cluster()
    cluster.create("a", "b", "c")
    cluster.tick()
    cluster.core.caught_up(cluster.now)
    assert cluster.reserved() == set()


def test_a_nomination_is_not_written_once_kube_scheduler_has_asked():
    cluster = Cluster()
    cluster.create("a", "b")
    cluster.core.tick(0.0)
    (nomination,) = [action for action in cluster.core.actions() if isinstance(action, Nominate)]
    assert cluster.core.wants(nomination)
    cluster.ask("b")
    assert not cluster.core.wants(nomination)
    assert cluster.core.wants(Nominate(nomination.pod, "b", "n1")), "nominations of others are written"


def test_what_a_tick_decides_is_bounded():
    cluster = Cluster(AheadLimits(nodes=1, least_lead=1, most=999))
    cluster.create(*[f"p{number}" for number in range(100)], mem=1)
    calls, _ = calls_of(lambda: cluster.core.tick(0.0))
    assert len(cluster.reserved()) <= 8
    assert calls < 20_000


def test_a_pod_is_nominated_for_a_node_that_kube_scheduler_accepts():
    """By its node selector, and by the taints that it tolerates."""
    cluster = Cluster(AheadLimits(nodes=1, least_lead=0))
    tainted = NodeSite("n1", labels_of({"pool": "a"}), (Taint("team", "x", "NoSchedule"),))
    plain = NodeSite("n2", labels_of({"pool": "a"}))
    cordoned = NodeSite("n3", labels_of({"pool": "a"}), cordoned=True)
    for name in NAMES:
        site = {"n1": tainted, "n2": plain, "n3": cordoned}.get(name, NodeSite(name))
        cluster.core.node_seen(replace(shared_node(name), site=site))
    pool = {"nodeSelector": {"pool": "a"}}
    cluster.create("intolerant", spec=pool)
    assert cluster.tick() == {"intolerant": "n2"}
    tolerations = {"tolerations": [{"operator": "Exists"}]}
    cluster.create("t1", "t2", "t3", "t4", "t5", spec=pool | tolerations)
    assert set(cluster.tick().values()) <= {"n1", "n2", "n3"}


def test_calls_in_order_while_no_tick_comes_are_no_surprise():
    cluster = Cluster()
    names = [f"p{number}" for number in range(20)]
    cluster.create(*names, mem=1)
    for name in names[:12]:
        cluster.place(name)
    assert cluster.tick().keys() == set(names[13:16])


def test_nominations_that_come_too_late_do_not_end_decisions_for_good():
    limits = AheadLimits(nodes=1)
    cluster = Cluster(limits)
    names = [f"p{number}" for number in range(5 * limits.most)]
    cluster.create(*names, mem=1)
    late = 0
    for name in names[: 3 * limits.most]:
        nominated = cluster.tick()
        late += bool(nominated)
        # kube-scheduler has not seen them, and named another node.
        cluster.objects[name]["status"].pop("nominatedNodeName", None)
        reservation = cluster.core.reservations.get(name)
        decided = set(reservation.choices) if reservation else set()
        cluster.ask(name, [other for other in cluster.names if other not in decided])
        cluster.core.pod_gone(name, cluster.now)
    assert cluster.reserved()
    assert late > 2 * limits.most


def job_of_two(cluster, **given):
    """The pods of a job, about which kube-scheduler asks; the nodes that both get."""
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    cluster.create("j0", "j1", labels=labels, **given)
    cluster.ask("j0")
    second = cluster.ask("j1").nodes
    return [*cluster.ask("j0").nodes, *second]


def test_a_decision_gives_way_to_a_job_at_once():
    """Its pods were asked about, and the others in line were not."""
    cluster = Cluster(AheadLimits(nodes=1, least_lead=0, most=9))
    cluster.create("a", "b", "c", "d", "e", "f", "g")
    cluster.tick()
    assert len(cluster.reserved()) == 7
    nodes = job_of_two(cluster)
    assert len(nodes) == 2
    taken_back = cluster.tick()
    assert list(taken_back.values()).count("") == 2
    assert len(cluster.reserved()) == 7, "two pods of the job, and five that stay decided"


def test_no_more_decisions_give_way_than_a_job_needs_and_none_in_vain():
    cluster = Cluster(AheadLimits(nodes=1, least_lead=0, most=9))
    cluster.create("a", "b", "c", "d", "e", "f", "g")
    cluster.tick()
    assert job_of_two(cluster, mem=11) == []
    assert len(cluster.reserved()) == 7


def test_a_decision_of_higher_priority_does_not_give_way_to_a_job():
    cluster = Cluster(AheadLimits(nodes=1, least_lead=0, most=9))
    cluster.create("a", "b", "c", "d", "e", "f", "g", priority=5)
    cluster.tick()
    assert job_of_two(cluster) == []
    assert len(cluster.reserved()) == 7
