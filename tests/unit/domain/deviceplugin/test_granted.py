"""What a container receives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.deviceplugin.allocate import granted
from gpuagent.domain.deviceplugin.located import locate
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import Kind, Mode, Resources
from gpuagent.domain.sharing.units import MemoryUnit
from tests.unit.domain.builders import CORE, MEM, WHOLE, NodeUnderTest, box, gpu, in_force, key, unit_ids, uuid

NODES = DeviceStrategy.DEVICE_NODES


def of(node: NodeUnderTest, resource: str, ids, strategy=NODES):
    return granted(resource, locate(resource, ids, node.snap), node.snap, strategy)


def reason(node: NodeUnderTest, resource: str, ids) -> Reason:
    with pytest.raises(Refusal) as caught:
        locate(resource, ids, node.snap)
    return caught.value.reason


def test_a_memory_share():
    given_ = of(in_force(Mode.CGPU), MEM, unit_ids(1, Kind.MEMORY_CGPU, 2, 5, 7))
    assert given_.env == {
        "NVIDIA_VISIBLE_DEVICES": uuid(1),
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_UNIT": "GiB",
    }
    assert (given_.kind, given_.units) == (Kind.MEMORY_CGPU, 3)
    assert given_.device_nodes == ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert given_.cdi_names == ()


def test_a_spread_share_says_both_gpus_and_the_sum():
    ids = unit_ids(1, Kind.MEMORY_SHARE, 0, 1) | unit_ids(0, Kind.MEMORY_SHARE, 8, 9)
    given_ = of(in_force(Mode.SHARE, (gpu(0), gpu(1, 80)), unit=MemoryUnit(512)), MEM, ids)
    assert given_.env == {
        "NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}",
        "ALIYUN_COM_GPU_MEM_IDX": "0,1",
        "ALIYUN_COM_GPU_MEM_DEV": "32,160",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_UNIT": "512MiB",
    }
    assert given_.device_nodes[:2] == ("/dev/nvidia0", "/dev/nvidia1")


def test_compute_and_memory_of_a_container_set_no_key_to_different_values():
    node = in_force(Mode.CORE_MEM)
    memory = of(node, MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, 1, 2))
    compute = of(node, CORE, unit_ids(0, Kind.CORE_CORE_MEM, *range(30)))
    assert compute.units == 30
    common = memory.env.keys() & compute.env.keys()
    assert all(memory.env[name] == compute.env[name] for name in common)
    assert set(memory.device_nodes) == set(compute.device_nodes)


def test_whole_gpus():
    given_ = of(in_force(Mode.TOPOLOGY, box(3)), WHOLE, [f"{key(2)}-gt-0", f"{key(0)}-gt-0"])
    assert given_.env == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(2)}"}
    assert [g.index for g in given_.gpus] == [0, 2]


def test_cdi_names_replace_device_nodes():
    given_ = of(in_force(Mode.SHARE), MEM, unit_ids(0, Kind.MEMORY_SHARE, 1), DeviceStrategy.CDI)
    assert (given_.device_nodes, given_.cdi_names) == ((), (f"nvidia.com/gpu={uuid(0)}",))


def test_the_device_node_follows_the_minor_not_the_index():
    node = in_force(Mode.SHARE, (gpu(0, index=1, minor=3), gpu(1, index=0, minor=5)))
    given_ = of(node, MEM, unit_ids(0, Kind.MEMORY_SHARE, 1))
    assert given_.device_nodes[0] == "/dev/nvidia3"
    assert given_.env["ALIYUN_COM_GPU_MEM_IDX"] == "3"


def test_ids_that_were_dropped_by_a_switch_are_still_known():
    node = in_force(Mode.SHARE).label("topology").wait(3)
    ids = unit_ids(0, Kind.MEMORY_SHARE, 1, 2)
    assert not ids & node.snap.units.keys()
    assert of(node, MEM, ids).kind is Kind.MEMORY_SHARE


@pytest.mark.parametrize(
    "ids",
    [
        [f"{key(7)}-ms-0"],
        [f"{key(0)}-ms-16"],
        [f"{key(0)}-gt-1"],
        [uuid(0)],
        [""],
        ["nonsense"],
        [f"{key(0)}-ms-0", "nonsense"],
    ],
)
def test_ids_that_do_not_exist_here_are_refused(ids):
    assert reason(in_force(Mode.SHARE), MEM, ids) is Reason.UNKNOWN_DEVICE


def test_no_ids_are_refused():
    assert reason(in_force(Mode.SHARE), MEM, []) is Reason.EMPTY_REQUEST


@pytest.mark.parametrize(
    ("resource", "ids"),
    [
        (CORE, [f"{key(0)}-mm-0"]),
        (MEM, [f"{key(0)}-cm-0"]),
        (MEM, [f"{key(0)}-mm-0", f"{key(0)}-ms-0"]),
        (WHOLE, [f"{key(0)}-gd-0"]),
        ("nvidia.com/gpu", [f"{key(0)}-gt-0"]),
    ],
)
def test_ids_of_another_resource_or_mixed_kinds_are_refused(resource, ids):
    assert reason(in_force(Mode.CORE_MEM, resources=Resources("nvidia.com/gpu")), resource, ids) is (
        Reason.MIXED_RESOURCES
    )


@given(st.lists(st.text(max_size=12), max_size=3))
def test_any_ids_are_located_or_refused(ids):
    with pytest.raises(Refusal):
        locate(MEM, ids, in_force(Mode.SHARE).snap)


@given(st.permutations([f"{key(g)}-ms-{n}" for g in (0, 1) for n in (3, 4)]))
def test_the_order_of_ids_changes_nothing(ids):
    node = in_force(Mode.SHARE)
    assert of(node, MEM, ids) == of(node, MEM, sorted(ids))
