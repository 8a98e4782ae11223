"""What the agent writes into its node condition, readers get back: each problem, with its severity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.fleet.node_problems import (
    SEVERITIES,
    AgentReport,
    NodeProblem,
    agent_report,
    condition_message,
)
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.reconcile.node_report import node_condition
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.status.problems import problems
from tests.unit.domain.builders import gpu, in_force, uuid

FENCED = NodeProblem("info", "GPUFenced", "GPU 0 is fenced; by file")
UNHEALTHY = NodeProblem("warning", "GPUUnhealthy", "GPU 3: XID 79")
DOWN = NodeProblem("blocking", "IsolationDown", "no MPS")


def node(message, status="True", reason="Ready"):
    condition = {"type": "GPUAgentReady", "status": status, "reason": reason, "message": message}
    return {"status": {"conditions": [{"type": "Ready", "status": "True"}, condition]}}


def written(state):
    return {"status": {"conditions": [node_condition(state)]}}


def test_readers_get_what_the_agent_has_written():
    under_test = in_force(Mode.SHARE, (gpu(0), gpu(1), gpu(2)), fence_file="/f")
    under_test.send(ev.FenceRead(Fence(indexes=frozenset({"0"})), 1.0)).label("bogus")
    under_test.send(ev.XidRaised(uuid(1), 79, 1.0))
    report = agent_report(written(under_test.state))
    expected = {(problem.severity, problem.reason, problem.message) for problem in problems(under_test.state)}
    assert {(problem.severity, problem.reason, problem.message) for problem in report.problems} == expected
    assert [problem.severity for problem in report.problems] == ["warning", "warning", "info"]
    assert (report.is_ready, report.mode) == (True, "share")


def test_readers_know_the_mode_in_force_of_a_node_that_does_not_serve():
    report = agent_report(written(in_force(Mode.CGPU, isolates=frozenset()).state))
    assert (report.is_ready, report.mode) == (False, "cgpu")
    assert [(problem.severity, problem.reason) for problem in report.problems] == [("blocking", "IsolationMissing")]


def test_a_sound_node_has_no_problem():
    assert agent_report(written(in_force(Mode.SHARE).state)) == AgentReport(is_ready=True, mode="share")


def test_a_node_without_the_condition_has_no_report():
    assert agent_report({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}) is None
    assert agent_report({}) is None


def test_the_worst_problem_comes_first():
    message = condition_message("mode mps, 4 GPUs", [FENCED, UNHEALTHY, DOWN])
    assert message == (
        "mode mps, 4 GPUs; IsolationDown (blocking): no MPS; GPUUnhealthy (warning): GPU 3: XID 79; "
        "GPUFenced (info): GPU 0 is fenced; by file"
    )
    assert agent_report(node(message, "False", "IsolationDown")).problems == (DOWN, UNHEALTHY, FENCED)


@given(
    st.lists(
        st.builds(
            NodeProblem,
            st.sampled_from(SEVERITIES),
            st.sampled_from(["GPUFenced", "GPUUnhealthy", "IsolationDown"]),
            st.text("ab ;:()\n\x1b", min_size=1, max_size=20),
        ),
        max_size=4,
    )
)
def test_any_message_is_read_back_as_a_terminal_may_show_it(found):
    report = agent_report(node(condition_message("mode share, 2 GPUs", found)))
    assert sorted((one.severity, one.reason) for one in report.problems) == sorted(
        (one.severity, one.reason) for one in found
    )
    assert all(one.message.isprintable() for one in report.problems)


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("mode share, 4 GPUs", "True", ()),
        ("mode share, 4 GPUs; it is broken", "True", (NodeProblem("warning", "", "it is broken"),)),
        ("mode share, 4 GPUs; for information: GPU 0 is fenced", "True", (NodeProblem("info", "", "GPU 0 is fenced"),)),
        ("no MPS; and more", "False", (NodeProblem("blocking", "Ready", "no MPS; and more"),)),
        ("", "Unknown", ()),
    ],
)
def test_messages_of_agents_before_this_format_are_one_problem(message, status, expected):
    assert agent_report(node(message, status)).problems == expected


@pytest.mark.parametrize("conditions", [3, {}, [None, 3, {"type": "GPUAgentReady", "status": {}, "message": 5}]])
def test_conditions_of_another_shape_raise_nothing(conditions):
    report = agent_report({"status": {"conditions": conditions}})
    assert report in (None, AgentReport(is_ready=None))


def test_only_so_much_of_a_message_is_read():
    long = NodeProblem("warning", "GPUUnhealthy", "x" * 100_000)
    (problem,) = agent_report(node(condition_message("", [long]))).problems
    assert len(problem.message) < 9000
