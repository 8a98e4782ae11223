"""The cost of a container, in function calls."""

import sys

import pytest

from gpuagent.domain.sharing.mode import Kind, Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import (
    CORE,
    MEM,
    box,
    holding,
    in_force,
    pod_json,
)

SHARE = Kind.MEMORY_SHARE

pytestmark = pytest.mark.usefixtures("impatient")


def calls_of(work) -> int:
    """How many Python functions are called: the same on every machine."""
    count = 0

    def counting(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("read", [False, True], ids=["", "allocations read"])
@pytest.mark.parametrize("mode", [Mode.SHARE, Mode.CORE_MEM])
def test_a_container_costs_as_many_calls_whether_it_is_the_first_of_its_pod_or_one_of_hundreds(mode, read):
    kubelet = FakeKubelet(in_force(mode, box(4, 80), core_mem_both=True, core_step=1))
    limits = {MEM: 1} if mode is Mode.SHARE else {MEM: 1, CORE: 1}
    kubelet.pods(pod_json("a", *[limits] * 320))
    free = {resource: set(kubelet.node.ids(resource)) for resource in limits}
    containers = ["main", *(f"main-{n}" for n in range(1, 320))]
    starts = []

    def admit(some) -> None:
        for name in some:
            for resource in limits:
                ids = frozenset(kubelet.allocator.prefer(resource, free[resource], [], 1))
                kubelet.allocator.allocate(resource, ids)
                free[resource] -= ids
                starts.append((resource, ids))
                kubelet.allocations.holdings.append(holding("a", ids, resource, name))

    admit(containers[:10])
    few = calls_of(lambda: admit(containers[10:20]))
    admit(containers[20:150])
    if read:
        kubelet.node.now += 1
        kubelet.read_allocations()
    admit(containers[150:300])
    many = calls_of(lambda: admit(containers[300:310]))
    assert many < 1.2 * few + 100
    kubelet.node.now += 1
    kubelet.read_allocations()
    kubelet.allocator.prestart(*starts[0])
    first, last = (calls_of(lambda n=n: kubelet.allocator.prestart(*starts[n])) for n in (1, -1))
    assert last < 1.2 * first + 100
