"""The start-up taint keeps pods off a node, and goes when the node shows its amounts."""

from collections.abc import Callable

from gpuagent.domain.sharing.mode import MODE_LABEL
from tests.contract.harness import MEM, Node, box

MakeNode = Callable[..., Node]
KEY = "example.com/gpu-starting"


def test_the_startup_taint_goes_when_the_node_shows_its_amounts(node: MakeNode) -> None:
    """The taint stays while the Node shows less than kubelet has, and goes then; a taint of others stays."""
    other = {"key": "example.com/other", "effect": "NoSchedule"}
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    path = ("nodes", "", one.server.node_name)
    taints = [{"key": KEY, "effect": "NoSchedule"}, other, {"key": KEY, "effect": "NoExecute", "value": "v"}]
    one.server.objects.patch(path, "", {"spec": {"taints": taints}}, strategic=False)
    agent = one.run(startup_taint=KEY)
    one.offers(mem=48)
    one.connected(agent)
    one.server.patch_node_status({"allocatable": {MEM: "47"}, "capacity": {MEM: "48"}})
    one.caught_up(agent)
    assert one.server.node()["spec"]["taints"] == taints
    one.server.patch_node_status({"allocatable": {MEM: "48"}})
    assert one.server.wait(lambda: one.server.node()["spec"]["taints"] == [other]), one.server.node()["spec"]
    assert one.event("StartupTaintRemoved", KEY)
