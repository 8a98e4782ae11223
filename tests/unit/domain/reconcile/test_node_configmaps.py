"""The ConfigMaps of a node: who is named in the one for schedulers, and when it is there."""

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import UnreadableGpu
from gpuagent.domain.reconcile.node_configmaps import config_maps
from gpuagent.domain.sharing.mode import Mode
from tests.unit.domain.builders import NodeUnderTest, gpu, in_force, uuid


def fence(node: NodeUnderTest, *indexes: str) -> NodeUnderTest:
    return node.send(ev.FenceRead(Fence(indexes=frozenset(indexes)), node.now))


def unhealthy(node: NodeUnderTest):
    (facts,) = (facts for facts in config_maps(node.state, "n1") if facts.name.startswith("unhealthy-gpu-"))
    return facts


@pytest.mark.parametrize("mode", list(Mode))
def test_the_config_map_has_the_minor_numbers_of_unhealthy_gpus_and_is_gone_without_any(mode):
    node = in_force(mode, (gpu(0, minor=10), gpu(1, minor=2), gpu(2, minor=0)))
    assert unhealthy(node).data is None
    fence(node, "10").send(ev.XidRaised(uuid(1), 79, 1.0))
    facts = unhealthy(node)
    assert str(facts) == "kube-system/unhealthy-gpu-n1"
    assert facts.data == {"gpus": "2,10"}
    assert facts.labels == {"app.kubernetes.io/managed-by": "gpuagent", "nodename": "n1"}
    assert unhealthy(fence(node)).data == {"gpus": "2"}


def test_the_config_map_of_an_earlier_run_stands_until_the_driver_was_read():
    assert config_maps(NodeUnderTest(Mode.SHARE).state, "n1")[1:] == ()
    without = NodeUnderTest(Mode.SHARE).inventory(unreadable=(UnreadableGpu(0, "GPU is lost"),))
    assert unhealthy(without).data is None


def test_a_number_that_a_healthy_gpu_has_now_is_not_that_of_a_lost_one():
    node = in_force(Mode.SHARE, (gpu(0), gpu(1))).inventory(gpu(0), gpu(2, minor=1))
    assert unhealthy(node).data is None


def test_the_node_has_both_reports():
    assert {facts.name for facts in config_maps(in_force(Mode.TOPOLOGY).state, "n1")} == {
        "n1-gputopo-report",
        "unhealthy-gpu-n1",
    }
