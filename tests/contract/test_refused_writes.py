"""What the API server refuses to take is a problem that says which right is missing, and it ends with the right."""

from collections.abc import Callable

import pytest

from gpuagent.agent.agent import Agent
from gpuagent.domain.sharing.mode import GPU_MEM as MEM
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.domain.status.problems import Problem, problems
from tests.contract.harness import Node, box, pod, wait_for

MakeNode = Callable[..., Node]


def problem(agent: Agent, reason: str) -> Problem | None:
    return next((found for found in problems(agent.state) if found.reason == reason), None)


@pytest.mark.parametrize(
    ("verb", "resource", "reason"),
    [
        ("patch", "nodes", "NodeNotWritten"),
        ("patch", "nodes/status", "NodeNotWritten"),
        ("create", "events", "EventsRefused"),
        ("patch", "pods", "AnnotationsNotWritten"),
        ("list", "nodes", "APIServerUnavailable"),
        ("watch", "nodes", "APIServerUnavailable"),
    ],
)
def test_a_missing_right_is_a_problem_that_names_it(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, verb: str, resource: str, reason: str
) -> None:
    # An Event that is forbidden is tried for half a minute: an API server that has just started forbids everything.
    monkeypatch.setattr("gpuagent.kube.write.event_sender.FORBIDDEN_TRIES", 0)
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "bogus"})
    one.server.deny(verb, resource)
    agent = one.run(mode="share")
    one.offers(mem=48)
    made = one.bind(pod("p", {MEM: 6}))
    assert one.kubelet.admit(made)
    one.kubelet.start_container(made, "c0")
    wait_for(lambda: problem(agent, reason), what=reason)
    found = problem(agent, reason)
    assert found
    assert f'RBAC refuses: allow verb "{verb}" on resource "{resource}"' in found.message
    one.server.allow(verb, resource)
    one.server.create_pod("another", node=one.server.node_name)
    one.label("nonsense")  # another Event, and another version of the Node
    wait_for(lambda: not problem(agent, reason), what=f"the end of {reason}")
