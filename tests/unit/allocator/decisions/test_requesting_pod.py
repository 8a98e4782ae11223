"""Which of several pods a call of kubelet is for, where schedulers decided differently for them."""

import random

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, JOB_LABEL, REPLICAS_LABEL, Kind, Mode
from tests.unit.allocator.decisions.decided_pods import at, decided, kubelet_with, serve
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import (
    CORE,
    MEM,
    WHOLE,
    holding,
    node_json,
    owner,
    pod_json,
    unit_ids,
)
from tests.unit.domain.scheduling.test_decision import v1, v2

pytestmark = pytest.mark.usefixtures("impatient")


def test_a_pod_that_kubelet_gave_up_after_its_memory_is_not_taken_for_the_next_one():
    both = {MEM: 4, CORE: 30}
    first = pod_json("a", both, annotations=v2({"0": {"1": 4}}))
    kubelet = kubelet_with(first, pod_json("b", both, annotations=v2({"0": {"2": 4}})), mode=Mode.CORE_MEM)
    serve(kubelet, "a")
    kubelet.end("a")  # its admission failed for another reason; our watch does not show it yet
    kubelet.allocations.admitting = "b"
    serve(kubelet, "b", 30, resource=CORE)
    serve(kubelet, "b")
    assert at(kubelet, "b") == at(kubelet, "b", resource=CORE) == [2]


@pytest.mark.parametrize("seed", range(4))
def test_each_of_many_equal_pods_gets_its_own_gpu_where_kubelet_can_be_asked(seed):
    pods = [decided(f"p{n}", n % 4, second=n) for n in range(10)]
    kubelet = kubelet_with(*pods)
    order = random.Random(seed).sample(range(10), 10)
    for n in order:
        serve(kubelet, f"p{n}")
    assert {n: at(kubelet, f"p{n}") for n in order} == {n: [n % 4] for n in order}


def test_a_pod_that_kubelet_has_just_rejected_is_not_taken_for_the_requesting_pod():
    """It lingers in kubelet's list, with nothing held; our watch does not show yet that it has failed."""
    both = pod_json("both", {MEM: 4}, {MEM: 4}, annotations=v2({"0": {"2": 4}, "1": {"3": 4}}))
    kubelet = kubelet_with(decided("rejected", 0), decided("next", 1, second=1), both)
    kubelet.allocations.rejected = {"rejected"}
    serve(kubelet, "next")
    assert at(kubelet, "next") == [1]
    serve(kubelet, "both")
    serve(kubelet, "both", container="main-1")
    assert (at(kubelet, "both"), at(kubelet, "both", "main-1")) == ([2], [3])


def test_a_rejected_pod_is_not_taken_for_one_that_the_watch_has_not_shown():
    """Before 1.34 kubelet lists both, and both ask for the same."""
    kubelet = kubelet_with(decided("rejected", 0))
    kubelet.allocations.rejected = {"rejected"}
    kubelet.unseen = [decided("next", 1, second=1)]
    serve(kubelet, "next")
    assert at(kubelet, "next") == [1]


def test_beside_a_rejected_pod_one_that_the_api_server_does_not_show_is_refused():
    kubelet = kubelet_with(decided("rejected", 0))
    kubelet.allocations.rejected = {"rejected"}
    kubelet.unseen = None
    refusal = kubelet.refusal(lambda: serve(kubelet, "next"))
    assert refusal.reason is Reason.UNKNOWN_POD


def test_a_static_pod_that_the_agent_cannot_see_keeps_no_other_from_its_gpu():
    kubelet = kubelet_with(decided("next", 1))
    kubelet.allocations.rejected = {"static"}
    serve(kubelet, "next")
    assert at(kubelet, "next") == [1]


@pytest.mark.parametrize("first", [True, False], ids=["the older", "the newer"])
def test_kubelet_may_have_rejected_any_of_the_pods_that_the_agent_got_together(first):
    """The agent was restarted. Kubelet, which took pods as they were bound, lists the rejected one, too."""
    rejected, asks = decided("rejected", 0, second=2 * first), decided("next", 1, second=1)
    kubelet = kubelet_with().pods(rejected, asks, together=True)
    kubelet.allocations.rejected = {"rejected"}
    refusal = kubelet.refusal(lambda: serve(kubelet, "next"))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "ml/rejected, ml/next" in str(refusal) or "ml/next, ml/rejected" in str(refusal)
    assert "the API server does not show yet which ones failed" in str(refusal)
    alike = decided("alike", 3, second=1), decided("other", 3, second=2)
    kubelet = kubelet_with().pods(*alike, together=True)
    kubelet.allocations.rejected = {"other"}
    serve(kubelet, "alike")
    assert at(kubelet, "alike") == [3], "all of them get the same answer"


@pytest.mark.parametrize("first", [True, False], ids=["the older", "the newer"])
def test_of_pods_that_came_together_the_last_is_known_when_the_others_have_failed(first):
    rejected, asks = decided("rejected", 0, second=2 * first), decided("next", 1, second=1)
    kubelet = kubelet_with().pods(rejected, asks, together=True)
    kubelet.allocations.rejected = {"rejected"}
    query = kubelet.allocations.query

    def late(pods, *, listing):
        """The API server shows it while the call waits."""
        kubelet.pods(rejected | {"status": {"phase": "Failed"}}, asks, together=True)
        return query(pods, listing=listing)

    kubelet.allocations.query = late
    serve(kubelet, "next")
    assert at(kubelet, "next") == [1]


@pytest.mark.parametrize("second", [0, 5], ids=["in one second", "an older one"])
def test_a_kubelet_that_was_restarted_takes_pods_by_age_and_not_as_the_agent_saw_them(second):
    """Both were bound while kubelet was down, the older one later. Kubelet has rejected it for another reason."""
    newer, older = decided("newer", 1, second=second), decided("older", 0)
    kubelet = kubelet_with()
    kubelet.allocator.serving((1, 1, 1))
    kubelet.pods(newer)
    kubelet.pods(newer, older)
    kubelet.allocator.serving((1, 2, 2))
    kubelet.allocations.rejected = {"older"}
    refusal = kubelet.refusal(lambda: serve(kubelet, "newer"))
    assert "does not show yet which ones failed" in str(refusal)


def test_a_pod_that_may_still_come_keeps_its_gpu_from_one_that_came_together_with_it():
    """The older pod was bound later."""
    older, newer = decided("older", 0, size=16), pod_json("newer", {MEM: 8}, created="2026-01-01T00:00:09Z")
    kubelet = kubelet_with(gpus=2).pods(older, newer, together=True)
    serve(kubelet, "newer", 8)
    assert at(kubelet, "newer") == [1]
    serve(kubelet, "older", 16)
    assert at(kubelet, "older") == [0]


def test_a_pod_that_holds_something_comes_before_a_rejected_one_that_holds_nothing():
    both = pod_json("both", {MEM: 4}, {MEM: 4}, annotations=v2({"0": {"2": 4}, "1": {"3": 4}}))
    kubelet = kubelet_with(both, decided("rejected", 0, second=1))
    serve(kubelet, "both")
    kubelet.allocations.rejected = {"rejected"}
    serve(kubelet, "both", container="main-1")
    assert (at(kubelet, "both"), at(kubelet, "both", "main-1")) == ([2], [3])


def test_a_pod_that_kubelet_rejected_after_it_got_its_units_is_not_taken_for_the_next_one():
    """It lingers in kubelet's list with nothing held, our watch is behind, and the agent was restarted in between."""
    kubelet = kubelet_with(decided("rejected", 0), decided("later", 2, second=2))
    serve(kubelet, "rejected")
    kubelet = FakeKubelet(kubelet.read_allocations().node, kubelet.allocations)
    kubelet.end("rejected")
    kubelet.allocations.rejected, kubelet.unseen = {"rejected"}, [decided("next", 1, second=1)]
    serve(kubelet, "next")
    assert at(kubelet, "next") == [1]


def test_an_init_container_that_kubelet_does_not_list_does_not_hide_the_next_one():
    pod = pod_json("a", {MEM: 2, CORE: 30}, init=({MEM: 2},), annotations=v2({"0": {"1": 2}}))
    kubelet = kubelet_with(pod, decided("b", 0, 2, second=1), mode=Mode.CORE_MEM, core_mem_both=False)
    serve(kubelet, "a", 2, container="init-0")
    kubelet.allocations.holdings.clear()
    serve(kubelet, "a", 30, resource=CORE)
    assert at(kubelet, "a", resource=CORE) == [1]
    assert kubelet.allocator.occupancy().tracker.last.owner == owner("a")


def test_where_kubelet_does_not_answer_pods_that_differ_are_refused_with_the_cause():
    """To guess would put one of them on a GPU that was chosen for the other."""
    kubelet = kubelet_with(decided("a", 0), decided("b", 1, second=1), answers_queries=False)
    refusal = kubelet.refusal(lambda: serve(kubelet, "b"))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "a scheduler chose GPUs for ml/a, ml/b" in refusal.message
    assert "kubelet's pod-resources API did not answer" in refusal.message
    kubelet.allocations.answers_queries = True
    serve(kubelet, "b")
    assert at(kubelet, "b") == [1]


def test_where_kubelet_does_not_answer_no_decided_pod_is_assumed():
    """Both have GPU 2, but the request may be for a pod that the watch has not shown."""
    kubelet = kubelet_with(decided("a", 2), decided("b", 2, second=1), answers_queries=False)
    refusal = kubelet.refusal(lambda: serve(kubelet, "b"))
    assert refusal.reason is Reason.UNKNOWN_POD
    kubelet.allocations.answers_queries = True
    for name in ("b", "a"):
        serve(kubelet, name)
        assert at(kubelet, name) == [2]


def test_where_kubelet_does_not_answer_a_sidecar_of_a_decided_pod_is_no_pod_without_a_decision():
    """Schedulers number no sidecars. If the agent served it as unknown, it would take main for the sidecar again."""
    kubelet = kubelet_with(
        pod_json("a", {MEM: 1}, sidecar=({MEM: 1},), annotations=v2({"0": {"2": 1}})), answers_queries=False
    )
    assert kubelet.refusal(lambda: serve(kubelet, "a", 1, "side-0")).reason is Reason.UNKNOWN_POD


def test_kubelet_is_asked_only_where_schedulers_chose_gpus_for_pods_to_come():
    kubelet = kubelet_with(pod_json("a", {MEM: 4}), pod_json("b", {MEM: 4}, created="2026-01-01T00:00:01Z"))
    serve(kubelet, "b")
    assert kubelet.allocations.queries == 0
    kubelet = kubelet_with(*(decided(f"p{n}", 0, second=n) for n in range(3)))
    serve(kubelet, "p0")
    assert kubelet.allocations.queries == 2, "once for this pod, and once for others that it lists"
    serve(kubelet, "p2")
    assert kubelet.allocations.queries == 4


@pytest.mark.parametrize("left", [1, 3])
@pytest.mark.parametrize("size", [4, 16])
def test_a_pod_deleted_before_its_turn_takes_nothing_of_its_equals(left, size):
    """We hear of a forced deletion when kubelet is still to ask for the pod."""
    pods = [decided(f"p{n}", n, size) for n in range(left + 1)]
    kubelet = kubelet_with(*pods).pods(*pods[1:])
    serve(kubelet, "p0", size)
    for n in range(1, left + 1):
        serve(kubelet, f"p{n}", size)
        assert at(kubelet, f"p{n}") == [n]


def test_no_list_is_read_while_kubelet_has_units_reserved_that_it_does_not_list():
    """What it has fixed for this call is an init container's, or it has filled up with it what NUMA alignment left."""
    init = pod_json("a", {MEM: 4}, annotations=v1(1, 4), init=({MEM: 2},))
    kubelet = kubelet_with(init, decided("b", 2, second=1))
    serve(kubelet, "a", 2, container="init-0")
    handed_on = kubelet.allocations.holdings.pop().ids
    kubelet.serve(owner("a"), MEM, 4, must=handed_on)
    assert kubelet.allocations.may_list == {True}
    (reserved, *_) = sorted(set(kubelet.free(MEM)) - handed_on)
    kubelet.allocations.may_list.clear()
    kubelet.prefer(MEM, 4, must=[reserved])
    assert kubelet.allocations.may_list == {False}


def second_of(annotations, **labels):
    containers = {MEM: 4}, {MEM: 4}
    return pod_json("a", *containers, annotations=annotations, labels=labels, created="2026-01-01T00:00:01Z")


def test_a_restart_amid_an_admission_leaves_no_container_to_a_guess():
    """An equal pod waits; every decided pod holds something, so the new agent has seen no scheduler decide."""
    waiting = pod_json("b", {MEM: 4}, created="2026-01-01T00:00:02Z")
    kubelet = kubelet_with(second_of(v2({"0": {"2": 4}, "1": {"3": 4}})), waiting)
    serve(kubelet, "a")
    again = FakeKubelet(kubelet.node, kubelet.allocations).read_allocations()
    serve(again, "a", container="main-1")
    assert at(again, "a", "main-1") == [3]


def test_a_restart_amid_an_admission_leaves_the_label_in_force():
    waiting = pod_json("b", {MEM: 4}, created="2026-01-01T00:00:02Z")
    kubelet = kubelet_with(second_of({}, **{GPU_COUNT_LABEL: "2"}), waiting)
    serve(kubelet, "a")
    again = FakeKubelet(kubelet.node, kubelet.allocations).read_allocations()
    serve(again, "a", container="main-1")
    assert len(at(again, "a", "main-1")) == 2


def test_a_refusal_on_a_guess_bars_no_pod():
    """Which of two equal pods was refused is not known; the other one keeps what its label asks for."""
    pair = [pod_json(name, {MEM: 40}, labels={GPU_COUNT_LABEL: "2"}, created=f"{n}") for n, name in enumerate("ab")]
    kubelet = kubelet_with(*pair, gpus=2)
    kubelet.allocations.admitting = "b"
    assert kubelet.refusal(lambda: kubelet.prefer(MEM, 40)).reason is Reason.NOT_ENOUGH
    assert kubelet.allocator.occupancy().tracker.refused == frozenset()


def test_an_ignored_annotation_does_not_make_kubelet_be_queried_for_good():
    kubelet = kubelet_with(pod_json("hostile", {MEM: 4}, annotations=v1(1, 9)))
    assert not kubelet.snap.schedulers.assumed
    assert kubelet_with(decided("a", 1)).snap.schedulers.assumed


def test_units_that_kubelet_picks_itself_are_not_granted_on_a_guess():
    kubelet = kubelet_with(decided("a", 0), decided("b", 1, second=1))
    ids = unit_ids(1, Kind.MEMORY_SHARE, 0, 1, 2, 3)
    assert kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, ids)).reason is Reason.UNKNOWN_POD


def test_units_given_before_are_granted_again_whatever_pods_wait():
    kubelet = kubelet_with(decided("a", 0))
    serve(kubelet, "a")
    kubelet.pods(decided("a", 0), decided("b", 1, second=1), decided("c", 2, second=2))
    (held,) = kubelet.allocations.holdings
    assert kubelet.allocator.allocate(MEM, held.ids).units == 4


def test_compute_is_not_given_beside_memory_of_a_pod_that_kubelet_may_have_given_up():
    pods = [
        pod_json(name, {MEM: 4, CORE: 30}, annotations=v2({"0": {str(n): 4}}), created=f"2026-01-01T00:00:0{n}Z")
        for n, name in enumerate("ab")
    ]
    kubelet = kubelet_with(*pods, mode=Mode.CORE_MEM)
    serve(kubelet, "a")
    kubelet.allocations.answers_queries = False
    assert kubelet.refusal(lambda: serve(kubelet, "b", 30, resource=CORE)).reason is Reason.UNKNOWN_POD


@pytest.mark.parametrize("unlike", ["replicas", "containers"])
def test_kubelet_is_queried_where_jobs_of_unlike_sizes_want_gpus_for_later(unlike):
    """How many more GPUs a job will want decides which ones are best now."""
    sizes, replicas = ([1, 2], "22") if unlike == "containers" else ([1, 1], "24")
    pods = [
        pod_json(name, *([{WHOLE: 1}] * count), labels={JOB_LABEL: "job", REPLICAS_LABEL: label})
        for name, count, label in zip("ab", sizes, replicas, strict=True)
    ]
    kubelet = kubelet_with(*pods, mode=Mode.TOPOLOGY)
    serve(kubelet, "a", 1, resource=WHOLE)
    assert kubelet.allocations.queries == 1


def test_an_answer_is_void_once_its_allocate_was_refused():
    """Topology Manager may fix all ids of the next pod, and kubelet then does not ask which to take."""
    kubelet = kubelet_with(decided("a", 1), decided("b", 0, second=1))
    kubelet.allocations.admitting = "a"
    ids = kubelet.prefer(MEM, 4)
    kubelet.isolation.refuses_to_prepare = "not now"
    kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, ids))
    kubelet.isolation.refuses_to_prepare = None
    kubelet.pods(decided("a", 1, phase="Failed"), decided("b", 0, second=1))
    assert kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, ids)).reason is Reason.GPU_DECISION


def test_a_pod_that_a_restarted_kubelet_admits_again_gets_its_gpu():
    """Kubelet was killed before the API server had heard that it failed the pod."""
    status = {"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}}
    kubelet = kubelet_with(pod_json("full", {MEM: 14}), decided("a", 2, size=14))
    kubelet.node.send(ev.NodeSeen(node_json("share") | status, kubelet.node.now))
    kubelet.allocations.holdings.append(holding("full", unit_ids(2, Kind.MEMORY_SHARE, *range(14))))
    kubelet.read_allocations()
    kubelet.allocations.admitting = "a"
    assert kubelet.refusal(lambda: kubelet.prefer(MEM, 14)).reason is Reason.GPU_DECISION
    kubelet.end("full")
    kubelet.pods(decided("a", 2, size=14)).read_allocations()
    serve(kubelet, "a", 14)
    assert at(kubelet, "a") == [2]
