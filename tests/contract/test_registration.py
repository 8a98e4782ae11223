"""Conformance checks 1 to 9: how the agent registers, and registers again."""

import gc
import itertools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent.kubelet.deviceplugin.endpoint import POLL_S
from standin.waiting import PATIENCE_S
from tests.contract.harness import ALWAYS, MEM, VERSIONS, Node, box, fetch, observe, wait_for

MakeNode = Callable[..., Node]
MOST_LOOKS = 50
"""For kubelet's socket, of all endpoints from one poll to the next: about ten. Without a pause there are thousands."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("directory", [True, False])
def test_01_waits_for_kubelet_and_registers(
    node: MakeNode, version: str, directory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kubelet.sock (and not even its directory); start, wait 3 s (for the check's 20), then create the registry:
    no exit, few looks for it, three Register calls."""
    one = node(version, start=False)
    if directory:
        one.plugins.mkdir(parents=True)
    looks = itertools.count()
    look = Path.stat

    def counted(path: Path, **options: bool) -> os.stat_result:
        if path == one.plugins / "kubelet.sock":
            next(looks)
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", counted)
    agent = one.run()
    wait_for(lambda: all(agent.feeds[r] is not None for r in ALWAYS))
    began = time.monotonic()
    before = next(looks)
    observe(3)
    made = next(looks) - before
    polls = (time.monotonic() - began) / POLL_S
    assert 0 < made < MOST_LOOKS * polls
    wait_for(lambda: "there is no" in (agent.unready_because() or ""), what=agent.unready_because)
    one.kubelet.start()
    assert one.kubelet.wait(lambda: {r.resource for r in one.kubelet.registrations} == set(ALWAYS))
    one.offers(mem=160)


@pytest.mark.parametrize("version", VERSIONS)
def test_02_a_stale_socket_is_tried_again(node: MakeNode, version: str) -> None:
    """kubelet.sock without listener; the listener comes on a new inode after 3 s (for the check's 5): refusals are
    retried, registered at the new inode."""
    one = node(version, start=False)
    one.kubelet.make_stale()
    agent = one.run()
    observe(3)
    wait_for(lambda: "no process listens on" in (agent.unready_because() or ""), what=agent.unready_because)
    one.kubelet.start()
    assert one.kubelet.wait(lambda: len(one.kubelet.registrations) == 3)
    one.offers(mem=160)


@pytest.mark.parametrize("version", VERSIONS)
def test_03_requests_are_right_and_sockets_accept_before_the_call(node: MakeNode, version: str) -> None:
    """The registry records requests: version, three names, distinct endpoints that accept already (the registry dials
    once, without patience), options equal to the answer of GetDevicePluginOptions."""
    one = node(version, dial_timeout=0)
    one.run()
    one.offers(mem=160)
    made = one.kubelet.registrations
    assert sorted(r.resource for r in made) == sorted(ALWAYS)
    assert {r.version for r in made} == {"v1beta1"}
    assert len({r.endpoint for r in made}) == 3
    assert all(r.socket_existed for r in made)
    assert one.sockets() == {r.endpoint for r in made}
    for r in made:
        assert r.options == one.kubelet.call(r.resource).GetDevicePluginOptions(dp.Empty(), timeout=PATIENCE_S)
        assert not r.options.pre_start_required, "mode share has nothing to verify"
        assert r.options.get_preferred_allocation_available
    assert not one.kubelet.refused


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_04_options_are_answered_while_register_is_open(node: MakeNode, version: str) -> None:
    """The registry calls back inside Register and takes 5 s: no deadlock, one registration. (Kubelet 1.18 does not
    call back inside.)"""
    one = node(version)
    one.kubelet.hooks.delay_s = 5.0
    one.run()
    one.offers(mem=160)
    assert sorted(r.resource for r in one.kubelet.registrations) == sorted(ALWAYS)
    assert not one.kubelet.refused
    observe(1)
    assert len(one.kubelet.registrations) == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_05_a_refusal_is_tried_again_ever_more_slowly(
    node: MakeNode, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The registry answers `Unknown: not supported`: growing back-off from 1 s on, readiness false, reason in the log,
    process alive; and all is well when it stops refusing."""
    one = node(version)
    one.kubelet.hooks.refuse = "not supported"
    agent = one.run(http_address=("127.0.0.1", 0))

    def gaps() -> dict[str, list[float]]:
        at = defaultdict(list)
        for r in one.kubelet.registrations:
            at[r.resource].append(r.time)
        return {resource: [b - a for a, b in zip(times, times[1:], strict=False)] for resource, times in at.items()}

    assert one.kubelet.wait(lambda: len(gaps()) == 3 and all(len(g) >= 2 for g in gaps().values()))
    for first, second, *_ in gaps().values():
        assert first >= 0.75
        assert second >= 1.5, "a quarter less than twice a second, which the first is not"
    code, text = fetch(agent.http_port, "/readyz")
    assert code == 503
    assert "not supported" in text
    assert fetch(agent.http_port, "/healthz")[0] == 200
    assert any("not supported" in str(getattr(r, "text", "")) for r in caplog.records)
    assert len(one.sockets()) <= 3
    one.kubelet.hooks.refuse = ""
    one.offers(mem=160)
    wait_for(lambda: agent.unready_because() is None)


def test_05_a_refusal_becomes_an_event(node: MakeNode) -> None:
    """The registry answers `Unknown: not supported`: the reason is in an Event too."""
    one = node(labels={})
    one.kubelet.hooks.refuse = "not supported"
    one.run()
    assert one.kubelet.wait(lambda: len(one.kubelet.refused) >= 3)
    assert one.server.wait(lambda: any("not supported" in e["message"] for e in one.server.events()))


def test_06_a_silent_registry_gets_a_new_socket_after_the_deadline(node: MakeNode) -> None:
    """The registry never answers: own deadline, not before 10 s, new attempt on a new path, the old socket unlinked."""
    one = node("1.36")
    one.kubelet.hooks.never_answer = True
    agent = one.run()
    assert one.kubelet.wait(lambda: len(one.kubelet.registrations) == 3)
    first = {r.resource: r for r in one.kubelet.registrations}
    assert one.kubelet.wait(lambda: len(one.kubelet.registrations) == 6)
    second = {r.resource: r for r in one.kubelet.registrations[3:]}
    for resource in ALWAYS:
        assert second[resource].time - first[resource].time >= 10
        assert second[resource].endpoint != first[resource].endpoint
    assert one.sockets() == {r.endpoint for r in second.values()}
    assert "no answer" in (agent.unready_because() or "")


def test_07_a_path_is_never_used_twice(node: MakeNode) -> None:
    """1.37 personality, more than 20 registrations by every trigger (connection closed, kubelet.sock new, own socket
    gone, kubelet restarted): `already connected` never said, no path used twice; and nothing piles up."""
    one = node("1.37")
    agent = one.run()
    one.offers(mem=160)

    def trigger(turn: int) -> None:
        match turn % 4:
            case 0:
                for resource in ALWAYS:
                    one.kubelet.close_connection(resource)
            case 1:
                one.kubelet.make_stale()
                one.kubelet.listen()
            case 2:
                for name in one.sockets():
                    (one.plugins / name).unlink(missing_ok=True)  # the agent may be serving on a new one
            case 3:
                one.kubelet.restart()

    for turn in range(7):
        count = len(one.kubelet.registrations)
        trigger(turn)
        assert one.kubelet.wait(lambda n=count: len(one.kubelet.registrations) >= n + 3), turn  # type: ignore[misc]
        wait_for(lambda: agent.unready_because() is None)
        one.offers(mem=160)
    made = one.kubelet.registrations
    assert len(made) >= 20
    assert len({r.endpoint for r in made}) == len(made)
    assert not one.kubelet.refused
    assert len(one.sockets()) == 3
    # Kubelet may be told the end of a former stream later than of the new list.
    assert one.kubelet.wait(lambda: all(one.kubelet.streams(resource) == 1 for resource in ALWAYS))
    gc.collect()
    wait_for(lambda: sum(thread.name.startswith("rpc ") for thread in threading.enumerate()) <= 24)


@pytest.mark.parametrize("version", VERSIONS)
def test_08_events_that_mean_nothing_are_ignored(node: MakeNode, version: str) -> None:
    """Connected; kubelet.sock is touched, and created again with the same inode: no second Register, one stream each."""
    one = node(version)
    one.run()
    one.offers(mem=160)
    for _ in range(3):
        one.kubelet.touch_socket()
        one.kubelet.recreate_socket_event()
        observe(0.7)
    assert len(one.kubelet.registrations) == 3
    assert all(one.kubelet.streams(resource) == 1 for resource in ALWAYS)
    assert not one.kubelet.ended


@pytest.mark.parametrize("version", VERSIONS)
def test_09_one_lost_connection_is_made_again_and_others_go_on(node: MakeNode, version: str) -> None:
    """Connected; the registry closes one resource's connection, its socket untouched: that resource registers again,
    the other two are not disturbed."""
    one = node(version, box(1))
    one.run()
    one.offers(mem=80)
    one.kubelet.close_connection(MEM)
    assert one.kubelet.wait(lambda: len(one.kubelet.registrations) == 4)
    assert one.kubelet.registrations[-1].resource == MEM
    one.offers(mem=80)
    assert {resource for resource, _, _ in one.kubelet.ended} == {MEM}
    observe(0.5)
    assert len(one.kubelet.registrations) == 4
    assert all(one.kubelet.streams(resource) == 1 for resource in ALWAYS)
