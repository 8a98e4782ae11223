"""The watch against faults of links: it looks again when one failed, and a query that hangs costs one GPU."""

import queue

import pytest

from gpuagent.domain.events import DriverUnavailable, GpuLost, InventoryRead, XidRaised
from gpuagent.domain.gpu import Gpu, Inventory
from gpuagent.domain.links import topology
from gpuagent.domain.wiring import Fabric, Wiring
from gpuagent.nvml.news import DriverNews
from gpuagent.nvml.watch import unsettled

NVLINK_XID = 74


@pytest.fixture
def settled(tmp_path):
    """Every device node is there, so that nothing is looked at again without a reason."""

    def so(count):
        (tmp_path / "dev").mkdir()
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(count))):
            (tmp_path / "dev" / name).touch()

    return so


def links(inventory, gpu):
    return len(inventory.wiring[inventory.gpus[gpu].uuid].nvlinks)


def types(inventory):
    rows = topology(inventory.gpus, inventory.wiring).links
    return [[link.type if link else None for link in row] for row in rows]


def test_the_first_look_has_all_links(simulate, watch):
    watched = watch(simulate("dgx1-v100"))
    inventory = watched.next(InventoryRead).inventory
    assert [links(inventory, gpu) for gpu in range(8)] == [6] * 8
    assert {len(wiring.relations) for wiring in inventory.wiring.values()} == {7}
    watched.watching(*range(8))


def test_an_nvlink_error_has_the_links_read_at_once(simulate, watch, settled):
    settled(8)
    simulator = simulate("dgx1-v100")
    watched = watch(simulator, reread_s=1000.0)
    watched.next(InventoryRead)
    watched.watching(*range(8))
    simulator.nvlink(0, 2, up=False)
    assert watched.quiet()
    simulator.xid(0, NVLINK_XID)
    assert watched.next(XidRaised).xid == NVLINK_XID
    inventory = watched.next(InventoryRead).inventory
    assert [links(inventory, gpu) for gpu in (0, 3)] == [5, 6]
    assert topology(inventory.gpus, inventory.wiring).links[0][3].type == "NV1"
    simulator.nvlink(3, 1, up=False)
    simulator.xid(None, NVLINK_XID)
    assert watched.next(XidRaised).uuid is None
    assert links(watched.next(InventoryRead).inventory, 3) == 5


def test_what_has_not_changed_is_not_posted_again(simulate, watch, settled, monkeypatch):
    settled(8)
    posted = queue.SimpleQueue()
    read = DriverNews.read
    monkeypatch.setattr(DriverNews, "read", lambda news, inventory: posted.put(read(news, inventory)))
    simulator = simulate("hgx-h100")
    watched = watch(simulator, reread_s=1000.0)
    assert posted.get(timeout=10)
    watched.next(InventoryRead)
    watched.watching(*range(8))
    for _ in range(3):
        simulator.xid(0, NVLINK_XID)
        watched.next(XidRaised)
        assert posted.get(timeout=10) is False
    assert watched.quiet()


OF_LINKS = (
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetTopologyCommonAncestor",
)  # fmt: skip


@pytest.mark.parametrize("function", OF_LINKS)
def test_a_query_that_hangs_at_the_first_look_hides_no_other_gpu(function, simulate, watch, settled):
    settled(4)
    simulator = simulate("pcie-4x-a40-nvlink")
    simulator.hang(function, 1)
    watched = watch(simulator, patience_s=0.2)
    inventory = watched.next(InventoryRead).inventory
    assert [gpu.index for gpu in inventory.gpus] == [0, 2, 3]
    assert [bad.index for bad in inventory.unreadable] == [1]
    assert inventory.unreadable[0].reason.startswith(function.removesuffix("_v2"))
    assert [links(inventory, gpu) for gpu in range(3)] == [4, 4, 4]
    assert inventory.gpus[2].pci_bus_id in inventory.wiring[inventory.gpus[0].uuid].relations
    simulator.unhang()
    while (inventory := watched.next(InventoryRead).inventory).unreadable:
        pass
    assert types(inventory)[0] == [None, "NV4", "SYS", "SYS"]
    watched.watching(0, 1, 2, 3)


@pytest.mark.parametrize("function", [*OF_LINKS, "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo"])
def test_a_gpu_whose_query_hangs_later_is_served_as_it_was_known(function, simulate, watch, settled):
    settled(4)
    simulator = simulate("pcie-4x-a40-nvlink")
    watched = watch(simulator, patience_s=0.2, reread_s=1000.0)
    before = watched.next(InventoryRead).inventory
    watched.watching(0, 1, 2, 3)
    simulator.hang(function, 1)
    simulator.xid(0, NVLINK_XID)
    watched.next(XidRaised)
    seen = watched.next(InventoryRead).inventory
    assert seen.gpus == before.gpus
    assert [bad.index for bad in seen.unreadable] == [1], "it costs no other GPU"
    hung = before.gpus[1].uuid
    assert seen.wiring[hung] == before.wiring[hung]
    assert types(seen) == types(before)
    simulator.unhang()
    while watched.next(InventoryRead).inventory != before:
        pass


def test_a_gpu_that_is_lost_takes_its_relations_along_and_brings_them_back(simulate, watch, settled):
    settled(4)
    simulator = simulate("pcie-4x-a10")
    watched = watch(simulator, reread_s=0.05)
    before = watched.next(InventoryRead).inventory
    watched.watching(0, 1, 2, 3)
    simulator.lose(2)
    watched.next(GpuLost)
    simulator.xid(0, NVLINK_XID)
    watched.next(XidRaised)
    seen = watched.next(InventoryRead).inventory
    assert {len(wiring.relations) for wiring in seen.wiring.values()} == {2}
    simulator.restore(2)
    assert watched.next(InventoryRead).inventory == before
    watched.watching(0, 1, 2, 3)


def test_a_fabric_that_becomes_ready_is_noticed(simulate, watch, settled):
    settled(8)
    simulator = simulate("hgx-h100")
    simulator.fabric(3, ready=False)
    watched = watch(simulator, reread_s=0.02)
    assert types(watched.next(InventoryRead).inventory)[3][0] == "NODE"
    simulator.fabric(3, ready=True)
    assert types(watched.next(InventoryRead).inventory)[3][0] == "NV18"
    watched.watching(*range(8))


def test_a_query_that_failed_is_tried_again(simulate, watch, settled):
    settled(4)
    simulator = simulate("pcie-4x-a40-nvlink")
    simulator.fail("nvmlDeviceGetNvLinkState", "UNKNOWN", 0)
    watched = watch(simulator, reread_s=0.02)
    assert links(watched.next(InventoryRead).inventory, 0) == 0
    simulator.fail("nvmlDeviceGetNvLinkState", None, 0)
    assert links(watched.next(InventoryRead).inventory, 0) == 4
    watched.watching(0, 1, 2, 3)


@pytest.mark.parametrize("function", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetTopologyCommonAncestor"])
def test_a_driver_that_goes_away_meanwhile_is_no_matter_of_links(function, simulate, watch):
    simulator = simulate("dgx1-v100")
    simulator.fail(function, "DRIVER_NOT_LOADED", 2)
    watched = watch(simulator)
    assert f"{function}: Driver Not Loaded" in watched.next(DriverUnavailable).reason
    simulator.fail(function, None, 2)
    assert not watched.next(InventoryRead).inventory.unreadable
    watched.watching(*range(8))


def test_what_of_links_is_worth_another_look():
    gpu = Gpu(uuid="GPU-1", index=0, minor=0, pci_bus_id="", model="", memory_mib=1)
    nodes = frozenset({"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"})

    def worth(**wiring):
        return unsettled(Inventory((gpu,), device_nodes=nodes, wiring={"GPU-1": Wiring(**wiring)}))

    assert not worth()
    assert not worth(fabric=Fabric("", 0, ready=True))
    assert worth(fabric=Fabric("", 0, ready=False))
    assert worth(problems=("no",))
