"""The GPUs that the node publishes to schedulers, event by event: they are those of kubelet's lists."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.advertise import SETTLE_S
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.reconcile.published_gpus import node_annotations, published_gpus
from gpuagent.domain.reconcile.topology_report import config_maps
from gpuagent.domain.scheduling.node_gpus import NodeGpu, NodeGpus, node_gpus
from gpuagent.domain.scheduling.node_links import node_links
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Kind, Mode, Resources
from gpuagent.domain.sharing.units import MemoryUnit
from tests.unit.domain.builders import (
    DGX1V,
    MEM,
    WHOLE,
    NodeUnderTest,
    box,
    gpu,
    holding,
    in_force,
    node_json,
    unit_ids,
    uuid,
)

OUT = {"usable": False}


def gpus(node: NodeUnderTest) -> tuple[NodeGpu, ...]:
    return published_gpus(node.state).gpus


@pytest.mark.parametrize(
    ("mode", "units"),
    [
        (Mode.SHARE, {"memory": 16}),
        (Mode.CGPU, {"memory": 16}),
        (Mode.MPS, {"memory": 16}),
        (Mode.CORE_MEM, {"memory": 16, "core": 100}),
        (Mode.TOPOLOGY, {"whole": True}),
    ],
)
def test_each_gpu_has_the_units_of_the_mode(mode, units):
    node = in_force(mode)
    assert gpus(node) == (NodeGpu(0, **units), NodeGpu(1, **units))
    assert node_gpus(node_annotations(node.state)) == published_gpus(node.state)


@pytest.mark.parametrize(
    "node",
    [
        in_force(Mode.DEFAULT),
        in_force(Mode.DEFAULT, resources=Resources("nvidia.com/gpu")),
        NodeUnderTest(Mode.CGPU, box(), isolates=frozenset()),
        NodeUnderTest(Mode.SHARE).holdings(),
        NodeUnderTest(Mode.SHARE).inventory(*box()),
        in_force(Mode.TOPOLOGY).send(
            ev.NodeSeen({**node_json("topology"), "status": {"allocatable": {"nvidia.com/gpu": "2"}}}, 0.0)
        ),
    ],
    ids=["default", "default with whole GPUs", "no isolation", "no driver", "no allocations read", "another plugin"],
)
def test_a_mode_at_zero_publishes_no_gpus(node):
    assert gpus(node) == ()


def test_the_last_annotation_stays_until_everything_is_read():
    def publishes(**changes: Any) -> bool:
        return bool(node_annotations(replace(state, **changes)))

    state = NodeUnderTest(Mode.SHARE).inventory(*box()).holdings().state
    assert publishes()
    assert not publishes(node=replace(state.node, mode_known=False))
    assert not publishes(isolation=replace(state.isolation, unreported=frozenset({"mps"})))
    assert not publishes(holdings=NodeUnderTest(Mode.SHARE).inventory(*box()).state.holdings)
    unread = NodeUnderTest(Mode.SHARE).holdings()
    assert not publishes(gpus=unread.state.gpus)
    assert publishes(gpus=unread.send(ev.DriverUnavailable("it is broken", unread.now)).state.gpus)


def test_an_unhealthy_and_a_fenced_gpu_keep_their_units_and_are_not_usable_until_they_are_back():
    node = in_force(Mode.SHARE, box(3))
    node.send(ev.FenceRead(Fence(indexes=frozenset("2")), node.now)).send(ev.XidRaised(uuid(0), 79, node.now))
    assert gpus(node) == (NodeGpu(0, 16, **OUT), NodeGpu(1, 16), NodeGpu(2, 16, **OUT))
    node.send(ev.FenceRead(Fence(), node.now))
    assert gpus(node) == (NodeGpu(0, 16, **OUT), NodeGpu(1, 16), NodeGpu(2, 16))


def test_a_gpu_in_mig_mode_and_one_that_cannot_be_isolated_have_no_units():
    node = in_force(Mode.CGPU, (gpu(0, mig=True), gpu(1), gpu(2)))
    layer = node.state.layer
    node.send(ev.LayerSeen(replace(layer, left_out={uuid(2): "too old"}), node.now)).wait(SETTLE_S)
    assert gpus(node) == (NodeGpu(0, **OUT), NodeGpu(1, 16), NodeGpu(2, **OUT))


def test_gpus_are_in_the_order_of_their_minor_numbers():
    node = in_force(Mode.SHARE, (gpu(0, 80, minor=7), gpu(1, 16, minor=4)))
    assert gpus(node) == (NodeGpu(4, 16), NodeGpu(7, 80))


def test_a_lost_gpu_is_not_usable_and_leaves_its_number_to_another_one():
    node = in_force(Mode.SHARE).inventory(gpu(0))
    assert gpus(node) == (NodeGpu(0, 16), NodeGpu(1, 16, **OUT))
    node.inventory(gpu(0), gpu(2, 24, index=1, minor=1))
    assert gpus(node) == (NodeGpu(0, 16), NodeGpu(1, 24))


def test_in_a_switch_a_gpu_is_usable_when_the_last_container_of_the_old_mode_is_gone():
    held = holding("a", unit_ids(1, Kind.MEMORY_SHARE, 0))
    node = in_force(Mode.SHARE).holdings(held)
    node.label("cgpu")
    assert gpus(node) == (NodeGpu(0, **OUT), NodeGpu(1, **OUT))
    node.wait(SETTLE_S).wait(0.1).holdings(held)
    assert gpus(node) == (NodeGpu(0, 16), NodeGpu(1, **OUT))
    node.holdings()
    assert gpus(node) == (NodeGpu(0, 16), NodeGpu(1, 16))


def test_a_gpu_of_a_container_of_another_plugin_is_not_usable():
    node = in_force(Mode.TOPOLOGY).holdings(holding("a", [uuid(1)], "nvidia.com/gpu")).wait(SETTLE_S)
    assert gpus(node) == (NodeGpu(0, whole=True), NodeGpu(1, **OUT))


def test_without_isolation_no_gpu_is_published_though_old_units_still_leave_the_list():
    node = in_force(Mode.CGPU)
    node.send(ev.LayerSeen(replace(node.state.layer, problem="the module is gone"), node.now))
    assert node.fenced(MEM)
    assert gpus(node) == ()


def test_the_rules_for_requests_are_those_of_the_settings():
    node = in_force(Mode.SHARE, unit=MemoryUnit(256), max_pods_per_gpu=7, core_step=5, core_mem_both=True)
    found = published_gpus(node.state)
    assert (found.unit_mib, found.most_pods, found.core_step, found.both) == (256, 7, 5, False)
    assert found.gpus[0].memory == 64


@pytest.mark.parametrize("both", [True, False])
def test_a_container_asks_for_both_only_where_the_mode_has_both(both):
    assert published_gpus(in_force(Mode.CORE_MEM, core_mem_both=both).state).both is both


@pytest.mark.parametrize(("sharers", "most"), [(None, 20), (48, 20), (16, 16)])
def test_the_isolation_layer_may_allow_fewer_pods_on_a_gpu(sharers, most):
    node = in_force(Mode.CGPU)
    layer = Layer(
        driver="all",
        installed=True,
        isolates=node.state.layer.isolates,
        modes=frozenset(Mode),
        max_sharers=sharers,
    )
    assert published_gpus(node.send(ev.LayerSeen(layer, node.now)).state).most_pods == most


# -- links ---------------------------------------------------------------------------------------------------------------


def mesh(*minors: int) -> NodeUnderTest:
    """A DGX-1 in mode topology, with these minor numbers."""
    there = tuple(gpu(n, minor=minor) for n, minor in enumerate(minors or range(8)))
    return in_force(Mode.TOPOLOGY, there).inventory(*there, wiring=DGX1V)


def data(node: NodeUnderTest) -> dict[str, str]:
    (facts,) = config_maps(node.state, "n1")
    return dict(facts.data or {})


def test_nodes_with_equal_links_publish_equal_hashes_whatever_their_gpus_are_called():
    one, other = published_gpus(mesh().state), published_gpus(mesh(0, 1, 2, 3, 4, 5, 6, 9).state)
    assert one.links == other.links != ""
    assert published_gpus(in_force(Mode.TOPOLOGY, box(8)).state).links not in (one.links, "")


@pytest.mark.parametrize("mode", [Mode.DEFAULT, Mode.SHARE, Mode.CORE_MEM])
def test_no_hash_is_published_where_no_config_map_has_the_links(mode):
    assert published_gpus(in_force(mode, box(8)).state).links == ""


@pytest.mark.parametrize("minors", [(), (3, 0, 1, 2, 4, 5, 6, 8)], ids=["as their indexes", "others"])
def test_the_links_are_read_back_by_minor_number(minors):
    node = mesh(*minors)
    found = node_links(data(node), published_gpus(node.state))
    assert found is not None
    by_minor = sorted(range(8), key=lambda n: gpus_minor(node, n))
    mbps = node.state.gpus.topology.mbps
    assert found == tuple(tuple(mbps[i][j] for j in by_minor) for i in by_minor)


def gpus_minor(node: NodeUnderTest, index: int) -> int:
    return node.state.gpus.by_uuid[uuid(index)].minor


def test_a_lost_gpu_has_no_links_and_stands_where_it_stood():
    node = mesh()
    before = data(node), published_gpus(node.state)
    node.inventory(*(gpu(n) for n in range(7)), wiring=DGX1V)
    found = node_links(data(node), published_gpus(node.state))
    assert found is not None
    assert [len(row) for row in found] == [8] * 8
    assert found[7] == (0,) * 8
    assert found[0][1] == 25_000
    assert node_links(before[0], published_gpus(node.state)) is None, "the ConfigMap is older than the annotation"
    assert node_links(data(node), before[1]) is None, "the annotation is older than the ConfigMap"


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, "{}", "7", "[[]]", '[["x","x"],["x","x"]]', "[[NaN,1],[1,0]]", "[[1e999,1],[1,0]]"]
)
def test_what_is_no_square_of_bandwidths_is_not_read(text):
    node = in_force(Mode.TOPOLOGY)
    assert node_links({"bandwidth": text}, published_gpus(node.state)) is None
    assert node_links({}, published_gpus(node.state)) is None
    assert node_links(data(node), NodeGpus(())) is None
    assert node_links(data(node), published_gpus(node.state)) is not None


def test_whole_gpus_in_use_stay_published():
    node = in_force(Mode.TOPOLOGY).holdings(holding("a", unit_ids(0, Kind.WHOLE_TOPOLOGY, 0), WHOLE))
    assert gpus(node) == (NodeGpu(0, whole=True), NodeGpu(1, whole=True))
