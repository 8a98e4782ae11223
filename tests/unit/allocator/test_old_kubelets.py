"""Kubelets before 1.19, which pick ids themselves: the units that the agent gives for them."""

import itertools

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.sharing.mode import Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import CORE, MEM, NodeUnderTest, box, node_json, pod_json

OLD = {"status": {"nodeInfo": {"kubeletVersion": "v1.18.20"}}}


@pytest.mark.parametrize("order", [(MEM, CORE), (CORE, MEM)])
def test_memory_and_compute_are_on_one_gpu_if_the_pod_is_seen_between_the_two_calls(order):
    node = NodeUnderTest(Mode.CORE_MEM).inventory(*box(3))
    node.send(ev.NodeSeen(node_json("core_mem") | OLD, node.now)).holdings()
    kubelet = FakeKubelet(node)
    free = {resource: iter(sorted(node.ids(resource))) for resource in order}
    full = [pod_json("memory", {MEM: 14, CORE: 5}), pod_json("compute", {MEM: 4, CORE: 60})]
    late = pod_json("late", {MEM: 2, CORE: 30})

    def call(pod, resource):
        size = int(pod["spec"]["containers"][0]["resources"]["limits"][resource])
        return kubelet.allocator.allocate(resource, list(itertools.islice(free[resource], size))).gpus

    kubelet.pods(*full)
    on = [call(pod, resource) for pod in full for resource in order]
    assert on[0] == on[1] != on[2] == on[3], "binpack alone chooses two GPUs for the third pod"
    first = call(late, order[0])
    kubelet.pods(*full, late)
    assert call(late, order[1]) == first


def test_a_kubelet_that_was_started_again_begins_with_another_container():
    """The former process had served one of the two resources of a container."""
    node = NodeUnderTest(Mode.CORE_MEM, core_mem_both=True).inventory(*box(2))
    node.send(ev.NodeSeen(node_json("core_mem") | OLD, node.now)).holdings()
    kubelet = FakeKubelet(node)
    free = {resource: iter(sorted(node.ids(resource))) for resource in (MEM, CORE)}

    def call(resource, size):
        return kubelet.allocator.allocate(resource, list(itertools.islice(free[resource], size))).gpus

    kubelet.allocator.serving((1, 1, 1))
    kubelet.pods(pod_json("busy", {MEM: 4, CORE: 60}))
    busy = [call(MEM, 4), call(CORE, 60)]
    cut_off = call(MEM, 2)
    assert [cut_off, cut_off] == busy
    kubelet.allocator.serving((1, 2, 2))
    assert call(CORE, 50) != cut_off, "the GPU has 40 free"
