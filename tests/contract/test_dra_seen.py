"""Status, condition and probe of a node in mode dra that cannot serve claims."""

from collections.abc import Callable

import pytest

from gpuagent.agent import dra_driver, loop
from gpuagent.agent.agent import Agent
from tests.contract.claim_node import ClaimNode
from tests.contract.harness import wait_for

MakeNode = Callable[..., ClaimNode]


def reasons(agent: Agent) -> list[str]:
    return [problem["reason"] for problem in agent.status()["problems"]]


def test_a_kubelet_that_never_looks_is_a_problem_until_it_does(
    claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dra_driver, "REGISTER_S", 0.0)
    monkeypatch.setattr(loop, "BEAT_S", 0.1)
    one = claim_node(registry=0.1)
    one.kubelet.claims.stop()
    agent = one.run()
    wait_for(lambda: reasons(agent) == ["DRADriverNotRegistered"], what=lambda: reasons(agent))
    assert "plugins_registry" in agent.status()["resources"]["gpu.gpuagent.io"]["problem"]
    assert "gpu.gpuagent.io: it has not asked for the driver" in (agent.unready_because() or "")
    one.kubelet.claims.start()
    wait_for(lambda: not reasons(agent), what=lambda: reasons(agent))
    wait_for(lambda: agent.unready_because() is None)


def test_a_driver_that_comes_back_is_not_ready_before_kubelet_has_accepted_it(
    claim_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node was in another mode meanwhile. That kubelet accepted the driver before says nothing now."""
    monkeypatch.setattr(dra_driver, "REGISTER_S", 0.0)
    monkeypatch.setattr(loop, "BEAT_S", 0.1)
    one = claim_node(registry=0.1)
    agent = one.run()
    one.published()
    one.label("share")
    one.registered(0)
    wait_for(lambda: not agent.state.claims.registered)
    one.kubelet.claims.stop()
    one.label("dra")
    wait_for(lambda: "DRADriverNotRegistered" in reasons(agent), what=lambda: reasons(agent))
    one.kubelet.claims.start()
    wait_for(lambda: "DRADriverNotRegistered" not in reasons(agent), what=lambda: reasons(agent))


def test_a_slice_that_the_api_server_refuses_is_the_condition_of_the_node(claim_node: MakeNode) -> None:
    one = claim_node()
    one.server.deny("create", "resourceslices")
    agent = one.run()
    wait_for(lambda: reasons(agent) == ["ResourceSliceNotWritten"], what=lambda: reasons(agent))
    (problem,) = agent.status()["problems"]
    assert "create, patch and delete on resourceslices" in problem["message"]
    one.server.allow("create", "resourceslices")
    one.published()
    wait_for(lambda: not reasons(agent), what=lambda: reasons(agent))


def test_slices_that_cannot_be_followed_are_a_problem(claim_node: MakeNode) -> None:
    one = claim_node()
    one.server.deny("list", "resourceslices")
    agent = one.run()
    wait_for(lambda: reasons(agent) == ["ResourceSlicesUnavailable"], what=lambda: reasons(agent))
    one.server.allow("list", "resourceslices")
    one.published()
    wait_for(lambda: not reasons(agent), what=lambda: reasons(agent))
