"""The memory shares of pods by kubelet's checkpoint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.deviceplugin.memory_shares import device_shares
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import GPU_MEM, Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit, units_of
from gpuagent.isolation.mps.share import MEMORY_VARIABLE, share
from tests.unit.domain.builders import MEM, box, gpu, unit_ids, uuid

GIB = 2**30
MIB = 2**20
UNIT = MemoryUnit()
KIND = Kind.MEMORY_CGPU
CGPU = [Mode.CGPU]


def entry(
    container: str,
    *numbers: int,
    index: int = 0,
    pod: str = "uid-p",
    kind: Kind = KIND,
    gpu_units: frozenset[int] = frozenset(),
) -> CheckpointEntry:
    """Units of a GPU, as kubelet's checkpoint has them."""
    return CheckpointEntry(pod, container, MEM, unit_ids(index, kind, *numbers), gpu_units=gpu_units)


def shares_of(*entries: CheckpointEntry, gpus=box(), unit: MemoryUnit = UNIT, modes=CGPU) -> dict[str, PodShares]:
    return device_shares(entries, gpus, unit, modes)


def of_gpu_0(shares: PodShares) -> tuple[float, dict[str, float]]:
    """GiB of the pod, and of each container."""
    containers = {name: share[uuid(0)] / GIB for name, share in shares.containers.items()}
    return shares.total[uuid(0)] / GIB, containers


def test_the_containers_of_a_pod_add_up():
    shares = shares_of(entry("main", *range(4)), entry("side", *range(4, 6)))
    assert of_gpu_0(shares["uid-p"]) == (6, {"main": 4, "side": 2})


@pytest.mark.parametrize(("init", "main", "total"), [(2, 4, 4), (4, 2, 4), (4, 4, 4)])
def test_units_that_an_init_container_hands_on_count_once(init, main, total):
    shares = shares_of(entry("init", *range(init)), entry("main", *range(main)))
    assert of_gpu_0(shares["uid-p"]) == (total, {"init": init, "main": main})


def test_init_containers_and_sidecars_count_as_kubelet_has_given_them_units():
    """The sidecar keeps its own; the second init container and the main one reuse those of the first."""
    entries = (entry("first", 0, 1), entry("side", 2, 3, 4), entry("second", 0, 5, 6), entry("main", 0, 1, 5))
    assert of_gpu_0(shares_of(*entries)["uid-p"]) == (7, {"first": 2, "side": 3, "second": 3, "main": 3})


def test_a_container_with_several_gpus_has_a_share_of_each():
    both = unit_ids(0, KIND, 0, 1) | unit_ids(1, KIND, 5)
    shares = device_shares([CheckpointEntry("uid-p", "main", MEM, both)], (gpu(0, 16), gpu(1, 80)), UNIT, CGPU)
    expected = {uuid(0): 2 * GIB, uuid(1): GIB}
    assert shares == {"uid-p": PodShares(expected, {"main": expected})}


def test_pods_of_one_name_for_their_containers_stay_apart():
    shares = shares_of(entry("main", 0), entry("main", 1, 2, pod="uid-q"))
    assert {uid: of_gpu_0(share)[0] for uid, share in shares.items()} == {"uid-p": 1, "uid-q": 2}


def test_units_of_modes_that_the_driver_does_not_serve_have_no_share():
    entries = (entry("main", 0, 1, kind=Kind.MEMORY_SHARE), entry("side", 2), entry("core", 3, kind=Kind.CORE_CORE_MEM))
    assert of_gpu_0(shares_of(*entries)["uid-p"]) == (1, {"side": 1})
    assert shares_of(*entries, modes=[Mode.MPS]) == {}


@pytest.mark.parametrize("device_id", ["GPU-1-_-7", "nonsense", ""])
def test_what_is_no_unit_of_this_node_has_no_share(device_id):
    assert shares_of(CheckpointEntry("uid-p", "main", MEM, frozenset({device_id}))) == {}
    assert shares_of(entry("main", 0, index=7)) == {}


# -- units from before the unit, or the GPU, was changed -------------------------------------------------------------


def test_former_units_never_give_a_container_more_than_the_gpu_has():
    """They are as many as a GPU of 16 GiB had with units of 256 MiB."""
    shares = shares_of(entry("main", *range(64)))
    assert of_gpu_0(shares["uid-p"]) == (16, {"main": 16})


def test_containers_with_former_units_stay_apart_after_a_larger_unit():
    """Two of them had the GPU between them. Each alone has more units than the GPU has now."""
    had = frozenset({64})
    shares = shares_of(
        entry("main", *range(40), gpu_units=had),
        entry("main", *range(40, 64), pod="uid-q", gpu_units=had),
    )
    assert {uid: of_gpu_0(share)[0] for uid, share in shares.items()} == {"uid-p": 10, "uid-q": 6}


def test_a_larger_unit_gives_a_container_no_more_than_it_was_given():
    shares = shares_of(entry("main", *range(4), gpu_units=frozenset({16})), unit=MemoryUnit(2048))
    assert of_gpu_0(shares["uid-p"]) == (4, {"main": 4})


def test_former_units_count_no_more_than_kubelet_counts_them_after_a_smaller_unit():
    """Kubelet gives the rest to others."""
    shares = shares_of(entry("main", *range(4), gpu_units=frozenset({8})))
    assert of_gpu_0(shares["uid-p"]) == (4, {"main": 4})


def test_gpus_of_two_sizes_are_no_change_of_the_unit():
    ids = unit_ids(0, KIND, 0, 1) | unit_ids(1, KIND, 0, 1)
    gpus = (gpu(0, 16), gpu(1, 80))
    shares = device_shares([CheckpointEntry("p", "main", MEM, ids, gpu_units=frozenset({16, 80}))], gpus, UNIT, CGPU)
    assert shares["p"].total == {uuid(0): 2 * GIB, uuid(1): 2 * GIB}


@given(memory_mib=st.integers(1, 200_000), unit_mib=st.sampled_from([1, 256, 1000, 1024, 3072]), data=st.data())
def test_the_shares_of_a_full_gpu_fit_into_its_memory(memory_mib, unit_mib, data):
    one = gpu(0, memory_mib=memory_mib)
    count = min(units_of(one, KIND, MemoryUnit(unit_mib)), 40)
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=5)))
    bounds = [0, *cuts, count]
    parts = [range(first, last) for first, last in zip(bounds, bounds[1:], strict=False) if first < last]
    entries = [entry(f"c{number}", *part, pod=f"uid-{number}") for number, part in enumerate(parts)]
    shares = shares_of(*entries, gpus=(one,), unit=MemoryUnit(unit_mib))
    assert sum(share.total[one.uuid] for share in shares.values()) <= memory_mib * MIB


@given(
    memory_mib=st.integers(1024, 200_000), unit_mib=st.sampled_from([256, 1000, 1024]), share_of_all=st.floats(0.01, 1)
)
def test_a_share_is_as_large_as_the_cap_that_mps_would_set(memory_mib, unit_mib, share_of_all, tmp_path_factory):
    one = gpu(0, memory_mib=memory_mib)
    unit = MemoryUnit(unit_mib)
    units = max(1, int(units_of(one, KIND, unit) * share_of_all))
    shares = shares_of(entry("main", *range(units)), gpus=(one,), unit=unit)
    grant = Grant(resource=GPU_MEM, kind=KIND, gpus=(one,), units=units, env={})
    capped = share(grant, unit=unit, pipe_dir=tmp_path_factory.getbasetemp(), shm=None)
    assert capped.env[MEMORY_VARIABLE] == f"0={shares['uid-p'].total[one.uuid] // MIB}M"
