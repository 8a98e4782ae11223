"""The watch against faults of links: it looks again when one failed, and a query that hangs costs no GPU."""

import queue
import time
from dataclasses import replace
from itertools import product

import pytest

from gpuagent.domain.events import DriverUnavailable, GpuLost, InventoryRead, XidRaised
from gpuagent.domain.gpus.gpu import Gpu, Inventory
from gpuagent.domain.gpus.link_reports import Fabric, Wiring
from gpuagent.domain.gpus.topology import topology
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.bounded_query import BoundedQuery
from gpuagent.nvml.discovery import unsettled
from gpuagent.nvml.inventory_events import InventoryEvents
from standin.waiting import PATIENCE_S

NVLINK_XID = 74


@pytest.fixture
def settled(tmp_path):
    """Every device node is there, so that nothing is looked at again without a reason."""

    def so(count):
        (tmp_path / "dev").mkdir()
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(count))):
            (tmp_path / "dev" / name).touch()

    return so


@pytest.fixture
def looks(monkeypatch):
    """Of each look whether its inventory was posted."""
    posted = queue.SimpleQueue()
    read = InventoryEvents.read

    def read_and_post(events, inventory):
        posted.put(new := read(events, inventory))
        return new

    monkeypatch.setattr(InventoryEvents, "read", read_and_post)
    return posted


def hangs(function, patience_s):
    return f"{function.removesuffix('_v2')} has not returned for {patience_s} s"


def problems(inventory):
    return [inventory.wiring[gpu.uuid].problems for gpu in inventory.gpus]


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


def test_what_has_not_changed_is_not_posted_again(simulate, watch, settled, looks):
    settled(8)
    simulator = simulate("hgx-h100")
    watched = watch(simulator, reread_s=1000.0)
    assert looks.get(timeout=PATIENCE_S)
    watched.next(InventoryRead)
    watched.watching(*range(8))
    for _ in range(3):
        simulator.xid(0, NVLINK_XID)
        watched.next(XidRaised)
        assert looks.get(timeout=PATIENCE_S) is False
    assert watched.quiet()


def test_a_storm_of_nvlink_errors_costs_few_looks_and_the_last_one_counts(simulate, watch, settled, looks):
    settled(8)
    simulator = simulate("dgx1-v100")
    watched = watch(simulator, reread_s=1000.0, links_apart_s=0.5)
    watched.next(InventoryRead)
    watched.watching(*range(8))
    assert looks.get(timeout=PATIENCE_S)
    began = time.monotonic()
    for _ in range(100):
        simulator.xid(0, NVLINK_XID)
        watched.next(XidRaised)
    simulator.nvlink(0, 2, up=False)
    simulator.xid(0, NVLINK_XID)
    last = [watched.next(object), watched.next(object)]  # a look may come between the failure and its error
    assert [links(event.inventory, 0) for event in last if isinstance(event, InventoryRead)] == [5]
    assert looks.qsize() <= 2 + (time.monotonic() - began) / 0.5


def test_what_else_is_to_be_looked_at_does_not_wait_for_a_storm_to_end(simulate, watch, settled, looks):
    settled(8)
    simulator = simulate("dgx1-v100")
    simulator.hang("nvmlDeviceGetName", 7)
    watched = watch(simulator, patience_s=0.5, reread_s=1000.0, links_apart_s=1000.0)
    assert len(watched.next(InventoryRead).inventory.gpus) == 7
    watched.watching(*range(8))
    assert looks.get(timeout=PATIENCE_S)
    simulator.xid(0, NVLINK_XID)
    assert looks.get(timeout=PATIENCE_S) is False, "the first one has everything looked at at once"
    simulator.xid(0, NVLINK_XID)
    for _ in range(2):
        watched.next(XidRaised)
    simulator.unhang()
    assert len(watched.next(InventoryRead).inventory.gpus) == 8
    watched.watching(*range(8))


OF_LINKS = (
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetTopologyCommonAncestor",
)  # fmt: skip


@pytest.mark.parametrize("function", OF_LINKS)
def test_a_query_that_hangs_at_the_first_look_costs_no_gpu(function, simulate, watch, settled):
    settled(4)
    simulator = simulate("pcie-4x-a40-nvlink")
    simulator.hang(function, 1)
    watched = watch(simulator, links_patience_s=0.5, reread_s=1000.0)
    inventory = watched.next(InventoryRead).inventory
    assert [gpu.index for gpu in inventory.gpus] == [0, 1, 2, 3]
    assert not inventory.unreadable
    assert problems(inventory) == [(), (hangs(function, 0.5),), (), ()]
    assert [links(inventory, gpu) for gpu in (0, 2, 3)] == [4, 4, 4]
    rows = topology(inventory.gpus, inventory.wiring).links
    assert [link.relation if link else None for link in rows[1]] == ["NODE", None, "SYS", "SYS"]
    simulator.unhang()
    inventory = watched.next(InventoryRead).inventory
    assert problems(inventory) == [()] * 4, "the late answer is taken at once"
    assert types(inventory)[1] == ["NV4", None, "SYS", "SYS"]
    watched.watching(0, 1, 2, 3)


def test_queries_that_hang_for_every_gpu_cost_none(simulate, watch):
    simulator = simulate("pcie-4x-a40-nvlink")
    simulator.hang("nvmlDeviceGetTopologyCommonAncestor")
    watched = watch(simulator, links_patience_s=0.5)
    inventory = watched.next(InventoryRead).inventory
    assert problems(inventory) == [(hangs("nvmlDeviceGetTopologyCommonAncestor", 0.5),)] * 4
    assert types(inventory)[0] == [None, "NV4", "SYS", "SYS"], "links are asked for by themselves"
    simulator.unhang()
    watched.watching(0, 1, 2, 3)


def test_two_queries_that_hang_on_two_gpus(simulate, watch):
    simulator = simulate("dgx1-v100")
    simulator.hang("nvmlDeviceGetNvLinkState", 0)
    simulator.hang("nvmlDeviceGetTopologyCommonAncestor", 5)
    watched = watch(simulator, links_patience_s=0.5)
    inventory = watched.next(InventoryRead).inventory
    assert len(inventory.gpus) == 8
    assert not inventory.unreadable
    assert [gpu for gpu, problem in enumerate(problems(inventory)) if problem] == [0, 5]
    assert types(inventory)[5] == ["SYS", "NV2", "SYS", "SYS", "NV1", None, "NV2", "NV1"]
    simulator.unhang()
    watched.watching(*range(8))


def test_what_was_read_before_a_query_hung_counts(simulate, watch):
    simulator = simulate("dgx1-v100")
    simulator.hang("nvmlDeviceGetGpuFabricInfo", 0)
    watched = watch(simulator, links_patience_s=0.5)
    inventory = watched.next(InventoryRead).inventory
    assert problems(inventory)[0] == (hangs("nvmlDeviceGetGpuFabricInfo", 0.5),)
    assert types(inventory)[0] == [None, "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"]
    simulator.unhang()
    watched.watching(*range(8))


def test_all_good_gpus_know_how_near_they_are_though_no_call_about_one_returns(simulate, watch, monkeypatch):
    """Each GPU gets as far as the hanging one; of every two others, one or the other has asked by then."""
    simulator = simulate("pcie-8x-l40s")
    simulator.hang("nvmlDeviceGetTopologyCommonAncestor", 2)
    ask = Nvml.relation  # whichever of the two GPUs comes first
    monkeypatch.setattr(Nvml, "relation", lambda nvml, *two: ask(nvml, *sorted(two, key=lambda gpu: gpu.index != 2)))
    watched = watch(simulator, links_patience_s=0.5)
    inventory = watched.next(InventoryRead).inventory
    unknown = [note for note in topology(inventory.gpus, inventory.wiring).notes if "not known" in note]
    assert len(unknown) == 7
    assert all("GPU 2 " in note for note in unknown)
    simulator.unhang()
    watched.watching(*range(8))


@pytest.mark.parametrize("function", OF_LINKS)
def test_a_gpu_whose_links_hang_later_keeps_those_it_had(function, simulate, watch, settled):
    settled(4)
    simulator = simulate("pcie-4x-a40-nvlink")
    watched = watch(simulator, links_patience_s=0.5, reread_s=1000.0)
    before = watched.next(InventoryRead).inventory
    watched.watching(0, 1, 2, 3)
    simulator.hang(function, 1)
    simulator.xid(0, NVLINK_XID)
    watched.next(XidRaised)
    seen = watched.next(InventoryRead).inventory
    assert not seen.unreadable
    hung = before.gpus[1].uuid
    now = replace(before.wiring[hung], problems=(hangs(function, 0.5),))
    assert seen == replace(before, wiring={**before.wiring, hung: now})
    simulator.unhang()
    assert watched.next(InventoryRead).inventory == before


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo"])
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


def test_a_gpu_whose_links_hang_is_itself_read_as_ever(simulate, watch, settled):
    settled(8)
    simulator = simulate("dgx-a100")
    simulator.hang("nvmlDeviceGetNvLinkState", 1)
    watched = watch(simulator, links_patience_s=0.5, reread_s=0.02)
    assert not watched.next(InventoryRead).inventory.gpus[1].mig
    simulator.mig(1, enabled=True)
    inventory = watched.next(InventoryRead).inventory
    assert inventory.gpus[1].mig
    assert problems(inventory)[1]
    simulator.unhang()
    watched.watching(*range(8))


def test_links_that_hang_are_waited_for_once(simulate, watch, settled, monkeypatch):
    settled(8)
    simulator = simulate("dgx1-v100")
    simulator.hang("nvmlDeviceGetNvLinkState", 7)
    given_up: list[BoundedQuery] = []
    wait = BoundedQuery.wait

    def noted(query):
        in_time = time.monotonic() < query.until
        ended = wait(query)
        given_up.extend([query] if in_time and not ended else [])
        return ended

    monkeypatch.setattr(BoundedQuery, "wait", noted)
    watched = watch(simulator, links_patience_s=0.5, reread_s=1000.0)
    watched.next(InventoryRead)
    watched.watching(*range(8))
    simulator.nvlink(0, 2, up=False)
    simulator.xid(0, NVLINK_XID)
    watched.next(XidRaised)
    assert links(watched.next(InventoryRead).inventory, 0) == 5
    assert len(given_up) == 1


def test_links_that_hang_are_no_call_about_the_gpu_that_hangs(simulate, watch):
    simulator = simulate("pcie-4x-a40-nvlink")
    simulator.hang("nvmlDeviceGetNvLinkState", 1)
    simulator.hang("nvmlDeviceGetSupportedEventTypes", 2)
    watched = watch(simulator, links_patience_s=0.5, stall_s=0.5)
    assert not watched.next(InventoryRead).inventory.unreadable
    assert [bad.index for bad in watched.next(InventoryRead).inventory.unreadable] == [2]


def test_links_that_were_to_be_read_anew_while_they_hung_are(simulate, watch, settled, looks):
    settled(8)
    simulator = simulate("dgx1-v100")
    simulator.hang("nvmlDeviceGetGpuFabricInfoV", 0)  # the last query: all links were read before it
    watched = watch(simulator, links_patience_s=0.5, reread_s=1000.0)
    watched.next(InventoryRead)
    watched.watching(*range(8))
    assert looks.get(timeout=PATIENCE_S)
    simulator.nvlink(0, 2, up=False)
    simulator.xid(0, NVLINK_XID)
    watched.next(XidRaised)
    assert looks.get(timeout=PATIENCE_S) is False
    simulator.unhang()
    assert links(watched.next(InventoryRead).inventory, 0) == 6
    assert links(watched.next(InventoryRead).inventory, 0) == 5


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


def test_links_that_come_up_without_a_word_are_noticed(simulate, watch, settled):
    settled(8)
    simulator = simulate("dgx-a100")
    for gpu, link in product(range(8), range(12)):
        simulator.nvlink(gpu, link, up=False)
    watched = watch(simulator, reread_s=1000.0, links_reread_s=0.02)
    inventory = watched.next(InventoryRead).inventory
    assert types(inventory)[0][1:] == ["PXB", *["SYS"] * 6]
    assert topology(inventory.gpus, inventory.wiring).notes == ()
    with simulator.changed:
        for gpu, link in product(range(8), range(12)):
            simulator.nvlink(gpu, link, up=True)
    while types(inventory)[0][1:] != ["NV12"] * 7:
        inventory = watched.next(InventoryRead).inventory
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
    assert not worth(inactive=4), "a card without a bridge stays so"
