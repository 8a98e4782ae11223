"""What a history says of a container that starts beside others."""

from gpuagent.domain.sharing.mode import GPU_MEM, Kind
from simworld.history import Living, conflicts, contradicts_units
from tests.unit.domain.builders import unit_ids, uuid


def living(pod, index, says):
    """A container with two units of one GPU, whose environment names another one or the same."""
    ids = unit_ids(index, Kind.MEMORY_SHARE, 0, 1)
    return Living("node-1", pod, "main-0", {GPU_MEM: frozenset(ids)}, {"NVIDIA_VISIBLE_DEVICES": uuid(says)})


def test_a_unit_that_two_containers_have_is_found_although_their_environments_name_different_gpus():
    problems = conflicts(living("b", 0, says=1), iter([living("a", 0, says=0)]))
    assert ["has two living containers: a and b" in problem for problem in problems] == [True]


def test_an_environment_that_names_another_gpu_than_the_units_is_found():
    assert list(contradicts_units(living("a", 0, says=0))) == []
    assert "NVIDIA_VISIBLE_DEVICES" in "".join(contradicts_units(living("a", 0, says=1)))


def test_a_container_with_claims_has_no_units_to_compare():
    assert list(contradicts_units(Living("node-1", "a", "main-0", {}, {}))) == []
