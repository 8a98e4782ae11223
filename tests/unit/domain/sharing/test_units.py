"""Device ids, the memory unit, the size of a list on the wire."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.domain.node_state.device_lists import DeviceRange
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.sharing.units import (
    MAX_LIST_BYTES,
    MemoryUnit,
    UnitId,
    largest_unit,
    list_bytes,
    parse_id,
    smallest_unit_that_fits,
    units_of,
)
from gpuagent.domain.snapshot import ids_of
from gpuagent.kubelet.deviceplugin.device_feed import encode
from tests.unit.domain.builders import gpu, in_force, uuid

KINDS = st.sampled_from(Kind)
UUIDS = st.uuids().map(lambda u: f"GPU-{u}")


def gpus(max_gib: int = 3, max_size: int = 3):
    one = st.builds(
        lambda uuid, mib, numa: gpu(0, uuid=uuid, memory_mib=mib, numa_node=numa),
        UUIDS,
        st.integers(0, max_gib * 1024),
        st.none() | st.integers(0, 127),
    )
    return st.lists(one, max_size=max_size, unique_by=lambda g: g.key).map(tuple)


@given(UUIDS, KINDS, st.integers(0, 9_999_999))
def test_an_id_says_its_gpu_kind_and_number(uuid, kind, n):
    unit = UnitId(gpu(0, uuid=uuid).key, kind, n)
    assert parse_id(str(unit)) == unit
    assert len(str(unit)) <= 63


@given(st.lists(UUIDS | st.text(), unique=True, max_size=40))
def test_any_set_of_uuids_gives_different_keys(uuids):
    assert len({gpu(0, uuid=uuid).key for uuid in uuids}) == len(uuids)


@pytest.mark.parametrize(
    "box", ["GPU-12345678-1234-1234-1234-12345678{:04x}", "GPU-{:08x}-0000-0000-0000-000000000000"]
)
def test_uuids_that_begin_or_end_alike_give_different_keys(box):
    assert len({gpu(0, uuid=box.format(n)).key for n in range(65536)}) == 65536


@given(gpus(max_size=5), UUIDS)
def test_the_ids_of_a_gpu_depend_on_no_other_gpu(found, uuid):
    """Nor on its index, its memory, or where the agent runs: kubelet's checkpoint outlives all of them."""
    mine = gpu(7, uuid=uuid, memory_mib=2048)
    alone = set(ids_of(DeviceRange(gpu(0, uuid=uuid, memory_mib=2048), Kind.MEMORY_SHARE, 2)))
    node = in_force(Mode.SHARE, (*(replace(g, index=n, minor=n) for n, g in enumerate(found)), mine))
    assert {i for i, u in node.snap.units.items() if u == uuid} == alone


def test_the_key_of_a_uuid_stays_the_same():
    """Kubelet's checkpoint has it: another one needs a drained node."""
    assert gpu(0, uuid="GPU-8a56a4bc-5b4b-4d07-9c3e-0f6a2b1d7e90").key == "hbw464wgz6"


@given(st.text(max_size=30) | st.from_regex(r"[a-z2-7]{10}-[a-z]{2}-[0-9]{1,8}", fullmatch=True))
def test_any_text_is_an_id_of_ours_or_none(text):
    unit = parse_id(text)
    assert unit is None or (unit.kind in Kind and unit.n >= 0)


@given(st.from_regex(r"aaaaaaaaaa-(ms|gt)-\d{1,7}", fullmatch=True))
def test_two_spellings_are_never_one_unit(text):
    unit = parse_id(text)
    assert unit is None or str(unit) == text


@pytest.mark.parametrize(
    "text",
    ["", "-", "a-ms", "a-ms-", "a-xx-1", "a-ms-1-2", "A0-ms-1", "a-ms--1", "a-ms-1\n", uuid(0), f"{uuid(0)}::2", "0"],
)
def test_ids_of_others_are_not_ours(text):
    assert parse_id(text) is None


def test_ids_are_unique_over_all_modes_resources_and_gpus():
    every = [
        device_id
        for g in (gpu(0), gpu(1))
        for kind in Kind
        for device_id in ids_of(DeviceRange(g, kind, units_of(g, kind, MemoryUnit())))
    ]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    ("text", "mib", "shown"),
    [
        ("GiB", 1024, "GiB"),
        ("MiB", 1, "MiB"),
        ("2GiB", 2048, "2GiB"),
        ("256MiB", 256, "256MiB"),
        ("1024MiB", 1024, "GiB"),
        (" 1GiB ", 1024, "GiB"),
    ],
)
def test_a_memory_unit_is_a_whole_block(text, mib, shown):
    assert MemoryUnit.parse(text).mib == mib
    assert str(MemoryUnit.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "0GiB", "0MiB", "1.5GiB", "-1GiB", "GB", "gib", "KiB", "1 GiB", "12345678MiB"])
def test_other_memory_units_are_refused_with_examples(text):
    with pytest.raises(ValueError, match="such as GiB, 2GiB or 256MiB"):
        MemoryUnit.parse(text)


@given(st.integers(1, 9_999_999))
def test_a_memory_unit_reads_back_what_it_shows(mib):
    assert MemoryUnit.parse(str(MemoryUnit(mib))).mib == mib


@pytest.mark.parametrize(
    ("mib", "unit", "kind", "count"),
    [
        (81559, 1024, Kind.MEMORY_CGPU, 79),
        (81559, 256, Kind.MEMORY_MPS, 318),
        (1023, 1024, Kind.MEMORY_SHARE, 0),
        (81559, 1024, Kind.CORE_CORE_MEM, 100),
        (81559, 1024, Kind.WHOLE_TOPOLOGY, 1),
        (0, 1024, Kind.WHOLE_DEFAULT, 1),
    ],
)
def test_units_of_one_gpu(mib, unit, kind, count):
    assert units_of(gpu(0, memory_mib=mib), kind, MemoryUnit(unit)) == count


@settings(max_examples=60)
@given(gpus(), KINDS, st.sampled_from([1, 2, 7, 256, 1024]))
def test_the_size_of_a_list_is_what_protobuf_makes_of_it(found, kind, mib):
    unit = MemoryUnit(mib)
    blocks = tuple(DeviceRange(g, kind, units_of(g, kind, unit), healthy=False) for g in found)
    assert list_bytes(found, kind, unit) == encode(blocks).ByteSize()


@settings(max_examples=30)
@given(gpus(), KINDS)
def test_a_healthy_list_is_never_larger_than_measured(found, kind):
    blocks = tuple(DeviceRange(g, kind, units_of(g, kind, MemoryUnit(16))) for g in found)
    message = encode(blocks)
    assert isinstance(message, pb.ListAndWatchResponse)
    assert message.ByteSize() <= list_bytes(found, kind, MemoryUnit(16))


@settings(max_examples=100)
@given(gpus(max_gib=600, max_size=16), st.sampled_from([k for k in Kind if k.is_memory]))
def test_the_proposed_unit_is_the_smallest_power_of_two_that_fits(found, kind):
    unit = smallest_unit_that_fits(found, kind)
    assert unit.mib & (unit.mib - 1) == 0
    assert list_bytes(found, kind, unit) <= MAX_LIST_BYTES
    assert unit.mib == 1 or list_bytes(found, kind, MemoryUnit(unit.mib // 2)) > MAX_LIST_BYTES


def test_the_largest_boxes_fit_in_gib():
    big = tuple(gpu(n, gib=288, numa_node=1) for n in range(16))
    assert list_bytes(big, Kind.MEMORY_CGPU, MemoryUnit()) < 200_000


@pytest.mark.parametrize(("unit", "kind"), [(8, Kind.MEMORY_SHARE), (1024, Kind.MEMORY_CGPU), (1, Kind.CORE_CORE_MEM)])
def test_eight_gpus_of_80_gib_fit_in_these_units(unit, kind):
    """Units of 8 MiB are the smallest that kubelet takes there."""
    dgx = tuple(gpu(n, gib=80, numa_node=1) for n in range(8))
    assert list_bytes(dgx, kind, MemoryUnit(unit)) <= MAX_LIST_BYTES
    assert smallest_unit_that_fits(dgx, Kind.MEMORY_SHARE) == MemoryUnit(8)


def test_every_id_of_a_snapshot_leads_to_its_gpu():
    snap = in_force(Mode.CORE_MEM).snap
    assert len(snap.units) == 2 * (16 + 100)
    assert all(snap.gpus[u].key == parse_id(device_id).gpu_key for device_id, u in snap.units.items())


@pytest.mark.parametrize(
    ("memory_mib", "text"), [(24258, "23GiB"), (1024, "GiB"), (1023, "1023MiB"), (1, "MiB"), (0, None)]
)
def test_the_largest_unit_that_a_gpu_has_can_be_set(memory_mib, text):
    largest = largest_unit(memory_mib)
    assert (largest and str(largest)) == text
    if largest:
        assert MemoryUnit.parse(str(largest)).mib <= memory_mib
