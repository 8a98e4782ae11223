"""Units that init containers and sidecars hold, and what of them app containers reuse."""

import pytest

from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Kind
from tests.unit.allocator.fake_kubelet import kubelet_in_core_mem, kubelet_in_share
from tests.unit.domain.builders import (
    CORE,
    MEM,
    gpu,
    owner,
    pod_json,
    unit_ids,
    uuid,
)

COUNT = GPU_COUNT_LABEL
SHARE = Kind.MEMORY_SHARE

pytestmark = pytest.mark.usefixtures("impatient")


def test_an_init_containers_units_are_reused_and_the_rest_comes_from_its_gpu():
    kubelet = kubelet_in_share(gpu(0, 8), gpu(1, 16), gpu(2, 16)).pods(pod_json("a", {MEM: 12}, init=({MEM: 4},)))
    kubelet.serve(owner("a", "init-0"), MEM, 4)
    assert kubelet.on(owner("a", "init-0"), MEM) == {uuid(1)}, "GPU 0 has no room for what comes after"
    reused = sorted(kubelet.allocations.holdings[0].ids)
    share = kubelet.serve(owner("a"), MEM, 12, must=reused)
    assert share.units == 12
    assert kubelet.on(owner("a"), MEM) == {uuid(1)}
    assert set(reused) <= kubelet.allocations.holdings[1].ids


def test_an_app_container_smaller_than_its_init_container_gets_part_of_its_units():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 2}, init=({MEM: 4},)))
    kubelet.serve(owner("a", "init-0"), MEM, 4)
    reused = sorted(kubelet.allocations.holdings[0].ids)[1:3]
    assert kubelet.serve(owner("a"), MEM, 2, must=reused).units == 2


def test_units_reused_unevenly_never_grant_more_than_was_paid_for_on_a_gpu():
    """Kubelet picks what an app container reuses of a spread init container at random."""
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 4}, init=({MEM: 8},), labels={COUNT: "2"}))
    kubelet.serve(owner("a", "init-0"), MEM, 8)
    ids = unit_ids(0, SHARE, 0, 1, 2) | unit_ids(1, SHARE, 0)
    assert ids <= kubelet.allocations.holdings[0].ids
    try:
        share = kubelet.allocator.allocate(MEM, ids)
    except Refusal as refusal:
        assert refusal.reason is Reason.SPANS_GPUS
    else:
        assert share.units <= 1, "one unit on GPU 1"


@pytest.mark.parametrize(
    ("free", "sizes", "on"),
    [
        ((4, 16), (2, 3), (1, 1)),  # GPU 0 is fuller, and too full for both
        ((4, 16), (1, 3), (0, 0)),
        ((4, 7, 16), (2, 3, 4), (2, 2, 2)),
        ((4, 9, 16), (2, 3, 4), (1, 1, 1)),
        ((5, 7), (2, 4, 4), (1, 1, 0)),  # no GPU has room for all: the sidecar and the largest go together
        ((2, 4), (2, 4), (0, 1)),
    ],
)
def test_a_sidecar_is_where_the_pods_other_containers_fit(free, sizes, on):
    kubelet = kubelet_in_share(*(gpu(n, units) for n, units in enumerate(free)))
    side, *apps = sizes
    kubelet.pods(pod_json("a", *({MEM: size} for size in apps), sidecar=({MEM: side},)))
    names = ["side-0", *("main" if n == 0 else f"main-{n}" for n in range(len(apps)))]
    for name, size in zip(names, sizes, strict=True):
        kubelet.serve(owner("a", name), MEM, size)
    assert [kubelet.on(owner("a", name), MEM) for name in names] == [{uuid(n)} for n in on]


def test_a_sidecar_is_where_both_resources_of_the_other_container_fit():
    kubelet = kubelet_in_core_mem(gpu(0, 8), gpu(1, 16)).pods(
        pod_json("busy", {MEM: 1, CORE: 60}), pod_json("a", {MEM: 4, CORE: 40}, sidecar=({MEM: 2, CORE: 20},))
    )
    kubelet.serve(owner("busy"), MEM, 1)
    kubelet.serve(owner("busy"), CORE, 60)
    for name, memory, cores in (("side-0", 2, 20), ("main", 4, 40)):
        kubelet.serve(owner("a", name), MEM, memory)
        kubelet.serve(owner("a", name), CORE, cores)
        assert kubelet.on(owner("a", name), MEM) == kubelet.on(owner("a", name), CORE) == {uuid(1)}


def test_a_sidecar_and_an_app_container_get_units_of_their_own():
    kubelet = kubelet_in_share().pods(pod_json("a", {MEM: 2}, sidecar=({MEM: 2},)))
    kubelet.serve(owner("a", "side-0"), MEM, 2)
    kubelet.serve(owner("a"), MEM, 2)
    assert not kubelet.allocations.holdings[0].ids & kubelet.allocations.holdings[1].ids


def test_an_init_container_in_core_mem_keeps_the_pair_together():
    for order in ((MEM, CORE), (CORE, MEM)):
        kubelet = kubelet_in_core_mem(gpu(0, 8), gpu(1, 16)).pods(
            pod_json("a", {MEM: 10, CORE: 40}, init=({MEM: 2, CORE: 10},))
        )
        for resource in order:
            kubelet.serve(owner("a", "init-0"), resource, {MEM: 2, CORE: 10}[resource])
        reused = {h.resource: sorted(h.ids) for h in kubelet.allocations.holdings}
        for resource in reversed(order):
            kubelet.serve(owner("a"), resource, {MEM: 10, CORE: 40}[resource], must=reused[resource])
        assert kubelet.on(owner("a"), MEM) == kubelet.on(owner("a"), CORE) == {uuid(1)}
