"""Which GPUs of an inventory can be offered: those that no other GPU is confused with."""

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.gpus.gpu import Gpu, Inventory, unambiguous
from tests.unit.domain.builders import gpu, uuid

BUS_IDS = tuple(gpu(n).pci_bus_id for n in range(4))


def names(one: Gpu) -> set[tuple[str, object]]:
    return {("uuid", one.uuid), ("minor", one.minor), ("pci", one.pci_bus_id)}


GPUS = st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=5).map(
    lambda drawn: tuple(
        gpu(n, uuid=uuid(one), minor=minor, pci_bus_id=BUS_IDS[bus]) for n, (one, minor, bus) in enumerate(drawn)
    )
)


@given(GPUS, st.data())
def test_exactly_those_that_share_a_name_are_left_out_in_any_order(gpus, data):
    found = unambiguous(Inventory(gpus), ())
    sharing = {a.index for a in gpus for b in gpus if a is not b and names(a) & names(b)}
    assert {bad.index for bad in found.unreadable} == sharing
    assert {one.index for one in found.gpus} == {one.index for one in gpus} - sharing
    again = unambiguous(Inventory(tuple(data.draw(st.permutations(gpus)))), ())
    assert {one.index for one in again.gpus} == {one.index for one in found.gpus}


@given(GPUS, GPUS)
def test_a_gpu_that_is_listed_again_is_not_its_own_rival(gpus, known):
    """Nor do the minor numbers and PCI addresses of GPUs that are gone count: others may have them now."""
    assert unambiguous(Inventory(gpus), known) == unambiguous(Inventory(gpus), ())
