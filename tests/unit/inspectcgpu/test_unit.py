"""The unit of a node is worked out of memory and amounts, and never of the amount alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.sharing.units import MemoryUnit
from inspectcgpu.read.unit import measure
from inspectcgpu.show.notes import notes
from tests.unit.inspectcgpu.sample_cluster import node, report


@pytest.mark.parametrize(
    ("mib", "each", "unit"),
    [
        (15109, 15, "GiB"),  # counted up
        (15360, 15, "GiB"),
        (16130, 15, "GiB"),  # counted down
        (23028, 22, "GiB"),
        (81920, 80, "GiB"),
        (143771, 140, "GiB"),  # H200: the old tool took more than 100 for MiB
        (183359, 179, "GiB"),  # B200
        (81920, 81920, "MiB"),
        (143771, 143771, "MiB"),
        (81920, 320, "256MiB"),
        (143771, 561, "256MiB"),
        (81559, 39, "2GiB"),
        (81559, 19, "4GiB"),
    ],
)
def test_units_of_known_gpus(mib, each, unit):
    found = measure(node(gpus=8, mib=mib, mem=8 * each))
    assert (str(found.unit), found.per_gpu) == (unit, each)
    assert bool(found.doubt) == (unit not in ("GiB", "MiB"))


@given(st.integers(2048, 400_000), st.integers(1, 16), st.sampled_from(["GiB", "MiB"]))
def test_gib_and_mib_are_never_taken_for_each_other(mib, gpus, unit):
    each = mib // MemoryUnit.parse(unit).mib
    found = measure(node(gpus=gpus, mib=mib, mem=gpus * each))
    assert (str(found.unit), found.per_gpu, found.doubt) == (unit, each, "")


@given(st.lists(st.integers(2, 200), min_size=2, max_size=16))
def test_what_gpus_of_different_sizes_have_is_not_made_up(gib):
    found = measure(node(gpus=len(gib), mib=gib[0] * 1024, mem=sum(gib)))
    if found.per_gpu is not None and not found.doubt:
        assert str(found.unit) == "GiB"
        assert found.per_gpu in (gib[0], gib[0] + 1)
        assert found.per_gpu * len(gib) == sum(gib)


def test_fewer_gpus_on_offer_than_there_are_leave_the_gib_certain_and_which_gpus_not():
    found = measure(node(gpus=8, mib=81920, mem=560))
    assert (str(found.unit), found.per_gpu) == ("GiB", None)
    assert "7 of 8 GPUs are advertised" in found.doubt


def test_where_amounts_have_two_readings_neither_is_taken():
    found = measure(node(gpus=8, mib=81920, mem=320))
    assert (found.unit, found.per_gpu) == (None, None)
    assert "the unit 2GiB follows" in found.doubt
    assert "4 of 8 GPUs are advertised" in found.doubt


@pytest.mark.parametrize("how", [{"mib": None}, {"gpus": 0}, {"mib": 0}])
def test_without_labels_nothing_is_guessed(how):
    found = measure(node(**{"gpus": 2, "mib": 81920, "mem": 160, **how}))
    assert found.unit is None
    assert found.doubt


def test_with_this_projects_agent_only_whole_units_count():
    """1000MiB on 24564 MiB is 24 units, as 23.99 GiB would be to plugins that round up."""
    agent = {"conditions": [{"type": "GPUAgentReady", "status": "True"}]}
    assert measure(node("n1", gpus=2, mib=24564, mem=48, **agent)).doubt
    assert not measure(node("n1", gpus=2, mib=24564, mem=48)).doubt
    assert measure(node("n1", gpus=2, mib=24564, mem=46, **agent)).doubt == ""


def test_a_sum_of_nodes_of_unknown_units_is_reported():
    nodes = [node(name, gpus=2, mib=None, mem=30) for name in ("n1", "n2")]
    text = "the unit of node n1, n2 is not known: their sum is right if they count alike"
    assert text in notes(report(nodes))
    assert text not in notes(report(nodes[:1]))
