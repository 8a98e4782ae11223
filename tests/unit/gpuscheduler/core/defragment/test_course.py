"""A plan from the first look to the start of the waiting pod, and all ways in which it is given up."""

import asyncio
import json

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import BindWrite, EvictOutcome, MoveAway, Nominate, Nudge, Report
from gpuscheduler.core.constraints.selectors import Selector
from gpuscheduler.core.defragment.budgets import DisruptionBudget
from gpuscheduler.core.defragment.course import MOST_S, Outcome
from gpuscheduler.core.defragment.defragmentation import LOOK_S, MOVED_S, NO_PLAN_S, DefragmentLimits
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.pages.defragment_page import defragment_page
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod_object, shared_node
from tests.unit.gpuscheduler.core.defragment.fragmented import running

BEGUN = "Defragmenting"
EVICTED = "EvictedToDefragment"
GAVE_UP = "DefragmentationGaveUp"
WAITS = {
    "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}],
    "phase": "Pending",
}


class Cluster:
    """Two nodes with one GPU of 10 each. A pod that wants all of one waits for the pod `a`, which fits elsewhere.

    Time passes in `run`, which carries out what the core wants, as far as the test does not do it.
    """

    def __init__(self, moves=1, **pods):
        limits = DefragmentLimits(moves, after_s=30.0, pause_s=60.0)
        self.core = Scheduling(LeastFree(), defragment=limits)
        self.now = 0.0
        for name in ("n1", "n2"):
            self.core.node_seen(shared_node(name, gpus=1))
        self.objects = {}
        for name, given in pods.items():
            self.show(running(name, *given[:-1], **given[-1]))
        self.core.synced(0.0)
        self.core.budgets.are_read = True
        self.core.defragmentation.may_begin = True
        self.written = []
        self.answers = {}
        self.before_answer = {}

    def show(self, made):
        self.objects[made["metadata"]["uid"]] = made
        self.core.pod_seen(pod_facts(made), self.now)

    def wait_for_room(self, name="w", mem=10, **given):
        made = pod_object(name, mem=mem, uid=f"uid-{name}", **given)
        made["status"] = WAITS
        self.show(made)
        return made

    def run(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.core.tick(self.now)
            self.carry_out()
            self.now += 0.5
        return self

    def carry_out(self):
        while actions := self.core.actions():
            for action in actions:
                self.written.append(action)
                if isinstance(action, MoveAway):
                    if not action.is_trial:
                        self.before_answer.get(action.uid, lambda: None)()
                    outcome = self.answers.get((action.uid, action.is_trial), EvictOutcome.EVICTED)
                    why = "" if outcome is EvictOutcome.EVICTED else "the budget"
                    self.core.eviction_answered(action.uid, outcome, why, self.now)

    def end(self, uid):
        self.core.pod_gone(uid, self.now)
        del self.objects[uid]
        self.carry_out()

    def place(self, made):
        """What kube-scheduler does; the node, or empty."""
        answer = self.core.filter(pod_facts(made), ("n1", "n2"), self.now)
        if not answer.nodes:
            return ""
        write = self.core.bind(made["metadata"]["uid"], answer.nodes[0], self.now, 1)
        assert isinstance(write, BindWrite)
        made["metadata"]["annotations"].update(write.annotations)
        made["spec"]["nodeName"] = write.node
        self.show(made)
        self.carry_out()
        return write.node

    def evictions(self, *, trial=False):
        return [one.uid for one in self.written if isinstance(one, MoveAway) and one.is_trial is trial]

    def events(self):
        return [(one.pod.name, one.reason) for one in self.written if isinstance(one, Report)]

    @property
    def moving(self):
        return self.core.defragmentation


def halves(**given):
    return Cluster(a=("n1", 0, 4, {}), b=("n2", 0, 6, {"kind": ""}), **given)


def made_again(cluster, name, of, mem=4):
    made = pod_object(name, mem=mem, uid=f"uid-{name}", owner=f"owner-{of}")
    made["metadata"]["ownerReferences"][0]["kind"] = "ReplicaSet"
    cluster.show(made)
    return made


def test_a_waiting_pod_gets_the_room_that_was_made():
    cluster = halves()
    waiting = cluster.wait_for_room()
    cluster.run(29)
    assert not cluster.written, "it has not waited for long enough"
    cluster.run(10)
    assert cluster.evictions(trial=True) == ["uid-a"]
    assert cluster.evictions() == ["uid-a"]
    assert cluster.events() == [("w", BEGUN), ("a", EVICTED)]
    assert Nominate(pod_facts(waiting).name, "uid-w", "n1") in cluster.written
    assert cluster.place(waiting) == "", "the evicted pod has not ended"
    again = made_again(cluster, "a2", "a")
    assert cluster.place(again) == "n2"
    cluster.end("uid-a")
    assert isinstance(cluster.written[-1], Nudge)
    assert cluster.moving.ended == {}
    assert cluster.place(waiting) == "n1"
    assert cluster.moving.ended == {Outcome.DONE: 1}
    assert not len(cluster.core.reservations)


def test_nobody_else_gets_the_room():
    cluster = halves()
    waiting = cluster.wait_for_room()
    cluster.run(40)
    cluster.end("uid-a")
    thief = pod_object("thief", mem=4)
    cluster.show(thief)
    assert cluster.place(thief) == "", "one place is kept for the waiting pod, and one for the moved pod"
    assert cluster.place(made_again(cluster, "a2", "a")) == "n2"
    assert cluster.place(waiting) == "n1"
    assert cluster.moving.ended == {Outcome.DONE: 1}


def test_nobody_else_gets_the_place_of_a_pod_that_was_made_again():
    """The watch shows the pod before kube-scheduler asks about it."""
    cluster = halves()
    waiting = cluster.wait_for_room()
    cluster.run(40)
    cluster.end("uid-a")
    again = made_again(cluster, "a2", "a")
    thief = pod_object("thief", mem=4)
    cluster.show(thief)
    assert cluster.place(thief) == ""
    assert cluster.place(again) == "n2"
    assert cluster.place(waiting) == "n1"
    assert cluster.moving.ended == {Outcome.DONE: 1}
    assert not len(cluster.core.reservations)


def test_no_place_is_kept_for_a_pod_that_was_made_again_and_waits_for_another_controller():
    cluster = halves()
    cluster.wait_for_room()
    cluster.run(40)
    cluster.end("uid-a")
    gated = pod_object("a2", mem=4, uid="uid-a2", owner="owner-a", gates=["queue.example/admission"])
    cluster.show(gated)
    assert cluster.core.reservations.get("uid-a2") is None
    other = pod_object("other", mem=4)
    cluster.show(other)
    assert cluster.place(other) == "n2"


def test_a_place_is_kept_while_kube_scheduler_tries_in_vain():
    cluster = halves()
    waiting = cluster.wait_for_room()
    cluster.run(40)
    assert cluster.place(waiting) == ""
    small = pod_object("small", mem=1)
    cluster.show(small)
    cluster.end("uid-a")
    assert cluster.place(small) == ""
    assert cluster.place(waiting) == "n1"


def test_nothing_is_moved_unless_the_operator_wants_it():
    cluster = halves(moves=0)
    cluster.wait_for_room()
    assert not cluster.run(600).written


@pytest.mark.parametrize("blind", ["budgets", "leader"])
def test_nothing_is_moved_by_a_process_that_does_not_know_enough(blind):
    cluster = halves()
    if blind == "budgets":
        cluster.core.budgets.are_read = False
    else:
        cluster.moving.may_begin = False
    cluster.wait_for_room()
    assert not cluster.run(120).written


def test_a_budget_that_allows_nothing_is_known_before():
    cluster = halves()
    cluster.core.budgets.seen(DisruptionBudget("default", "b", "u", Selector(), 0))
    cluster.wait_for_room()
    assert not cluster.run(120).written


@pytest.mark.parametrize("outcome", [EvictOutcome.LATER, EvictOutcome.REFUSED])
def test_a_refusal_beforehand_ends_the_plan_and_nothing_is_evicted(outcome):
    cluster = halves()
    cluster.answers["uid-a", True] = outcome
    cluster.wait_for_room()
    cluster.run(40)
    assert cluster.evictions() == []
    assert cluster.events() == [("w", GAVE_UP)]
    assert cluster.moving.ended == {Outcome.REFUSED: 1}
    assert not len(cluster.core.reservations)
    assert "the budget" in cluster.moving.last


def two_moves():
    cluster = Cluster(
        2,
        a1=("n1", 0, 3, {}),
        a2=("n1", 0, 2, {}),
        a3=("n1", 0, 4, {"kind": ""}),
        b=("n2", 0, 5, {"kind": ""}),
    )
    return cluster, cluster.wait_for_room(mem=6)


def test_after_a_refusal_nothing_else_is_evicted():
    cluster, _ = two_moves()
    cluster.answers["uid-a2", False] = EvictOutcome.LATER
    cluster.run(40)
    assert cluster.evictions(trial=True) == ["uid-a1", "uid-a2"]
    assert cluster.evictions() == ["uid-a1", "uid-a2"]
    assert cluster.moving.ended == {Outcome.REFUSED: 1}
    assert cluster.events()[-1] == ("w", GAVE_UP)
    # The pod that was evicted still gets its new place, and the waiting one keeps nothing from others.
    assert [cluster.core.reservations.get(uid) is not None for uid in ("uid-w", "uid-a1-moved", "uid-a2-moved")] == [
        False,
        True,
        False,
    ]


def starts_elsewhere(cluster, waiting):
    cluster.core.node_seen(shared_node("n3", gpus=1))
    waiting["spec"]["nodeName"] = "n3"
    cluster.show(waiting)


def is_being_deleted(cluster, waiting):
    waiting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.show(waiting)


def joins_a_job(cluster, waiting):
    waiting["metadata"]["labels"] |= {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    cluster.show(waiting)


def is_gone(cluster, waiting):
    cluster.end(waiting["metadata"]["uid"])


def its_node_is_gone(cluster, waiting):
    cluster.core.node_gone("n1")


def node_of_the_moved_pods_is_gone(cluster, waiting):
    cluster.core.node_gone("n2")


def next_pod_is_forbidden(cluster, waiting):
    cluster.core.budgets.seen(DisruptionBudget("default", "b", "u", Selector(), 0))


@pytest.mark.parametrize(
    "change",
    [
        starts_elsewhere,
        is_being_deleted,
        joins_a_job,
        is_gone,
        its_node_is_gone,
        node_of_the_moved_pods_is_gone,
        next_pod_is_forbidden,
    ],
)
def test_after_a_change_nothing_else_is_evicted(change):
    cluster, waiting = two_moves()
    cluster.before_answer["uid-a1"] = lambda: change(cluster, waiting)
    cluster.run(60)
    assert cluster.evictions() == ["uid-a1"]
    assert cluster.moving.ended == {Outcome.CHANGED: 1}
    assert ("a1", EVICTED) in cluster.events(), "it was evicted, whatever became of the plan"
    # Without the waiting pod, the plan ends before it is known that the first one is evicted.
    has_place = cluster.core.reservations.get("uid-a1-moved") is not None
    assert has_place is (change is not is_gone)
    assert cluster.core.reservations.get("uid-a2-moved") is None
    assert cluster.core.reservations.get("uid-w") is None


@pytest.mark.parametrize("owner", ["one", "two"])
def test_pods_of_one_controller_may_be_moved_by_one_plan(owner):
    cluster = Cluster(
        2,
        a1=("n1", 0, 3, {}),
        a2=("n1", 0, 2, {}),
        a3=("n1", 0, 4, {"kind": ""}),
        b=("n2", 0, 5, {"kind": ""}),
    )
    for name in ("a1", "a2"):
        made = cluster.objects[f"uid-{name}"]
        made["metadata"]["ownerReferences"][0]["uid"] = "one" if name == "a1" else owner
        cluster.show(made)
    cluster.wait_for_room(mem=6)
    cluster.run(60)
    assert cluster.evictions() == ["uid-a1", "uid-a2"]


def test_an_eviction_that_has_not_begun_ends_with_its_plan():
    cluster, waiting = two_moves()
    wanted = []
    cluster.before_answer["uid-a1"] = lambda: wanted.append(cluster.moving.is_wanted("uid-a1"))
    cluster.run(60)
    assert wanted == [True]
    cluster.end("uid-w")
    assert not cluster.moving.is_wanted("uid-a1")


def test_two_pods_are_moved():
    cluster, waiting = two_moves()
    cluster.run(40)
    assert cluster.evictions() == ["uid-a1", "uid-a2"]
    cluster.end("uid-a1")
    assert cluster.place(waiting) == ""
    cluster.end("uid-a2")
    assert cluster.place(waiting) == "n1"
    assert cluster.place(made_again(cluster, "c1", "a1", 3)) == "n2"
    assert cluster.moving.course is not None
    assert cluster.place(made_again(cluster, "c2", "a2", 2)) == "n2"
    assert cluster.moving.ended == {Outcome.DONE: 1}


def test_a_plan_ends_when_the_waiting_pod_is_gone():
    cluster = halves()
    cluster.wait_for_room()
    cluster.run(40)
    cluster.end("uid-w")
    assert cluster.moving.ended == {Outcome.CHANGED: 1}
    assert cluster.core.reservations.get("uid-w") is None


def test_a_plan_ends_when_its_node_is_gone():
    cluster = halves()
    cluster.wait_for_room()
    cluster.run(40)
    cluster.core.node_gone("n1")
    cluster.run(5)
    assert cluster.moving.ended == {Outcome.CHANGED: 1}
    assert cluster.events()[-1] == ("w", GAVE_UP)


@pytest.mark.parametrize("started", [False, True])
def test_a_plan_that_takes_too_long_is_given_up(started):
    cluster = halves()
    waiting = cluster.wait_for_room()
    cluster.run(40)
    if started:
        cluster.end("uid-a")
        assert cluster.place(waiting) == "n1"
    cluster.run(MOST_S + 5)
    assert cluster.moving.ended == {Outcome.LATE: 1}
    assert ("moved pods" if started else "has not started") in cluster.moving.last
    assert not len(cluster.core.reservations)


def test_a_process_that_stops_leading_evicts_nothing_more():
    cluster = halves()
    cluster.wait_for_room()
    cluster.run(29)

    def stop_leading(action):
        cluster.moving.may_begin = False
        cluster.core.eviction_answered(action.uid, EvictOutcome.EVICTED, "", cluster.now)

    for _ in range(20):
        cluster.core.tick(cluster.now)
        for action in cluster.core.actions():
            if isinstance(action, MoveAway):
                assert action.is_trial
                stop_leading(action)
        cluster.now += 0.5
    assert cluster.moving.ended == {Outcome.CHANGED: 1}


def test_pods_of_one_controller_are_not_moved_again_and_again():
    cluster = halves()
    waiting = cluster.wait_for_room()
    cluster.run(40)
    cluster.end("uid-a")
    cluster.place(waiting)
    cluster.place(made_again(cluster, "a2", "a"))
    assert cluster.moving.ended == {Outcome.DONE: 1}
    cluster.end("uid-w")
    cluster.end("uid-b")
    cluster.show(running("fixed", "n1", 0, 6, kind=""))
    cluster.wait_for_room("w2", owner="other")
    cluster.written.clear()
    cluster.run(MOVED_S / 2)
    assert not cluster.evictions()
    cluster.run(MOVED_S)
    assert cluster.evictions() == ["uid-a2"]


def test_one_owner_does_not_have_all_others_moved():
    cluster = halves()
    cluster.answers["uid-a", True] = EvictOutcome.LATER
    cluster.wait_for_room(owner="mine")
    cluster.wait_for_room("w2", owner="mine")
    cluster.run(250)
    assert cluster.evictions(trial=True) == ["uid-a"]


@pytest.mark.parametrize("namespace", ["theirs", "default"])
def test_pods_for_which_there_is_never_a_plan_keep_no_other_from_one(namespace):
    """A tenant has so many that the first may be looked at again before the last have had their turn."""
    cluster = halves()
    for number in range(int(2 * NO_PLAN_S / LOOK_S)):
        made = cluster.wait_for_room(f"x{number}", namespace=namespace, created="2025-01-01T00:00:00Z")
        made["spec"]["nodeSelector"] = {"no": "node"}
        cluster.show(made)
    cluster.wait_for_room()
    cluster.run(400)
    assert cluster.evictions() == ["uid-a"]


def test_no_other_pods_are_evicted_for_a_pod_that_is_served():
    cluster = halves()
    waiting = cluster.wait_for_room(priority=5)
    before = cluster.core.preempt(pod_facts(waiting), {"n1": ["uid-a"]}, 0.0)
    assert before
    cluster.run(40)
    assert cluster.core.preempt(pod_facts(waiting), {"n2": ["uid-b"]}, cluster.now) == {}


def test_events_name_no_pods_of_other_namespaces():
    cluster = Cluster(a=("n1", 0, 4, {"namespace": "secret"}), b=("n2", 0, 6, {"kind": ""}))
    cluster.wait_for_room()
    cluster.run(40)
    by_reason = {one.reason: one.message for one in cluster.written if isinstance(one, Report)}
    assert "secret" not in by_reason[BEGUN]
    assert "default" not in by_reason[EVICTED]


@pytest.mark.parametrize("moves", [0, 1])
def test_the_page_shows_what_would_be_moved(moves):
    cluster = halves(moves=moves)
    cluster.wait_for_room()
    cluster.wait_for_room("large", mem=11)
    page = json.loads(asyncio.run(defragment_page(cluster.moving)))
    assert page["enabled"] is bool(moves)
    assert ("off" in page["problem"]) is not bool(moves)
    by_pod = {one["pod"]: one for one in page["waiting"]}
    assert by_pod["default/w"]["plan"] == {
        "node": "n1",
        "gpus": [0],
        "moves": [
            {
                "pod": "default/a",
                "amounts": {"memory": 4, "core": 0, "gpus": 0},
                "from_node": "n1",
                "from_gpus": [0],
                "to_node": "n2",
                "to_gpus": [0],
            }
        ],
    }
    assert by_pod["default/large"]["plan"] is None
    assert by_pod["default/large"]["why_not"]
    assert not cluster.written
