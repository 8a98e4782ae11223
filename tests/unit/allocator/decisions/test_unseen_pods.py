"""Pods that the watch has not shown yet: the agent reads them from the API server."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gpuagent.allocator import allocator_state
from gpuagent.allocator.allocator import Allocator
from gpuagent.allocator.requester_queries import MOST_FETCHED, REST_S
from gpuagent.domain import events as ev
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.pods.annotations import V1_ASSIGNED
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, Kind, Mode
from gpuagent.domain.snapshot import snapshot
from standin.waiting import PATIENCE_S
from tests.unit.allocator.decisions.decided_pods import at, decided, kubelet_with, serve
from tests.unit.allocator.fake_kubelet import FakeAllocations, FakeIsolation, FakeKubelet
from tests.unit.domain.builders import (
    CORE,
    MEM,
    NodeUnderTest,
    box,
    holding,
    in_force,
    owner,
    pod_json,
    unit_ids,
    uuid,
)
from tests.unit.domain.scheduling.test_decision import v1, v2

pytestmark = pytest.mark.usefixtures("impatient")


def starting(node: NodeUnderTest) -> Allocator:
    """The allocator of an agent that has just registered with kubelet, which admits pod a."""
    kubelet = FakeAllocations()
    kubelet.admitting = "a"
    allocator = Allocator(
        clock=time.monotonic,
        kubelet=kubelet,
        isolation=dict.fromkeys(("all", "none"), FakeIsolation()),
        strategy=DeviceStrategy.DEVICE_NODES,
        send_event=lambda _: None,
    )
    allocator.expect_pods()
    allocator.publish(node.snap)
    return allocator


MEMORIES = {
    "a scheduler decided": Pods(decided_before=True),
    "nothing tells": Pods(decided_before=None, presumed_decided=True),
    "first run": Pods(decided_before=None),
    "no scheduler": Pods(decided_before=False),
}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("fails", [False, True], ids=["late", "fails first"])
def test_the_first_question_after_a_start_waits_for_the_pods(memory, fails, monkeypatch):
    """Kubelet may ask before the API server has answered, also where that fails at first."""
    monkeypatch.setattr(allocator_state, "FIRST_PODS_S", 60.0)
    monkeypatch.setattr(allocator_state, "DECIDED_PODS_S", 60.0)
    node = in_force(Mode.SHARE, box(4))
    node.state = replace(node.state, pods=MEMORIES[memory])
    if fails:
        node.send(ev.ApiUnavailable("503", 0.0, "pods"))
    allocator = starting(node)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(allocator.prefer, MEM, sorted(node.ids(MEM)), (), 4)
        with pytest.raises(TimeoutError):
            asked.result(0.05)
        node.pods(decided("a", 3))
        allocator.publish(node.snap)
        uuids = {node.snap.units[device_id] for device_id in asked.result(PATIENCE_S)}
    assert uuids == {uuid(3)}


@pytest.mark.parametrize("memory", MEMORIES)
def test_without_pods_only_nodes_where_no_scheduler_was_seen_start_pods(memory, monkeypatch):
    """The API server is away for longer than calls wait. Kubelet lists the pod that asks."""
    monkeypatch.setattr(allocator_state, "FIRST_PODS_S", 0.01)
    monkeypatch.setattr(allocator_state, "DECIDED_PODS_S", 0.02)
    node = in_force(Mode.SHARE, box(4))
    node.state = replace(node.state, pods=MEMORIES[memory])
    node.send(ev.ApiUnavailable("it hangs", 0.0, "pods"))
    allocator = starting(node)
    if node.snap.schedulers.assumed:
        with pytest.raises(Refusal, match="did not show the node's pods in time"):
            allocator.prefer(MEM, sorted(node.ids(MEM)), (), 4)
    else:
        ids = allocator.prefer(MEM, sorted(node.ids(MEM)), (), 4)
        assert {node.snap.units[device_id] for device_id in ids} == {uuid(0)}
    assert node.snap.schedulers.assumed is (memory in {"a scheduler decided", "nothing tells"})


OWN_V1 = {**v1(1, 4), V1_ASSIGNED: "true"}
"""As the agent annotates a pod on one GPU that no scheduler decided on."""
OWN = {**OWN_V1, **v2({"0": {"1": 4}})}


@pytest.mark.parametrize(
    ("annotations", "seen"),
    [
        ({}, False),
        (OWN, None),
        (OWN_V1, None),
        ({GROUP_ANNOTATION: "1"}, None),
        (v1(1, 4), True),
        (v2({"0": {"1": 4}}), True),
    ],
    ids=["none", "as the agent's", "V1", "of another mode", "V1 not confirmed", "V2 alone"],
)
def test_what_running_pods_tell_of_a_scheduler(annotations, seen):
    """They had devices before the agent saw them. What may be the agent's own annotations leaves the question open."""
    node = in_force(Mode.SHARE, box(4))
    node.state = replace(node.state, pods=Pods(decided_before=None, presumed_decided=True))
    node.holdings(holding("a", unit_ids(1, Kind.MEMORY_SHARE, 0, 1, 2, 3), MEM))
    before = snapshot(node.state)
    assert (before.schedulers.seen, before.schedulers.assumed) == (None, True)
    node.pods(pod_json("a", {MEM: 4}, annotations=annotations))
    first = snapshot(node.state, before)
    assert (first.schedulers.seen, first.schedulers.assumed) == (seen, seen is not False)
    node.pods()
    later = snapshot(node.state, first)
    assert (later.schedulers.seen, later.schedulers.assumed) == (bool(seen), bool(seen))


def test_annotations_of_the_agent_do_not_undo_that_no_scheduler_decides():
    node = in_force(Mode.SHARE, box(4))
    node.state = replace(node.state, pods=Pods(decided_before=None))
    first = snapshot(node.pods().state)
    assert first.schedulers.seen is False
    node.holdings(holding("a", unit_ids(1, Kind.MEMORY_SHARE, 0, 1, 2, 3), MEM))
    node.pods(pod_json("a", {MEM: 4}, annotations=OWN))
    assert snapshot(node.state, first).schedulers.seen is False


@pytest.mark.parametrize("seen", [[], ["b"], ["b", "c"]])
def test_a_pod_that_only_kubelet_has_seen_is_read_from_the_api_server(seen):
    """Also where one pod alone could be meant, or all that could be are to get the same."""
    pods = {name: decided(name, 2, second=n) for n, name in enumerate("bc")}
    kubelet = kubelet_with(decided("served", 0, size=1), *map(pods.get, seen))
    serve(kubelet, "served", 1)
    kubelet.unseen = [decided("a", 3, second=9)]
    serve(kubelet, "a")
    assert at(kubelet, "a") == [3]


def test_one_of_many_pods_that_only_kubelet_has_seen_is_found():
    """Kubelet also lists pods that ask for no GPU, and the watch has shown none of them."""
    kubelet = kubelet_with(decided("served", 0, size=1))
    serve(kubelet, "served", 1)
    others = [pod_json(f"p{n}", {}) for n in range(30)]
    kubelet.allocations.rejected |= {f"p{n}" for n in range(30)}
    kubelet.unseen = [*others, decided("z", 3, second=9)]
    serve(kubelet, "z")
    assert at(kubelet, "z") == [3]


def test_a_node_s_first_decided_pod_is_read_from_the_api_server():
    kubelet = kubelet_with()
    kubelet.unseen = [decided("first", 3)]
    serve(kubelet, "first")
    assert at(kubelet, "first") == [3]


LIST_FAILED = ev.ApiUnavailable("connection refused", 0.0, "pods")


def kubelet_of_an_agent_without_pods(*events: ev.Event) -> FakeKubelet:
    """No scheduler was ever seen on the node, and the first list of pods has not come in the time that calls wait."""
    kubelet = FakeKubelet(in_force(Mode.SHARE, box(4)))
    for event in events:
        kubelet.node.send(event)
    kubelet.publish()
    assert not kubelet.node.snap.pod_list.known
    return kubelet


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([LIST_FAILED], id="the list has failed and waits for its next try"),
        pytest.param([], id="the list takes long"),
    ],
)
def test_a_decided_pod_is_read_while_the_first_list_is_missing(events: list[ev.Event]):
    kubelet = kubelet_of_an_agent_without_pods(*events)
    kubelet.unseen = [decided("first", 3)]
    serve(kubelet, "first")
    assert at(kubelet, "first") == [3]


@pytest.mark.parametrize("events", [[LIST_FAILED], []], ids=["failed", "slow"])
def test_an_api_server_that_stays_away_costs_a_read_every_few_seconds(events: list[ev.Event]):
    kubelet = kubelet_of_an_agent_without_pods(*events)
    kubelet.unseen = None
    for name in ("first", "second", "third"):
        serve(kubelet, name)
        assert at(kubelet, name) == [0]
    assert kubelet.fetches == 1
    kubelet.node.now += REST_S
    serve(kubelet, "fourth")
    assert kubelet.fetches == 2


def test_a_pod_that_the_api_server_does_not_have_gets_what_is_not_reserved():
    """A static pod: it appears when it runs."""
    kubelet = kubelet_with(decided("served", 0), decided("a", 1, size=16, second=1), gpus=2)
    serve(kubelet, "served")
    serve(kubelet, "static")
    assert at(kubelet, "static") == [0]


def test_a_pod_that_cannot_be_read_is_refused_where_schedulers_decide():
    kubelet = kubelet_with(decided("served", 0))
    serve(kubelet, "served")
    kubelet.unseen = None
    refusal = kubelet.refusal(lambda: serve(kubelet, "a"))
    assert refusal.reason is Reason.UNKNOWN_POD
    assert "the API server did not show the node's pods in time" in refusal.message
    plain = kubelet_with(pod_json("served", {MEM: 4}))
    serve(plain, "served")
    plain.unseen = None
    serve(plain, "a")


def test_a_pod_that_the_watch_shows_while_the_api_server_answers_no_read_gets_what_was_decided(monkeypatch):
    """An overloaded API server lets lists wait, and sends events of watches as usual."""
    served = decided("served", 0)
    kubelet = kubelet_with(served)
    serve(kubelet, "served")

    def fetch(_pods, _timeout_s):
        kubelet.pods(served, decided("late", 3, second=1))

    monkeypatch.setattr(kubelet, "fetch", fetch)
    serve(kubelet, "late")
    assert at(kubelet, "late") == [3]


@pytest.mark.parametrize("others", [0, MOST_FETCHED])
def test_a_pod_is_waited_for_while_an_earlier_read_has_no_answer(others, monkeypatch):
    """Such as one whose connection was lost. The watch is a moment late, and the pod must not pay for the other one."""
    served = decided("served", 0)
    kubelet = kubelet_with(served)
    serve(kubelet, "served")
    kubelet.unseen = None
    kubelet.allocations.rejected |= {f"plain-{number}" for number in range(others)}
    wait = allocator_state.AllocatorState.wait

    def show_meanwhile(state, condition, timeout_s):
        if kubelet.fetches:
            kubelet.pods(served, decided("late", 3, second=1))
        return wait(state, condition, timeout_s)

    monkeypatch.setattr(allocator_state.AllocatorState, "wait", show_meanwhile)
    serve(kubelet, "late")
    assert at(kubelet, "late") == [3]


@pytest.mark.parametrize("watch", ["works", "is broken"])
def test_only_a_watch_that_works_is_waited_for_and_not_by_each_call(watch, monkeypatch):
    kubelet = kubelet_with(decided("served", 0))
    serve(kubelet, "served")
    kubelet.unseen = None
    if watch == "is broken":
        kubelet.node.send(ev.ApiUnavailable("503", 0.0, "pods"))
        kubelet.publish()
    waits = []
    monkeypatch.setattr(allocator_state.AllocatorState, "wait", lambda *_: waits.append(1))
    for _ in range(3):
        assert kubelet.refusal(lambda: serve(kubelet, "late")).reason is Reason.UNKNOWN_POD
    assert len(waits) == (1 if watch == "works" else 0)
    kubelet.node.now += REST_S
    assert kubelet.refusal(lambda: serve(kubelet, "late")).reason is Reason.UNKNOWN_POD
    assert len(waits) == (2 if watch == "works" else 0)


def test_the_watch_is_waited_for_after_a_read_that_took_all_of_its_time(monkeypatch):
    monkeypatch.setattr("gpuagent.allocator.requester_queries.WAIT_S", 1.0)
    kubelet = kubelet_with(decided("served", 0))
    serve(kubelet, "served")
    read_s = [1.0, 0.0]

    def fetch(_pods, _timeout_s):
        kubelet.node.now += read_s.pop(0)

    monkeypatch.setattr(kubelet, "fetch", fetch)
    waits = []
    monkeypatch.setattr(allocator_state.AllocatorState, "wait", lambda *_: waits.append(1))
    for left, waited in ((1, 0), (0, 1)):
        assert kubelet.refusal(lambda: serve(kubelet, "late")).reason is Reason.UNKNOWN_POD
        assert (len(read_s), len(waits)) == (left, waited)


def test_where_no_scheduler_decides_pods_that_are_not_seen_cost_a_query_every_few_seconds():
    kubelet = kubelet_with(pod_json("served", {MEM: 4}))
    serve(kubelet, "served")
    assert kubelet.allocations.queries == 0
    for _ in range(3):
        serve(kubelet, "static")
    assert kubelet.allocations.queries == 1
    kubelet.node.now += REST_S
    serve(kubelet, "static")
    assert kubelet.allocations.queries == 2


def test_what_kubelet_has_given_a_pod_before_we_saw_it_counts():
    """Its memory was given to nobody known: its compute has to be on the same GPU."""
    both = {MEM: 4, CORE: 30}
    equals = [pod_json(name, both, annotations=v2({"0": {str(n + 1): 4}})) for n, name in enumerate(("a", "b"))]
    kubelet = kubelet_with(*equals, mode=Mode.CORE_MEM)
    serve(kubelet, "late")
    (unseen,) = at(kubelet, "late")
    kubelet.pods(*equals, pod_json("late", both, created="2026-01-01T00:00:09Z"))
    serve(kubelet, "late", 30, resource=CORE)
    assert at(kubelet, "late", resource=CORE) == [unseen]
    for n, name in enumerate(("a", "b")):
        serve(kubelet, name)
        serve(kubelet, name, 30, resource=CORE)
        assert at(kubelet, name) == at(kubelet, name, resource=CORE) == [n + 1]


def test_a_pod_without_a_decision_is_not_taken_for_a_decided_one_that_we_see_late():
    kubelet = kubelet_with(decided("served", 0), pod_json("u", {MEM: 4}, created="2026-01-01T00:00:01Z"))
    serve(kubelet, "served")
    kubelet.unseen = [decided("d", 1, second=2)]
    serve(kubelet, "d")
    assert at(kubelet, "d") == [1]


def test_a_pod_that_another_plugin_has_served_is_read_from_the_api_server():
    kubelet = kubelet_with(decided("served", 0))
    serve(kubelet, "served")
    kubelet.unseen = [decided("late", 3)]
    kubelet.allocations.holdings.append(holding("late", {"mlx5_0"}, "rdma/hca"))
    serve(kubelet, "late")
    assert at(kubelet, "late") == [3]


def test_pods_whose_init_containers_alone_hold_units_do_not_keep_another_from_being_read():
    inits = [pod_json(f"i{n}", {}, init=({MEM: 1},), created=f"2026-01-01T00:01:{n:02}Z") for n in range(50)]
    kubelet = kubelet_with(decided("served", 0), *inits)
    serve(kubelet, "served")
    for n in range(50):
        serve(kubelet, f"i{n}", 1, "init-0")
        kubelet.allocations.rejected.add(f"i{n}")  # kubelet lists nothing of them
        kubelet.allocations.holdings.pop()
    kubelet.unseen = [decided("z", 3, second=59)]
    serve(kubelet, "z")
    assert at(kubelet, "z") == [3]


def test_the_log_says_how_a_container_was_identified(caplog):
    caplog.set_level(logging.DEBUG, "gpuagent.allocator")
    kubelet = kubelet_with(decided("served", 0))
    serve(kubelet, "served")
    serve(kubelet, "static")
    said = [(r.container, r.reason) for r in caplog.records if r.message == "Identified the requesting container"]
    assert said == [
        ("ml/served[main]", "kubelet lists no other"),
        ("None", "kubelet lists no pod that the agent has seen and that lacks this"),
    ]


class GetAlone(FakeAllocations):
    """Kubelet answers about named pods, and may not be asked for its list."""

    def query(self, pods, *, listing):
        return None if pods is None and not listing else super().query(pods, listing=listing)


def test_an_unseen_pod_is_found_where_kubelet_may_not_list():
    """Topology Manager has fixed some of the ids: a list would make kubelet lose them."""
    node = in_force(Mode.SHARE, box(4))
    kubelet = FakeKubelet(node, GetAlone()).pods(decided("served", 0, size=1))
    serve(kubelet, "served", 1)
    kubelet.unseen = [decided("a", 3, second=9)]
    kubelet.allocations.admitting = "a"
    kubelet.serve(owner("a"), MEM, 4, must=unit_ids(3, Kind.MEMORY_SHARE, 5, 6))
    assert at(kubelet, "a") == [3]
