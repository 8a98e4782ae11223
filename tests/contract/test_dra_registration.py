"""Conformance checks 40 to 45, 77 and 84: how the agent registers as a DRA driver. After kubelet's own test/e2e_node/dra_test.go."""

import signal
import threading
from collections.abc import Callable

import pytest

from gpuagent.kubelet.dra import plugin
from standin.waiting import PATIENCE_S
from tests.contract.claim_node import ISOLATED, ClaimNode
from tests.contract.harness import Isolating, observe, terminate, wait_for
from tests.paused_process import pause_process, resume_process

MakeNode = Callable[..., ClaimNode]


def test_40_registers_after_a_restart_of_kubelet(claim_node: MakeNode) -> None:
    """`must register after Kubelet restart`."""
    one = claim_node()
    one.run()
    before = one.registered()
    one.kubelet.restart()
    assert one.registered() == before, "kubelet finds the sockets that are there"


def test_41_registers_after_a_restart_of_the_agent(claim_node: MakeNode) -> None:
    """`must register after plugin restart`: in order, and after a kill, whose sockets are swept."""
    one = claim_node()
    first = one.run()
    ended = one.registered()
    one.stop(first)
    one.registered(0)
    process = one.spawn(*one.claim_flags(), wait=False)
    killed = one.registered()
    assert killed != ended
    terminate(process, signal.SIGKILL)
    one.run()
    wait_for(lambda: len(one.instances()) == 1 and one.instances() != killed)
    assert len([*(one.root / "k" / "plugins_registry").iterdir()]) == 1


def test_42_registers_after_getinfo_failed(claim_node: MakeNode) -> None:
    """`must recover and register after registration failure`: the agent does not run when kubelet asks."""
    one = claim_node()
    process = one.spawn(*one.claim_flags(), wait=False)
    one.registered()
    one.kubelet.stop()
    pause_process(process.pid)
    one.kubelet.start()
    wait_for(lambda: any("DeadlineExceeded" in problem for _, problem in one.kubelet.claims.registrations))
    assert not one.instances()
    resume_process(process.pid)
    one.registered()


def test_43_registers_after_the_notice_failed(claim_node: MakeNode) -> None:
    """`must recover and register after NotifyRegistrationStatus failure`."""
    one = claim_node(notify=-1.0)
    one.run()
    wait_for(lambda: any("DeadlineExceeded" in problem for _, problem in one.kubelet.claims.registrations))
    one.kubelet.claims.periods.notify = PATIENCE_S
    one.registered()


@pytest.mark.parametrize(("version", "service"), [("1.33", "v1beta1.DRAPlugin"), ("1.36", "v1.DRAPlugin")])
def test_44_both_versions_of_the_service_are_served(claim_node: MakeNode, version: str, service: str) -> None:
    """Kubelet takes the first service that it supports. (Kubernetes before 1.36 allocates no shares by default.)"""
    one = claim_node(version)
    one.run()
    one.registered()
    one.run_pod("pod", memory="8Gi")
    one.delete("pod")
    one.gone("pod")
    assert {call.service for call in one.kubelet.claims.calls} == {service}
    assert not any(call.error for call in one.kubelet.claims.calls)


def test_45_a_registration_that_kubelet_refuses_is_reported(claim_node: MakeNode) -> None:
    """A kubelet that supports no service of the agent says so; the agent keeps why, and no pod is promised anything."""
    one = claim_node("1.20")
    agent = one.run()
    wait_for(lambda: agent.state.claims.registration_problem)
    assert "none of services supported by the plugin" in (agent.state.claims.registration_problem or "")
    assert not agent.state.claims.registered


def test_77_one_agent_replaces_another_and_no_call_fails(claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both serve for a while, and each has the claims of both; what is in progress when the former ends is answered."""
    monkeypatch.setattr(plugin, "GRACE_S", PATIENCE_S)
    one, isolation = claim_node(), Isolating()
    former = one.run(isolation)
    one.registered()
    one.run_pod("before", memory="8Gi")
    entered, release = threading.Event(), threading.Event()

    def slow(_: object) -> None:
        entered.set()
        assert release.wait(PATIENCE_S)

    isolation.on_prepare = slow
    one.create("amid", ISOLATED, memory="8Gi")
    assert entered.wait(PATIENCE_S)
    newer = one.run()
    one.registered(2)
    wait_for(lambda: former.state.claims.superseded)
    stopping = threading.Thread(target=one.stop, args=[former])
    stopping.start()
    observe(0.3)
    assert stopping.is_alive()
    release.set()
    stopping.join()
    one.registered(1)
    one.running("amid")
    one.run_pod("after", memory="8Gi")
    assert not any(call.error for call in one.kubelet.claims.calls)
    wait_for(lambda: len(newer.state.claims.prepared) == 3)
    assert one.files() == (3, 3)
    assert not newer.state.claims.superseded


@pytest.mark.parametrize("folder", ["plugins_registry", "plugins/gpu.gpuagent.io"])
def test_84_a_socket_that_cannot_be_made_is_reported_and_made_later(claim_node: MakeNode, folder: str) -> None:
    """`must report gRPC serving error` for the registrar and for the service: a file is where the folder belongs."""
    one = claim_node()
    path = one.root / "k" / folder
    path.parent.mkdir(exist_ok=True)
    one.kubelet.stop()
    if path.exists():
        path.rmdir()
    path.touch()
    agent = one.run()
    wait_for(lambda: folder in (agent.state.claims.registration_problem or ""), what=lambda: agent.state.claims)
    path.unlink()
    one.kubelet.start()
    one.registered()
    wait_for(lambda: agent.state.claims.registered)
