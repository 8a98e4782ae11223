"""The caps of MPS hold for every program of a container, whichever of its GPUs the program sees."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.sharing.grant import KEPT_VARIABLES, DeviceAccess
from gpuagent.domain.sharing.mode import GPU_MEM, Kind
from gpuagent.domain.sharing.units import MemoryUnit, units_of
from gpuagent.isolation.interface import IsolationError
from gpuagent.isolation.mps.share import PIPE_VARIABLE, share
from standin.mps.client import effective_caps
from tests.unit.domain.builders import gpu

UNIT = MemoryUnit()
KINDS = [kind for kind in Kind if kind.is_memory]
PIPES = Path("/run/mps")

sizes = st.lists(st.sampled_from([16, 24, 80]), min_size=1, max_size=4)


def granted(gpus, kind, units):
    access = DeviceAccess(unit=UNIT, device_nodes=frozenset())
    return access.grant(GPU_MEM, kind, units, gpus)


@given(sizes, st.sampled_from(KINDS), st.integers(1, 16))
def test_the_caps_hold_whichever_gpus_a_program_sees(gib, kind, units):
    """Launchers give each worker one of the container's GPUs, by CUDA_VISIBLE_DEVICES."""
    gpus = [gpu(n, size) for n, size in enumerate(gib)]
    try:
        prepared = share(granted(gpus, kind, units), unit=UNIT, pipe_dir=PIPES, shm=None)
    except IsolationError:
        assert len(gpus) > 1, "one GPU can always be limited"
        return
    wanted = {one.uuid: one.memory_mib * units // units_of(one, kind, UNIT) for one in gpus}
    subsets = [some for count in range(1, len(gpus) + 1) for some in combinations(wanted, count)]
    for visible in subsets:
        caps = effective_caps(prepared.env, visible)
        assert caps == {uuid: wanted[uuid] for uuid in visible}


def test_the_agent_keeps_the_directory_of_a_container_for_its_next_start():
    assert PIPE_VARIABLE in KEPT_VARIABLES


def test_a_share_of_several_gpus_is_refused_with_a_sentence():
    with pytest.raises(IsolationError, match="MPS forgets every cap when a program sees only some of its GPUs"):
        share(granted([gpu(0), gpu(1)], Kind.MEMORY_MPS, 4), unit=UNIT, pipe_dir=PIPES, shm=None)


@pytest.mark.parametrize("kind", KINDS)
def test_where_another_driver_limits_memory_a_share_has_no_cap_and_any_number_of_gpus(kind):
    grant = granted([gpu(0), gpu(1)], kind, 4)
    prepared = share(grant, unit=UNIT, pipe_dir=PIPES, shm=None, caps=False)
    added = prepared.env.keys() - grant.env.keys()
    assert added == {"CUDA_MPS_PIPE_DIRECTORY"}
    assert prepared.gpus == grant.gpus


@pytest.mark.parametrize(
    ("limits", "visible", "expected"),
    [
        ("0=2G,1=4G", ["a", "b"], {"a": 2048, "b": 4096}),
        ("0=2G,1=4G", ["b"], {"b": None}),
        ("0=2G,9=1G", ["a", "b"], {"a": None, "b": None}),
        ("0=100M", ["b"], {"b": 100}),
        ("0=100M", ["a", "b"], {"a": 100, "b": None}),
        ("x=100M", ["a"], {"a": None}),
        ("", ["a"], {"a": None}),
    ],
)
def test_the_stand_in_reads_the_variable_as_nvidia_says(limits, visible, expected):
    assert effective_caps({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits}, visible) == expected
