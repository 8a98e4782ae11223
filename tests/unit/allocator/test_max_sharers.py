"""The most pods on one GPU, by the setting and by the isolation driver."""

from dataclasses import replace

import pytest

from gpuagent.domain.refusal import Reason
from gpuagent.domain.sharing.mode import Kind, Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet, kubelet_in_core_mem, kubelet_in_share
from tests.unit.domain.builders import (
    CORE,
    MEM,
    NodeUnderTest,
    box,
    gpu,
    in_force,
    key,
    owner,
    pod_json,
    unit_ids,
    uuid,
)

SHARE = Kind.MEMORY_SHARE

pytestmark = pytest.mark.usefixtures("impatient")


def test_no_gpu_takes_more_pods_than_allowed():
    kubelet = kubelet_in_share(gpu(0, 16), gpu(1, 80), max_pods_per_gpu=2)
    kubelet.pods(*(pod_json(name, {MEM: 1}, created=name) for name in "abcde"))
    for name in "abcd":
        kubelet.serve(owner(name), MEM, 1)
    assert [kubelet.on(owner(name), MEM) for name in "abcd"] == [{uuid(0)}] * 2 + [{uuid(1)}] * 2
    refusal = kubelet.refusal(lambda: kubelet.prefer(MEM, 1))
    assert refusal.reason is Reason.TOO_MANY_PODS
    kubelet.end("a")
    assert kubelet.prefer(MEM, 1) < unit_ids(0, SHARE, *range(16))


def test_a_pod_on_a_gpu_may_put_its_other_containers_there():
    kubelet = kubelet_in_share(gpu(0, 16), gpu(1, 80), max_pods_per_gpu=1).pods(pod_json("a", {MEM: 1}, {MEM: 2}))
    kubelet.serve(owner("a"), MEM, 1)
    kubelet.serve(owner("a", "main-1"), MEM, 2)
    assert kubelet.on(owner("a", "main-1"), MEM) == {uuid(0)}


def test_a_kubelet_that_picks_itself_may_put_a_pods_other_containers_on_its_gpu_and_no_other_pod():
    kubelet = kubelet_in_share(gpu(0, 16), gpu(1, 80), max_pods_per_gpu=1).pods(pod_json("a", {MEM: 1}, {MEM: 2}))
    kubelet.serve(owner("a"), MEM, 1)
    assert kubelet.allocator.allocate(MEM, unit_ids(0, SHARE, 1, 2))
    kubelet.pods(pod_json("a", {MEM: 1}, {MEM: 2}), pod_json("b", {MEM: 3}))
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, unit_ids(0, SHARE, 3, 4, 5)))
    assert refusal.reason is Reason.TOO_MANY_PODS


def test_pods_that_ended_a_moment_ago_do_not_fill_a_gpu_in_core_mem():
    kubelet = kubelet_in_core_mem(*box(1), max_pods_per_gpu=2)
    kubelet.pods(*(pod_json(name, {MEM: 1, CORE: 1}, created=name) for name in "abc"))
    for name in "ab":
        kubelet.serve(owner(name), MEM, 1)
        kubelet.serve(owner(name), CORE, 1)
    kubelet.end("a", "b")
    kubelet.pods(pod_json("c", {MEM: 1, CORE: 1})).read_allocations()
    kubelet.node.now += 5
    assert len(kubelet.prefer(MEM, 1)) == 1


def test_kubelet_on_a_busy_node_names_the_containers_before_a_pod_is_refused():
    """The API server is away, and each container without a name may be a pod of its own."""
    kubelet = kubelet_in_share(gpu(0, 16), max_pods_per_gpu=2)
    kubelet.unseen = None
    kubelet.allocations.read_s = 3.0
    kubelet.allocations.published = kubelet.read_allocations
    for container in ("main", "main-1", "main-2"):
        kubelet.serve(owner("a", container), MEM, 1)
    assert len(kubelet.prefer(MEM, 1)) == 1


def layered(node: NodeUnderTest, most: int) -> FakeKubelet:
    layers = {name: replace(layer, max_sharers=most) for name, layer in node.state.isolation.layers.items()}
    return FakeKubelet(node.isolation(layers=layers))


def test_the_layers_limit_counts_containers_by_choice_and_by_refusal():
    kubelet = layered(in_force(Mode.CGPU, box(2)), 2)
    pod = pod_json("p", {MEM: 1}, {MEM: 1}, {MEM: 1})
    kubelet.pods(pod)
    for container in ("main", "main-1", "main-2"):
        kubelet.serve(owner("p", container), MEM, 1)
    assert sorted(
        len({i for h in kubelet.allocations.holdings for i in h.ids if i.startswith(key(n))}) for n in range(2)
    ) == [
        1,
        2,
    ]
    full = next(
        n for n in range(2) if sum(i.startswith(key(n)) for h in kubelet.allocations.holdings for i in h.ids) == 2
    )
    refusal = kubelet.refusal(lambda: kubelet.allocator.allocate(MEM, unit_ids(full, Kind.MEMORY_CGPU, 9)))
    assert refusal.reason is Reason.TOO_MANY_PODS
    assert "20 pods or 2 containers" in refusal.message
