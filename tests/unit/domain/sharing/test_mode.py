"""The tables of modes, kinds, promises and resources."""

import pytest

from gpuagent.domain.sharing.mode import PROMISES, Isolates, Kind, Mode, Placement, Resources
from tests.unit.domain.builders import CORE, MEM, WHOLE

EXCLUSIVE = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("mode", "resource_kinds"),
    [
        (Mode.DEFAULT, {EXCLUSIVE: Kind.WHOLE_DEFAULT}),
        (Mode.SHARE, {MEM: Kind.MEMORY_SHARE}),
        (Mode.CGPU, {MEM: Kind.MEMORY_CGPU}),
        (Mode.MPS, {MEM: Kind.MEMORY_MPS}),
        (Mode.CORE_MEM, {MEM: Kind.MEMORY_CORE_MEM, CORE: Kind.CORE_CORE_MEM}),
        (Mode.TOPOLOGY, {WHOLE: Kind.WHOLE_TOPOLOGY}),
    ],
)
def test_each_mode_sells_its_own_kinds(mode, resource_kinds):
    resources = Resources(EXCLUSIVE)
    assert resources.in_mode(mode) == resource_kinds
    assert all(kind.mode is mode for kind in resource_kinds.values())
    assert {resources.of(kind): kind for kind in resource_kinds.values()} == resource_kinds


def test_mode_default_advertises_nothing_unless_configured():
    assert Resources().in_mode(Mode.DEFAULT) == {}
    assert Resources().of(Kind.WHOLE_DEFAULT) == ""
    assert Resources().names == (MEM, CORE, WHOLE)
    assert Resources(EXCLUSIVE).names == (MEM, CORE, WHOLE, EXCLUSIVE)


@pytest.mark.parametrize(
    ("mode", "promised"),
    [
        (Mode.DEFAULT, set()),
        (Mode.SHARE, set()),
        (Mode.TOPOLOGY, set()),
        (Mode.DRA, set()),
        (Mode.CGPU, {Isolates.MEMORY}),
        (Mode.MPS, {Isolates.MEMORY}),
        (Mode.CORE_MEM, {Isolates.MEMORY, Isolates.COMPUTE}),
    ],
)
def test_each_mode_promises_what_the_issue_says(mode, promised):
    assert PROMISES[mode] == promised


def test_every_kind_belongs_to_one_mode_and_one_resource():
    resources = Resources(EXCLUSIVE)
    assert {kind.mode for kind in Kind} == set(Mode) - {Mode.DRA}
    assert all(resources.of(kind) for kind in Kind)
    assert {kind for kind in Kind if kind.is_whole} == {Kind.WHOLE_TOPOLOGY, Kind.WHOLE_DEFAULT}
    assert {kind for kind in Kind if not kind.is_memory and not kind.is_whole} == {Kind.CORE_CORE_MEM}


def test_label_values_are_spelled_as_the_field_spells_them():
    assert [str(mode) for mode in Mode] == ["default", "share", "cgpu", "mps", "core_mem", "topology", "dra"]
    assert [str(placement) for placement in Placement] == ["binpack", "spread"]
