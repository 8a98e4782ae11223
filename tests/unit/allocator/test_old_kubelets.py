"""Kubelets before 1.19, which pick ids themselves: the units that the agent gives for them."""

import itertools

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.sharing.mode import Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import CORE, MEM, NodeUnderTest, box, node_json, pod_json, uuid
from tests.unit.domain.scheduling.test_decision import v1

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


class EndsUnseen:
    """Kubelet picks the very ids of a pod that has ended, which the watch has not shown yet."""

    def __init__(self, mode, label):
        self.node = NodeUnderTest(mode).inventory(*box(3))
        self.node.send(ev.NodeSeen(node_json(label) | OLD, self.node.now)).holdings()
        self.kubelet = FakeKubelet(self.node)
        self.free = {resource: iter(sorted(self.node.ids(resource))) for resource in (MEM, CORE)}

    def ids(self, resource, size):
        return list(itertools.islice(self.free[resource], size))

    def gpus(self, resource, ids):
        return [gpu.uuid for gpu in self.kubelet.allocator.allocate(resource, ids).gpus]


@pytest.mark.parametrize("again", ["first", "second", "both"])
@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("order", [(MEM, CORE), (CORE, MEM)])
def test_ids_of_a_pod_that_ended_unseen_do_not_tear_a_container_apart(order, is_seen, again):
    """Found at random, on a busy machine: the ids were taken for a repeated request of the pod that had ended."""
    first, second = order
    large = {MEM: 10, CORE: 60}
    node = EndsUnseen(Mode.CORE_MEM, "core_mem")
    ended = pod_json("ended", large)
    node.kubelet.pods(ended)
    its_ids = {resource: node.ids(resource, large[resource]) for resource in order}
    for resource in order:
        node.gpus(resource, its_ids[resource])
    if is_seen:
        node.kubelet.pods(ended, pod_json("new", large))
    ids = {resource: node.ids(resource, large[resource]) for resource in order}
    if again in {"first", "both"}:
        ids[first] = its_ids[first]
    if again in {"second", "both"}:
        ids[second] = its_ids[second]
    assert node.gpus(first, ids[first]) == node.gpus(second, ids[second])


def test_ids_of_a_pod_that_ended_unseen_do_not_break_a_decision():
    node = EndsUnseen(Mode.SHARE, "share")
    ended = pod_json("ended", {MEM: 2}, annotations=v1(1, 2))
    node.kubelet.pods(ended)
    ids = node.ids(MEM, 2)
    assert node.gpus(MEM, ids) == [uuid(1)]
    assert node.gpus(MEM, ids) == [uuid(1)], "the same request again"
    started = {"name": "main", "containerID": f"containerd://{'a' * 64}"}
    runs = ended | {"status": {"phase": "Running", "containerStatuses": [started]}}
    node.kubelet.pods(runs, pod_json("new", {MEM: 2}, annotations=v1(2, 2)))
    assert node.gpus(MEM, ids) == [uuid(2)]


def test_ids_of_a_pod_that_was_refused_do_not_break_a_decision():
    """Kubelet frees the ids of its first container at once, and the watch shows the pod as pending for a while."""
    node = EndsUnseen(Mode.SHARE, "share")
    refused = pod_json("refused", {MEM: 2}, {MEM: 40})
    node.kubelet.pods(refused)
    ids = node.ids(MEM, 2)
    assert node.gpus(MEM, ids) == [uuid(0)]
    assert node.kubelet.refusal(lambda: node.gpus(MEM, node.ids(MEM, 40))).pod.name == "refused"
    node.kubelet.pods(refused, pod_json("new", {MEM: 2}, annotations=v1(2, 2)))
    assert node.gpus(MEM, ids) == [uuid(2)]


def test_ids_of_a_pod_that_ended_unseen_are_not_on_another_gpu_than_the_init_container():
    node = EndsUnseen(Mode.SHARE, "share")
    ended = pod_json("ended", {MEM: 14})
    node.kubelet.pods(ended)
    ids = node.ids(MEM, 14)
    before = node.gpus(MEM, ids)
    node.kubelet.pods(ended, pod_json("new", {MEM: 14}, init=[{MEM: 3}]))
    its_init = node.ids(MEM, 3)
    init = node.gpus(MEM, its_init)
    assert init != before
    # Kubelet reuses the ids of the init container and picks the others.
    assert node.gpus(MEM, [*its_init, *ids[:11]]) == init
