"""Decided pods in the first seconds after the agent has started: each gets its own GPU, or is refused with the reason."""

import json
import shutil
from collections.abc import Callable

import pytest

from gpuagent.agent.agent import Agent
from gpuagent.allocator import allocator_state
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, MODE_LABEL
from gpuagent.kubelet.holdings_watch import HoldingsWatch
from standin.kubelet.pods import Container, Pod
from tests.contract.harness import MEM, WHOLE, Node, box, ids_on, in_thread, pod, wait_for
from tests.contract.test_decisions import admit, by_v1, by_v2

MakeNode = Callable[..., Node]

NOT_SHOWN = "the agent cannot identify the requesting pod: the API server did not show the node's pods in time"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent waits for the first list only for a moment: one that is very late need not be waited for."""
    monkeypatch.setattr(allocator_state, "FIRST_PODS_S", 0.1)
    monkeypatch.setattr(allocator_state, "DECIDED_PODS_S", 0.2)


def sharing(node: MakeNode, version: str, *, decided: bool = True) -> Node:
    """A node whose agent has stopped after it served a pod; `decided`: a scheduler had chosen its GPU."""
    one = node(version, box(4, 16), labels={MODE_LABEL: "share"})
    agent = start(one)
    before = one.bind(pod("before", {MEM: 4}), annotations=by_v1(1, 4) if decided else {})
    assert admit(one, before) == [1 if decided else 0]
    one.stop(agent)
    assert one.kubelet.wait(lambda: one.kubelet.allocatable(MEM) == 0)
    one.end(before)
    return one


def start(one: Node, **settings: object) -> Agent:
    agent = one.run(**settings)
    one.offers(mem=64)
    return agent


def equal_pods(one: Node) -> list[tuple[Pod, int]]:
    """Decided pods of one size, each with its GPU."""
    return [(one.bind(pod(f"p{n}", {MEM: 3}), annotations=by_v2(n, size=3)), n) for n in (3, 1, 2)]


def admit_all(one: Node, pods: list[tuple[Pod, int]]) -> None:
    """Each gets its GPU; kubelet admits the last one first."""
    assert [admit(one, asked) for asked, _ in reversed(pods)] == [[gpu] for _, gpu in reversed(pods)]


@pytest.mark.parametrize("version", ["1.20", "1.30", "1.36"])
def test_calls_wait_for_the_first_list_of_pods(node: MakeNode, version: str) -> None:
    one = sharing(node, version)
    pods = equal_pods(one)
    one.server.hold_lists("pods", namespaced=True)
    start(one)
    first, gpu = pods.pop()
    with in_thread(lambda: admit(one, first)) as has:
        one.server.resume()
        assert has() == [gpu]
    admit_all(one, pods)


@pytest.mark.parametrize("version", ["1.20", "1.30", "1.36"])
@pytest.mark.usefixtures("impatient")
def test_pods_are_read_by_name_while_the_first_list_is_late(node: MakeNode, version: str) -> None:
    """Also of several containers; a static pod, which the API server does not have, gets what is free."""
    one = sharing(node, version)
    pods = equal_pods(one)
    two = one.bind(pod("two", {MEM: 3}, {MEM: 3}, init=[Container("init", {MEM: 3})]), annotations=by_v2(3, 2, size=3))
    undecided = one.bind(pod("undecided", {MEM: 3}))
    one.server.hold_lists("pods")
    agent = start(one)
    admit_all(one, pods)
    assert admit(one, two)[-2:] == [3, 2]
    assert admit(one, undecided)
    assert admit(one, pod("static", {MEM: 3}))
    assert not agent.state.pods.known


@pytest.mark.parametrize("version", ["1.20", "1.36"])
@pytest.mark.usefixtures("impatient")
def test_a_pod_that_cannot_be_read_is_refused_with_the_reason(node: MakeNode, version: str) -> None:
    one = sharing(node, version)
    pods = equal_pods(one)
    one.server.hold_lists("pods", namespaced=True)
    start(one)
    early, _ = pods.pop()
    assert NOT_SHOWN in one.kubelet.admit(early).failed
    one.server.resume()
    (agent,) = one.agents
    wait_for(lambda: agent.state.pods.known)
    admit_all(one, pods)


@pytest.mark.parametrize("version", ["1.20", "1.30", "1.36"])
def test_a_kubelet_that_was_started_again_may_admit_what_was_refused(node: MakeNode, version: str) -> None:
    one = sharing(node, version)
    start(one)
    full = one.bind(pod("full", {MEM: 14}), annotations=by_v2(2, size=14))
    late = one.bind(pod("late", {MEM: 4}), annotations=by_v2(2, size=4))
    assert admit(one, full) == [2]
    assert "GPU 2 has 2 free" in one.kubelet.admit(late).failed
    one.end(full)
    one.kubelet.stop()
    one.kubelet.start()
    one.offers(mem=64)
    assert admit(one, late) == [2]


@pytest.mark.usefixtures("impatient")
def test_a_kubelet_that_asks_nobody_is_refused_until_the_pods_are_known(node: MakeNode) -> None:
    """Before 1.19, ids are counts, and the environment names the GPU."""
    one = node("1.18", box(4, 16), labels={MODE_LABEL: "share"})
    (one.root / "state").mkdir()
    (one.root / "state" / "mode.json").write_text('{"mode": "share", "schedulers": true}')
    decided = one.bind(pod("decided", {MEM: 3}), annotations=by_v2(3, size=3))
    one.server.hold_lists("pods")
    start(one)
    assert "the API server has not shown the node's pods yet" in one.kubelet.admit(decided).failed
    again = pod("again", {MEM: 3})
    one.server.resume()
    one.kubelet.remove(decided)
    one.server.delete_pod("decided")
    outcome = one.kubelet.admit(one.bind(again, annotations=by_v2(2, size=3)))
    assert outcome.containers["c0"].env["NVIDIA_VISIBLE_DEVICES"] == one.uuids[2]


@pytest.mark.parametrize("version", ["1.20", "1.36"])
def test_an_api_server_that_comes_back_together_with_the_agent(node: MakeNode, version: str) -> None:
    one = sharing(node, version)
    pods = equal_pods(one)
    one.server.stop()
    start(one)
    first, gpu = pods.pop()
    with in_thread(lambda: admit(one, first)) as has:
        one.server.start()
        assert has() == [gpu]
    admit_all(one, pods)


@pytest.mark.usefixtures("impatient")
def test_an_api_server_that_is_away_while_the_agent_starts(node: MakeNode) -> None:
    """Refused where a scheduler decides; started at once where none does."""
    one = sharing(node, "1.36")
    decided = one.bind(pod("decided", {MEM: 3}), annotations=by_v2(3, size=3))
    one.server.stop()
    start(one)
    assert NOT_SHOWN in one.kubelet.admit(decided).failed
    other = sharing(node, "1.36", decided=False)
    undecided = other.bind(pod("undecided", {MEM: 3}))
    other.server.stop()
    start(other)
    assert admit(other, undecided) == [0]


@pytest.mark.parametrize("silent", ["the list", "every read"])
@pytest.mark.usefixtures("impatient")
def test_a_silent_pod_resources_api_while_the_first_list_is_late(
    node: MakeNode, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sharing(node, "1.36")
    decided = one.bind(pod("decided", {MEM: 3}), annotations=by_v2(3, size=3))
    one.server.hold_lists("pods", namespaced=silent == "every read")
    start(one)
    monkeypatch.setattr(HoldingsWatch, "query", lambda *_args, **_named: None)
    assert NOT_SHOWN in one.kubelet.admit(decided).failed


@pytest.mark.usefixtures("impatient")
def test_an_unreadable_checkpoint_while_the_first_list_is_late(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod took a name with another size, and kubelet still lists the former one."""
    one = sharing(node, "1.36")
    monkeypatch.setattr("gpuagent.kubelet.checkpoint.read", lambda _directory: ())
    pods = equal_pods(one)
    former = pod("p3", {MEM: 5})
    one.kubelet.receive(former)
    one.kubelet.book(former, "c0", MEM, ids_on(one.uuids[0], one.ids(MEM))[:5])
    one.server.hold_lists("pods")
    start(one)
    admit_all(one, pods)


@pytest.mark.parametrize("state", ["lost", "unreadable"])
@pytest.mark.usefixtures("impatient")
def test_a_state_directory_that_is_lost_or_unreadable(node: MakeNode, state: str) -> None:
    """The mode is then read from the node, and until the API server has shown the pods, any may be decided."""
    one = sharing(node, "1.36")
    pods = equal_pods(one)
    shutil.rmtree(one.root / "state")
    if state == "unreadable":
        (one.root / "state").write_text("in the way")
    one.server.hold_lists("pods")
    start(one)
    admit_all(one, pods)


@pytest.mark.usefixtures("impatient")
def test_a_mode_switch_while_the_agent_is_away(node: MakeNode) -> None:
    one = sharing(node, "1.36")
    groups = [(one.bind(pod(f"g{n}", {WHOLE: 1}), annotations={GROUP_ANNOTATION: str(n)}), n) for n in (3, 2)]
    one.label("topology")
    one.server.hold_lists("pods")
    one.run()
    one.offers(whole=3)  # not yet the one of the pod that has ended, as the API server has not shown that
    for asked, gpu in groups:
        (granted,) = one.kubelet.admit(asked).containers.values()
        assert ids_on(one.uuids[gpu], granted.ids[WHOLE])


def test_that_a_scheduler_decides_is_saved_when_its_first_pod_is_seen(node: MakeNode) -> None:
    one = sharing(node, "1.36", decided=False)
    file = one.root / "state" / "mode.json"
    assert json.loads(file.read_text()) == {"mode": "share", "schedulers": False}
    start(one)
    one.bind(pod("decided", {MEM: 3}), annotations=by_v2(3, size=3))
    wait_for(lambda: json.loads(file.read_text()) == {"mode": "share", "schedulers": True})


def test_without_an_api_server_pods_start_whatever_was_decided_before(node: MakeNode) -> None:
    one = node("1.36", box(4, 16))
    (one.root / "state").mkdir()
    (one.root / "state" / "mode.json").write_text('{"mode": "share", "schedulers": true}')
    start(one)
    assert admit(one, pod("alone", {MEM: 3})) == [0]


def remember(one: Node, text: str) -> None:
    """What an agent left in its state directory."""
    (one.root / "state").mkdir(exist_ok=True)
    (one.root / "state" / "mode.json").write_text(text)


@pytest.mark.usefixtures("impatient")
def test_a_memory_of_an_earlier_version_does_not_tell_that_no_scheduler_decides(node: MakeNode) -> None:
    """Nothing is guessed at the upgrade while the API server is away. Once the pods are seen, the question is answered."""
    one = sharing(node, "1.36")
    remember(one, '{"mode": "share"}')
    decided = one.bind(pod("decided", {MEM: 3}), annotations=by_v2(3, size=3))
    one.server.stop()
    agent = start(one)
    assert NOT_SHOWN in one.kubelet.admit(decided).failed
    one.stop(agent)
    other = sharing(node, "1.36", decided=False)
    remember(other, '{"mode": "share"}')
    start(other)
    file = other.root / "state" / "mode.json"
    wait_for(lambda: json.loads(file.read_text()) == {"mode": "share", "schedulers": False})


@pytest.mark.parametrize("memory", ['{"mode": "share"}', '{"mode": "share", "schedulers": false}'])
def test_a_first_list_that_fails_is_waited_for(node: MakeNode, memory: str) -> None:
    """A scheduler came while the agent was away."""
    one = sharing(node, "1.36", decided=False)
    remember(one, memory)
    pods = equal_pods(one)
    one.server.fail("list", "pods", 503)
    start(one)
    admit_all(one, pods)
