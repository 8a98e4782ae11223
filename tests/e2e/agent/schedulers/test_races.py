"""Pods that are in flight together, on each kubelet, which is paused while they are bound."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuagent.domain.pods.annotations import V1_ASSIGNED
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.podannotations import wait_watched, wait_written
from tests.e2e.agent.schedulers.cases import WHOLE, agent, assume, each_family, minors
from tests.e2e.agent.share_scheduler import NAME, AnnotationFamily, ShareScheduler
from tests.e2e.cluster import pod_manifest

V1, V2, BOTH, GROUP = AnnotationFamily


@pytest.fixture(scope="module")
def shared(kubelet: str, shared: Node) -> Node:
    """On each kubelet."""
    return shared


@agent("share")
@pytest.mark.parametrize("families", [(V1, V1), (V2, V2), (V1, V2)], ids="-".join)
def test_two_pods_of_one_size(
    node: Node, scheduler: ShareScheduler, families: tuple[AnnotationFamily, AnnotationFamily]
) -> None:
    """Bound in another order than they were decided on."""
    names = [
        assume(node, scheduler, pod_manifest(f"equal-{gpu}", {GPU_MEM: 10}), family, {0: (gpu,)})
        for gpu, family in zip((1, 6), families, strict=True)
    ]
    with node.cluster.paused_kubelet():
        for name in reversed(names):
            scheduler.bind(name)
    for name in names:
        node.cluster.wait_phase(name, "Running")


@agent("share")
@pytest.mark.parametrize("families", [(V1,), (V2,), (V1, V2)], ids="-".join)
def test_many_pods_of_one_size(node: Node, scheduler: ShareScheduler, families: tuple[AnnotationFamily, ...]) -> None:
    rng = random.Random(5)
    names = [
        assume(node, scheduler, pod_manifest(f"equal-{n}", {GPU_MEM: 10}), families[n % len(families)])
        for n in range(10)
    ]
    rng.shuffle(names)
    with node.cluster.paused_kubelet(), ThreadPoolExecutor(4) as pool:
        list(pool.map(scheduler.bind, names))
    for name in names:
        node.cluster.wait_phase(name, "Running")


@agent("share")
@each_family
def test_pods_of_one_size_of_which_some_are_deleted_at_once(
    node: Node, scheduler: ShareScheduler, family: AnnotationFamily
) -> None:
    """Kubelet hears of the deletions when it has asked for these pods: they take nothing of their equals."""
    names = [assume(node, scheduler, pod_manifest(f"equal-{n}", {GPU_MEM: 10}), family, {0: (n,)}) for n in range(6)]
    with node.cluster.paused_kubelet():
        for name in names:
            scheduler.bind(name)
        for name in names[::2]:
            node.cluster.delete_pod(name, timeout=0)
            node.pods.remove(name)
    scheduler.forget(*names[::2])
    for name in names[1::2]:
        node.cluster.wait_phase(name, "Running")


@agent("share")
@each_family
def test_names_that_are_used_again_at_once(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    """Kubelet is still to ask for the pods that had them before."""
    names = [assume(node, scheduler, pod_manifest(f"equal-{n}", {GPU_MEM: 10}), family, {0: (n,)}) for n in range(6)]
    with node.cluster.paused_kubelet():
        for name in names:
            scheduler.bind(name)
        for n, name in enumerate(names[::2]):
            node.cluster.delete_pod(name, timeout=0)
            node.pods.remove(name)
            assume(node, scheduler, pod_manifest(name, {GPU_MEM: 10}), family, {0: (7 - n,)})
            scheduler.bind(name)
    for name in names:
        node.cluster.wait_phase(name, "Running")


@agent("share")
@each_family
def test_pods_of_one_size_of_which_kubelet_rejects_some(
    node: Node, scheduler: ShareScheduler, family: AnnotationFamily
) -> None:
    """It asks nothing for them, and they linger in its list for a moment, with nothing held."""
    names = []
    for n in range(6):
        made = pod_manifest(f"equal-{n}", {GPU_MEM: 10})
        if n % 2 == 0:
            made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1000"}
        names.append(assume(node, scheduler, made, family, {0: (n,)}))
    with node.cluster.paused_kubelet():
        for name in names:
            scheduler.bind(name)
    for name in names[::2]:
        assert node.cluster.wait_phase(name, "Failed")["status"]["reason"] == "OutOfcpu"
    scheduler.forget(*names[::2])
    for name in names[1::2]:
        node.cluster.wait_phase(name, "Running")


@agent("share")
@each_family
def test_what_is_reserved_is_not_given_to_a_pod_before_it(
    node: Node, scheduler: ShareScheduler, family: AnnotationFamily
) -> None:
    """Alone the first pod would come to the GPU that is in use already."""
    node.run(pod_manifest("runs", {GPU_MEM: 1}))
    wait_written(node, "runs", {V1_ASSIGNED: "true"})
    (gpu,) = minors(node, "runs")
    name = assume(node, scheduler, pod_manifest("promised", {GPU_MEM: WHOLE - 1}), family, {0: (gpu,)})
    first = pod_manifest("first", {GPU_MEM: 10})
    first["spec"]["schedulerName"] = NAME
    node.pods.append("first")
    node.cluster.create_pod(first)
    with node.cluster.paused_kubelet():
        scheduler.bind("first")
        scheduler.bind(name)
        wait_watched(node, "runs")
    for each in ("first", name):
        node.cluster.wait_phase(each, "Running")
    assert minors(node, "first") != {gpu}


@agent("core_mem")
@each_family
def test_pods_of_one_size_with_compute(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    names = [
        assume(node, scheduler, pod_manifest(f"equal-{n}", {GPU_MEM: 10, GPU_CORE: 30}), family, {0: (7 - n,)})
        for n in range(4)
    ]
    with node.cluster.paused_kubelet():
        for name in reversed(names):
            scheduler.bind(name)
    for name in names:
        node.cluster.wait_phase(name, "Running")


@agent("topology")
def test_groups_of_one_size(node: Node, scheduler: ShareScheduler) -> None:
    # A kubelet that has just been started gives back what pods of before had when it has admitted one.
    node.run(pod_manifest("first", {GPU_WHOLE: 1}))
    node.end("first")
    names = [
        assume(node, scheduler, pod_manifest(f"group-{n}", {GPU_WHOLE: 2}), GROUP, {0: gpus})
        for n, gpus in enumerate(((1, 6), (0, 3), (2, 7)))
    ]
    with node.cluster.paused_kubelet():
        for name in reversed(names):
            scheduler.bind(name)
    for name in names:
        node.cluster.wait_phase(name, "Running")
