"""When pods that were refused are looked at again, and until when: neither all the time nor never."""

from dataclasses import replace

import pytest

from gpuscheduler.core.calls import Nominate, Nudge
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.labels import labels_of
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.waiting.trial_nominations import NOMINATED_S
from gpuscheduler.core.waiting.wake_ups import CHECK_S, FIRST_S, LIMIT_S, MOST_EARLY, WakeUps
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod, pod_object, shared_node


class World:
    """One node, on which a pod fits while `has_room`."""

    def __init__(self):
        self.usage = ClusterUsage()
        self.usage.node_seen(shared_node("n1"))
        self.pods = {}
        self.has_room = True
        self.wake_ups = WakeUps(self.usage, self.pods, self.fitting, lambda _pod, _now: frozenset())

    def fitting(self, _pod, _now):
        return iter(["n1"] * self.has_room)

    def refuse(self, asked, now=0.0):
        self.pods[asked.uid] = asked
        self.wake_ups.refused(asked.uid, now)

    def woken(self, now):
        actions = self.wake_ups.wake(now)
        assert all(isinstance(action, Nudge) for action in actions)
        return [action.uid for action in actions]


@pytest.fixture
def world():
    return World()


def waiting(uid, namespace="one", **given):
    return pod("p", uid=uid, namespace=namespace, **({"mem": 1} | given))


def test_a_pod_is_woken_after_its_delay_when_something_became_free(world):
    world.refuse(waiting("a"))
    assert world.wake_ups.next_due() is None, "nothing became free"
    world.usage.frees += 1
    assert world.woken(FIRST_S - 0.1) == []
    assert world.wake_ups.next_due() == FIRST_S - 0.1 + CHECK_S
    assert world.woken(FIRST_S + CHECK_S) == ["a"]


def test_a_pod_that_is_woken_in_vain_waits_twice_as_long(world):
    world.refuse(waiting("a"))
    world.usage.frees += 1
    assert world.woken(FIRST_S) == ["a"]
    world.usage.frees += 1
    again = FIRST_S + 2 * FIRST_S
    assert world.woken(again - 0.1) == []
    world.usage.frees += 1
    assert world.woken(again - 0.1 + CHECK_S) == ["a"]


def test_two_checks_are_apart(world):
    for uid in "ab":
        world.refuse(waiting(uid))
    world.usage.frees += 1
    assert world.woken(FIRST_S) == ["a", "b"]
    world.usage.frees += 1
    assert world.wake_ups.next_due() == FIRST_S + CHECK_S
    assert world.woken(FIRST_S + CHECK_S - 0.1) == []


@pytest.mark.parametrize("seconds", [1.0, 2 * LIMIT_S, 86_400.0])
def test_a_pod_that_the_watch_shows_late_is_woken_however_late(world, seconds):
    world.wake_ups.refused("late", 0.0)
    world.usage.frees += 1
    assert world.woken(seconds) == []
    assert world.wake_ups.next_due() is None, "nothing can be done before the watch shows the pod"
    world.pods["late"] = waiting("late")
    world.wake_ups.came("late")
    due = world.wake_ups.next_due()
    assert due is not None
    assert world.woken(max(due, seconds)) == ["late"]


def test_of_pods_that_the_watch_never_shows_the_latest_are_kept(world):
    for number in range(MOST_EARLY + 1):
        world.wake_ups.refused(f"early-{number}", 0.0)
    for uid in ["early-0", f"early-{MOST_EARLY}"]:
        world.pods[uid] = waiting(uid)
        world.wake_ups.came(uid)
    assert world.woken(FIRST_S) == [f"early-{MOST_EARLY}"]


def test_a_scheduler_that_stood_still_wakes_a_pod_that_was_refused_before_its_watch_showed_it():
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(shared_node("n1", gpus=1))
    scheduling.pod_seen(pod("first", uid="first", mem=10, on="n1"), 0.0)
    scheduling.synced(0.0)
    late = pod("late", uid="late", mem=10)
    assert not scheduling.filter(late, ["n1"], 1.0).nodes
    scheduling.pod_gone("first", 2.0)
    scheduling.tick(4000.0)
    assert scheduling.actions() == []
    scheduling.pod_seen(late, 4000.0)
    due = scheduling.next_due(4000.0)
    assert due is not None
    scheduling.tick(max(due, 4000.0) + CHECK_S)
    assert scheduling.actions() == [Nudge(late.name, "late")]


def deleting():
    made = pod_object("p", uid="a", mem=1)
    made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return pod_facts(made)


@pytest.mark.parametrize("later", [waiting("a", on="n1"), deleting()], ids=["bound", "being deleted"])
def test_a_pod_that_waits_no_longer_is_forgotten_and_another_of_its_name_is_not(world, later):
    world.refuse(waiting("a"))
    world.refuse(waiting("b", namespace="two"))
    world.pods["a"] = later
    world.usage.frees += 1
    assert world.woken(FIRST_S) == ["b"]
    world.wake_ups.forget("b")
    world.usage.frees += 1
    assert world.wake_ups.next_due() is None, "no pod is left"


def test_a_pod_that_does_not_fit_waits_for_the_next_that_becomes_free(world):
    world.has_room = False
    world.refuse(waiting("a"))
    world.usage.frees += 1
    assert world.woken(FIRST_S) == []
    assert world.wake_ups.next_due() is None
    world.has_room = True
    world.usage.frees += 1
    assert world.woken(FIRST_S + CHECK_S) == ["a"]


def test_the_higher_priority_and_then_the_older_is_woken_first(world):
    world.refuse(waiting("young", created="2026-01-01T00:00:02Z"))
    world.refuse(waiting("old", created="2026-01-01T00:00:01Z"))
    world.refuse(waiting("first", priority=1, created="2026-01-01T00:00:03Z"))
    world.usage.frees += 1
    assert world.woken(FIRST_S) == ["first", "old", "young"]


@pytest.mark.parametrize(("nodes", "nominated"), [(["n0", "other-pool", "n7"], "n7"), (["n0", "other-pool"], None)])
def test_a_pod_is_woken_for_a_node_that_its_rules_accept(nodes, nominated):
    """kube-scheduler tries the nominated node first, and clears the nomination if its selector leaves the node out."""
    usage = ClusterUsage()
    for n in range(101):
        site = NodeSite(f"n{n}", labels_of({"pool": f"pool-{n}"}))
        usage.node_seen(replace(shared_node(f"n{n}"), site=site))
    made = pod_object("p", uid="a", mem=1)
    made["spec"]["nodeSelector"] = {"pool": "pool-7"}
    waits = pod_facts(made)
    wake_ups = WakeUps(usage, {"a": waits}, lambda _pod, _now: iter(nodes), lambda _pod, _now: frozenset())
    usage.node_seen(replace(shared_node("other-pool"), site=NodeSite("other-pool", labels_of({"pool": "x"}))))
    wake_ups.refused("a", 0.0)
    usage.frees += 1
    (action,) = wake_ups.wake(FIRST_S)
    assert action == (Nominate(waits.name, "a", nominated) if nominated else Nudge(waits.name, "a"))


def refused_in_a_large_cluster():
    """Usage, pods and wake-ups: pod a was refused, and it fits on node n7."""
    usage = ClusterUsage(min_feasible=0)
    usage.node_seen(shared_node("n7"))
    pods = {"a": waiting("a")}
    wake_ups = WakeUps(usage, pods, lambda _pod, _now: iter(["n7"]), lambda _pod, _now: frozenset())
    wake_ups.refused("a", 0.0)
    return usage, pods, wake_ups


def evictions_begin(wake_ups, _pods):
    wake_ups.waits_for_evictions("a")


def bound(_wake_ups, pods):
    pods["a"] = replace(pods["a"], node="n7")


def gone(_wake_ups, pods):
    del pods["a"]


def nominated_by_kube_scheduler(_wake_ups, pods):
    pods["a"] = replace(pods["a"], nominated="n8")


def being_placed(wake_ups, _pods):
    wake_ups.forget("a")


def nomination_not_written(_wake_ups, pods):
    pods["a"] = replace(pods["a"], nominated="")


def nothing(_wake_ups, _pods):
    pass


@pytest.mark.parametrize(
    ("happens", "ends"),
    [
        (nothing, True),
        (evictions_begin, False),
        (bound, False),
        (gone, False),
        (nominated_by_kube_scheduler, False),
        (nomination_not_written, False),
        (being_placed, False),
    ],
)
def test_the_nomination_of_a_pod_that_was_woken_in_vain_ends(happens, ends):
    """kube-scheduler counts it on the node, and takes that back only from pods that may evict others."""
    usage, pods, wake_ups = refused_in_a_large_cluster()
    waits = pods["a"]
    usage.frees += 1
    assert wake_ups.wake(FIRST_S) == [Nominate(waits.name, "a", "n7")]
    pods["a"] = replace(waits, nominated="n7")
    happens(wake_ups, pods)
    ends_at = FIRST_S + NOMINATED_S
    before = wake_ups.wake(ends_at - 0.1)
    actions = [*before, *wake_ups.wake(ends_at)]
    assert [action for action in actions if isinstance(action, Nominate)] == [Nominate(waits.name, "a", "")] * ends


@pytest.mark.parametrize("may_preempt", [False, True])
def test_the_nomination_by_a_former_process_ends_if_no_other_can_be_its_author(may_preempt):
    """kube-scheduler nominates a pod only if it evicts others for it."""
    usage = ClusterUsage(min_feasible=0)
    waits = replace(waiting("a"), nominated="n7", may_preempt=may_preempt)
    wake_ups = WakeUps(usage, {"a": waits}, lambda _pod, _now: iter([]), lambda _pod, _now: frozenset())
    wake_ups.refused("a", 0.0)
    actions = [*wake_ups.wake(NOMINATED_S - 0.1), *wake_ups.wake(NOMINATED_S)]
    assert actions == [Nominate(waits.name, "a", "")] * (not may_preempt)


def test_a_nomination_ends_in_time_although_its_pod_is_woken_again():
    usage, pods, wake_ups = refused_in_a_large_cluster()
    waits = pods["a"]
    nodes = []
    for second in range(1, 60):
        usage.frees += 1
        for action in wake_ups.wake(float(second)):
            if isinstance(action, Nominate):
                nodes.append((second, action.node))
                pods["a"] = replace(waits, nominated=action.node)
    since = None
    for second, node in nodes:
        if node:
            since = since or second
        else:
            assert since is not None
            assert second - since <= NOMINATED_S
            since = None
    assert nodes
    assert any(not node for _, node in nodes)
