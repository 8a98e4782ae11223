"""Excuses of the checker that hold for what they are about, and for nothing else."""

from types import SimpleNamespace

import pytest

from simworld.claim_checker import ClaimChecker
from simworld.refusal_reasons import RefusalReasons
from simworld.refusals import RefusalChecks
from simworld.scenario import Action
from tests.unit.simworld.own_process import output_of

VANISHED = """
from pathlib import Path
from tempfile import TemporaryDirectory
from simworld.runtime.replace import replace_machine
replace_machine()
from gpuagent.agent.device_plugins import DevicePlugins
from simworld.play import play
from simworld.scenario import Scenario

make = DevicePlugins.__init__

def without_compute(self, *, resources, **others):
    make(self, resources=[name for name in resources if not name.endswith("percentage")], **others)

DevicePlugins.__init__ = without_compute
with TemporaryDirectory() as folder:
    outcome = play(Scenario(1, ("1.36",), 1, "share", False, 5.0, ()), Path(folder))
print(*outcome.broken, sep="\\n")
"""


def test_a_resource_of_another_mode_that_is_not_there_is_no_zero():
    says = "node-1 in mode share says nothing of aliyun.com/gpu-core.percentage, not even zero"
    assert says in output_of(VANISHED)


@pytest.mark.parametrize(
    ("action", "excused"),
    [
        (Action(0.0, "restart_agent", (1, 0.0)), {"node-2"}),
        (Action(0.0, "break_gpu", (2, 0, 79)), {"node-1"}),
        (Action(0.0, "stop_api", (2.0,)), {"node-1", "node-2"}),
        (Action(0.0, "restart_slow_agent", (1, 0.0, 2.0)), {"node-1", "node-2"}),
        (Action(0.0, "create_pod", ("aliyun.com/gpu-mem", 1, 0, 1)), set()),
    ],
)
def test_a_fault_of_a_node_excuses_refusals_of_that_node_alone(action, excused):
    nodes = [SimpleNamespace(name="node-1"), SimpleNamespace(name="node-2")]
    world = SimpleNamespace(nodes=nodes, node_of=lambda which: nodes[which % 2])
    checks = RefusalChecks(world)
    checks.acts(action)
    assert {node for node, calm_from in checks.calm_from.items() if calm_from > 0.0} == excused


def pod_on(uid, node):
    return {"metadata": {"uid": uid}, "spec": {"nodeName": node}}


@pytest.mark.parametrize(("edited", "is_excused"), [("here", True), ("elsewhere", False), ("waiting", False)])
def test_an_edited_pod_excuses_reasons_of_its_node_alone(edited, is_excused):
    pods = [pod_on("here", "node-1"), pod_on("elsewhere", "node-2"), pod_on("waiting", "")]
    objects = SimpleNamespace(peek=lambda _: pods)
    history = SimpleNamespace(edited={edited: 1.0})
    reasons = RefusalReasons(SimpleNamespace(history=history, api=SimpleNamespace(objects=objects)))
    assert reasons.has_edited_pods(SimpleNamespace(name="node-1")) is is_excused


def test_an_edited_pod_that_is_gone_still_excuses_reasons_of_its_node():
    objects = SimpleNamespace(peek=lambda _: [])
    history = SimpleNamespace(edited={"gone": 1.0})
    reasons = RefusalReasons(SimpleNamespace(history=history, api=SimpleNamespace(objects=objects)))
    list(reasons.bound("gone", "node-1", {}))
    assert reasons.has_edited_pods(SimpleNamespace(name="node-1"))


@pytest.mark.parametrize(
    ("lost_at", "booted_at", "is_excused"), [(5.0, 9.0, True), (9.0, 5.0, False), (None, 9.0, False)]
)
def test_a_container_of_a_claim_may_be_missing_only_if_its_node_booted_after_the_loss(lost_at, booted_at, is_excused):
    lost = {} if lost_at is None else {"GPU-1": lost_at}
    node = SimpleNamespace(name="node-1", lost=lost, booted_at=booted_at)
    allocated = {"pod": {"claim": [SimpleNamespace(uuid="GPU-1")]}}
    claims = SimpleNamespace(scheduler=SimpleNamespace(allocated=allocated))
    history = SimpleNamespace(start_checks=[], bound_checks=[], refusal_checks=[])
    scenario = SimpleNamespace(has_claims=False)
    checker = ClaimChecker(SimpleNamespace(nodes=[node], claims=claims, history=history, scenario=scenario))
    assert checker.was_lost_before_a_boot(pod_on("pod", "node-1")) is is_excused
