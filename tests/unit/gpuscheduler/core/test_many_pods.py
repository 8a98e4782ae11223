"""Thousands of pods under one job label, or of many jobs, take time that grows with their number, not its square."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import Nudge
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.jobs.places.plan import PLAN_TRIES, OtherThan, plan
from gpuscheduler.core.jobs.planning.planning import MOST_AT_ONCE
from gpuscheduler.core.jobs.pods.start import MOST_PODS
from gpuscheduler.core.links import Links
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod, whole_node
from tests.unit.gpuscheduler.core.work import calls_of

NODES = [f"n{n}" for n in range(10)]
FEW, MANY = 250, 2000  # `make bench` has the seconds of 4,000
PLANNED = "a request that no node serves"
"""Each event of such a pod makes a plan: a larger job is not planned again with each of them."""
FEW_PLANNED, MANY_PLANNED = 100, 1200
LIVING = 10
"""Pods that live at one time with churn. Each plan takes time for all of them, however many there were before."""
SHAPES = {
    "a job that is never complete": {"replicas": lambda n, count: 9999},
    "a job that is complete with the last pod": {"replicas": lambda n, count: count},
    "far more pods than the job has": {},
    "of many controllers": {"owner": lambda n: f"owner-{n // 2}"},
    "many controllers, half of the pods wanted": {
        "replicas": lambda n, count: count // 2,
        "owner": lambda n: f"owner-{n // 2}",
    },
    "unequal requests": {"replicas": lambda n, count: count // 2, "whole": lambda n: 1 + n % 8},
    PLANNED: {"whole": lambda n: 9},
    "labels that disagree": {"replicas": lambda n, count: 2 + n % 2},
    "another number on each pod": {"replicas": lambda n, count: 2 + n},
    "another number on each pod, the largest first": {"replicas": lambda n, count: 2 + count - n},
    "many jobs": {"job": lambda n: f"job-{n // 2}"},
    "many jobs that never fit": {"job": lambda n: f"job-{n // 2}", "whole": lambda n: 9},
}


def lives(count, *, churn, replicas=lambda n, count: 2, owner=lambda n: None, whole=lambda n: 1, job=lambda n: "j"):
    """Work for pods that are created, asked about and deleted, in function calls."""
    scheduling = Scheduling(LeastFree())
    for name in NODES:
        scheduling.node_seen(whole_node(name))
    scheduling.synced(0.0)
    pods = [
        pod(
            whole=whole(n),
            owner=owner(n),
            created=f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z",
            labels={JOB_LABEL: job(n), REPLICAS_LABEL: str(replicas(n, count))},
        )
        for n in range(count)
    ]

    def live():
        for n, one in enumerate(pods):
            now = n / 100
            scheduling.pod_seen(one, now)
            scheduling.filter(one, NODES, now)
            if n % 10 == 0 and (due := scheduling.next_due(now)) is not None and due <= now:
                scheduling.tick(now)
            scheduling.actions()
            if churn and n >= LIVING:
                scheduling.pod_gone(pods[n - LIVING].uid, now)
        for one in pods:
            scheduling.pod_gone(one.uid, count / 100)

    calls, _ = calls_of(live)
    assert len(scheduling.reservations) == 0
    assert not scheduling.jobs.states()
    return calls


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("churn", [False, True], ids=["", "churn"])
def test_the_work_for_each_pod_does_not_grow_with_their_number(shape, churn):
    is_planned = churn and shape == PLANNED
    counts = (FEW_PLANNED, MANY_PLANNED) if is_planned else (FEW, MANY)
    few, many = (lives(count, churn=churn, **SHAPES[shape]) / count for count in counts)
    assert many < 3 * few + 200


def test_more_pods_than_a_plan_can_hold_do_not_start():
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(whole_node("n1"))
    scheduling.synced(0.0)
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    pods = [pod(whole=1, labels=labels, owner="o") for _ in range(MOST_PODS + 1)]
    for one in pods:
        scheduling.pod_seen(one, 0.0)
    reason = f"node(s) not given to job j: it has {MOST_PODS + 1} pods; at most {MOST_PODS} can start together"
    assert scheduling.filter(pods[0], ["n1"], 0.0).unresolvable == {"n1": reason}
    scheduling.pod_gone(pods[1].uid, 0.0)
    scheduling.tick(0.0)
    assert reason not in str(scheduling.filter(pods[0], ["n1"], 0.0).unresolvable)


def test_the_reason_of_labels_that_disagree_names_few_of_their_numbers():
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(whole_node("n1"))
    scheduling.synced(0.0)
    pods = [pod(whole=1, labels={JOB_LABEL: "j", REPLICAS_LABEL: str(number)}) for number in (900, 30, 4, 30, 7)]
    for one in pods:
        scheduling.pod_seen(one, 0.0)
    text = "node(s) not given to job j: its pods disagree on label gpu-topology-replica ({})"
    assert scheduling.filter(pods[0], ["n1"], 0.0).unresolvable == {"n1": text.format("4, 7 and 2 more")}
    scheduling.pod_gone(pods[2].uid, 0.0)
    scheduling.pod_gone(pods[1].uid, 0.0)
    assert scheduling.filter(pods[0], ["n1"], 0.0).unresolvable == {"n1": text.format("7, 30 and 1 more")}
    scheduling.pod_gone(pods[3].uid, 0.0)
    assert scheduling.filter(pods[0], ["n1"], 0.0).unresolvable == {"n1": text.format("7 and 900")}


def test_one_pod_wakes_few_others():
    """A pod that disagrees on the number changes the reason of all."""
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(whole_node("n1"))
    scheduling.synced(0.0)
    for number in [*[500] * 400, 501]:
        scheduling.pod_seen(pod(whole=1, labels={JOB_LABEL: "j", REPLICAS_LABEL: str(number)}), 0.0)
    woken = [action for action in scheduling.actions() if isinstance(action, Nudge)]
    assert len(woken) == MOST_AT_ONCE


@pytest.mark.parametrize("names_few", [True, False], ids=["each on two nodes", "each on all but one"])
def test_a_plan_for_pods_that_keep_to_different_nodes_ends(names_few):
    scheduling = Scheduling(LeastFree())
    for n in range(1000):
        scheduling.node_seen(whole_node(f"n{n}"))
    pods = [pod(whole=1, labels={JOB_LABEL: "j", REPLICAS_LABEL: "900"}) for _ in range(900)]
    without = {}
    for n, one in enumerate(pods):
        two = frozenset({f"n{n}", f"n{n + 1}"})
        without[one.uid] = OtherThan(two) if names_few else two
    tries = Tries(PLAN_TRIES)
    calls, places = calls_of(lambda: plan(pods, scheduling.usage.nodes, Links(), without=without, tries=tries))
    assert calls < 40 * PLAN_TRIES
    assert tries.gave_up is (len(places) < len(pods)) is not names_few
