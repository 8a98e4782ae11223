"""The start-up taint goes when the node shows the amounts of its mode, and not before."""

from typing import Any

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.resource_slice import slice_spec
from gpuagent.domain.reconcile.startup_taint import taint_to_remove
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.status.problems import problems
from tests.unit.domain.builders import CORE, MEM, WHOLE, NodeUnderTest, box, node_json, uuid

KEY = "example.com/gpu-starting"
OTHER = {"key": "example.com/other", "effect": "NoSchedule"}


def node_with_taint(mode: Mode, **policy: Any) -> NodeUnderTest:
    return NodeUnderTest(mode, box(), startup_taint=KEY, **policy)


def connect(node: NodeUnderTest, *, but: str = "") -> NodeUnderTest:
    for resource in node.state.policy.resources.names:
        node.send(ev.RegistrationChanged(resource, None, node.now, connected=resource != but))
    return node


def show(node: NodeUnderTest, *keys: str, **amounts: str) -> NodeUnderTest:
    names = {"mem": MEM, "core": CORE, "whole": WHOLE}
    seen = node_json(str(node.state.node.mode))
    seen["spec"] = {"taints": [{"key": key, "value": "v", "effect": "NoSchedule"} for key in keys]}
    seen["status"] = {"allocatable": {names[short]: text for short, text in amounts.items()}}
    return node.send(ev.NodeSeen(seen, node.now))


def test_it_goes_when_the_node_shows_the_amounts() -> None:
    node = show(connect(node_with_taint(Mode.SHARE)), KEY, mem="0")
    assert taint_to_remove(node.state) == ""
    assert "StartupTaint" in [p.reason for p in problems(node.state)]
    show(node, KEY, mem="31")
    assert taint_to_remove(node.state) == ""
    show(node, KEY, mem="32")
    assert taint_to_remove(node.state) == KEY
    node.announcements.clear()
    show(node, mem="32")
    assert taint_to_remove(node.state) == ""
    assert node.announced() == ["StartupTaintRemoved"]
    assert problems(node.state) == []


def test_amounts_of_before_a_reboot_do_not_count() -> None:
    node = show(node_with_taint(Mode.SHARE), KEY, mem="32")
    assert taint_to_remove(node.state) == ""
    connect(node, but=MEM)
    assert taint_to_remove(node.state) == ""
    connect(node)
    assert taint_to_remove(node.state) == KEY


def test_both_amounts_of_a_mode_that_sells_two() -> None:
    node = show(connect(node_with_taint(Mode.CORE_MEM)), KEY, mem="32")
    assert taint_to_remove(node.state) == ""
    show(node, KEY, mem="32", core="200")
    assert taint_to_remove(node.state) == KEY


def test_a_mode_that_advertises_nothing_needs_kubelet_only() -> None:
    node = show(node_with_taint(Mode.DEFAULT), KEY)
    assert taint_to_remove(node.state) == ""
    assert taint_to_remove(connect(node).state) == KEY


def test_mode_dra_needs_the_driver_at_kubelet_and_a_gpu_without_a_taint() -> None:
    node = show(connect(node_with_taint(Mode.DRA)), KEY)
    assert taint_to_remove(node.state) == ""
    spec = slice_spec(node.state, "n")
    assert spec is not None
    node.send(ev.SlicesSeen({"n": {"spec": spec}}, node.now))
    assert taint_to_remove(node.state) == "", "a slice of before a reboot"
    node.send(ev.DraRegistered(None, node.now))
    assert taint_to_remove(node.state) == KEY
    tainted = [device | {"taints": [{"key": "k", "effect": "NoSchedule"}]} for device in spec["devices"]]
    node.send(ev.SlicesSeen({"n": {"spec": spec | {"devices": tainted}}}, node.now))
    assert taint_to_remove(node.state) == ""


def test_a_mode_that_is_at_zero_keeps_it() -> None:
    node = show(connect(node_with_taint(Mode.TOPOLOGY)), KEY, whole="2")
    assert taint_to_remove(node.state) == KEY
    for n in range(2):
        node.send(ev.GpuLost(uuid(n), "fell off the bus", node.now))
    show(node, KEY, whole="0")
    assert taint_to_remove(node.state) == ""


def test_it_goes_again_when_it_is_put_again() -> None:
    node = show(connect(node_with_taint(Mode.TOPOLOGY)), whole="2")
    assert taint_to_remove(node.state) == ""
    assert taint_to_remove(show(node, KEY, "example.com/other", whole="2").state) == KEY


@pytest.mark.parametrize("key", ["", "example.com/another"])
def test_only_the_one_that_the_setting_names(key: str) -> None:
    node = NodeUnderTest(Mode.TOPOLOGY, box(), startup_taint=key)
    show(connect(node), KEY, whole="2")
    assert taint_to_remove(node.state) == ""
    assert problems(node.state) == []
