"""One pod at a time: where it comes to, and what it is told."""

import pytest

from gpuagent.domain.pods.annotations import CORE_ANNOTATION, MEMORY_ANNOTATION, V1_ASSIGNED, V1_GPU, V1_UNITS
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from tests.e2e.agent.allocation_audit import spread_pod
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.decision_audit import NamesOfGpus, audit_decisions
from tests.e2e.agent.podannotations import annotate, event, wait_written, written
from tests.e2e.agent.schedulers.cases import agent, assume, each_family, make_scheduler, minors, place, refused
from tests.e2e.agent.share_scheduler import AnnotationFamily, ShareScheduler
from tests.e2e.cluster import container, pod_manifest

V1, V2, BOTH, GROUP = AnnotationFamily


@agent("share")
@pytest.mark.parametrize("family", [V1, V2, BOTH])
def test_the_gpu_that_was_chosen(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    place(node, scheduler, pod_manifest("first", {GPU_MEM: 10}), family, {0: (5,)})
    place(node, scheduler, pod_manifest("second", {GPU_MEM: 10}), family, {0: (2,)})
    assert (minors(node, "first"), minors(node, "second")) == ({5}, {2})


@agent("share")
@each_family
def test_a_gpu_named_by_its_uuid(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    uuids = {minor: uuid for uuid, minor in NamesOfGpus(node).minors.items()}
    by_uuid = make_scheduler(node, uuids)
    place(node, by_uuid, pod_manifest("named", {GPU_MEM: 10}), family, {0: (6,)})
    audit_decisions(node, by_uuid.decided)
    key = V1_GPU if family is V1 else MEMORY_ANNOTATION
    assert uuids[6] in written(node.cluster.pod("named"))[key], "what is right is left as it was written"
    node.end("named")


@agent("share")
@each_family
def test_several_containers(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    manifest = pod_manifest("several", {GPU_MEM: 10})
    manifest["spec"]["containers"] += [container("none", {}), container("last", {GPU_MEM: 6})]
    place(node, scheduler, manifest, family, {0: (3,)} if family is V1 else {0: (3,), 2: (5,)})
    assert minors(node, "several", "last") == ({3} if family is V1 else {5})


@agent("share")
@each_family
def test_an_init_container_goes_before_on_the_same_gpu(
    node: Node, scheduler: ShareScheduler, family: AnnotationFamily
) -> None:
    init = container("init", {GPU_MEM: 10}, command=["/bin/sh", "-c", "env"])
    place(node, scheduler, pod_manifest("prepared", {GPU_MEM: 10}, init=[init]), family, {0: (4,)})
    (uuid,) = node.gpus_of("prepared")
    assert f"NVIDIA_VISIBLE_DEVICES={uuid}\n" in node.cluster.pod_log("prepared", "init")


@agent("share")
def test_an_init_container_for_containers_on_different_gpus_is_refused(node: Node, scheduler: ShareScheduler) -> None:
    init = container("init", {GPU_MEM: 12}, command=["/bin/true"])
    manifest = pod_manifest("torn", {GPU_MEM: 6}, init=[init])
    manifest["spec"]["containers"].append(container("second", {GPU_MEM: 6}))
    name = assume(node, scheduler, manifest, V2, {0: (1,), 1: (2,)})
    scheduler.bind(name)
    assert "main and second on different GPUs" in refused(node, name)
    scheduler.forget(name)


@agent("share")
@each_family
def test_a_sidecar_comes_to_the_gpu_of_its_pod(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    side = container("side", {GPU_MEM: 4}, restart_policy="Always")
    place(node, scheduler, pod_manifest("driven", {GPU_MEM: 10}, init=[side]), family, {0: (4,)})
    assert minors(node, "driven", "side") == {4}


@agent("share")
def test_several_gpus_for_one_container(node: Node, scheduler: ShareScheduler) -> None:
    node.spread_pods.add("wide")
    place(node, scheduler, spread_pod("wide", 2, pod_manifest("", {GPU_MEM: 20})), V2, {0: (2, 5)})
    assert minors(node, "wide") == {2, 5}


@agent("share")
def test_one_index_for_a_pod_of_several_gpus_is_ignored(node: Node, scheduler: ShareScheduler) -> None:
    node.spread_pods.add("wide")
    name = assume(node, scheduler, spread_pod("wide", 2, pod_manifest("", {GPU_MEM: 20})), V1, {0: (7,)})
    del scheduler.decided[name]
    scheduler.bind(name)
    node.cluster.wait_phase(name, "Running")
    assert "names one GPU" in event(node, name, "GPUDecisionIgnored")["message"]


@agent("share")
def test_families_that_disagree(node: Node, scheduler: ShareScheduler) -> None:
    """V2 counts; the index is corrected."""
    name = assume(node, scheduler, pod_manifest("torn", {GPU_MEM: 10}), BOTH, {0: (2,)})
    annotate(node, name, {V1_GPU: "6"})
    scheduler.bind(name)
    node.cluster.wait_phase(name, "Running")
    assert minors(node, name) == {2}
    assert f"annotation {V1_GPU} says 6" in event(node, name, "AnnotationCorrected")["message"]


@agent("share")
def test_a_pod_without_annotations(node: Node, scheduler: ShareScheduler) -> None:
    node.run(pod_manifest("silent", {GPU_MEM: 10}))
    wait_written(node, "silent", {V1_ASSIGNED: "true", V1_UNITS: "10"})


@agent("core_mem")
@each_family
def test_compute_goes_with_the_memory(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    manifest = pod_manifest("both", {GPU_MEM: 10, GPU_CORE: 30})
    place(node, scheduler, manifest, family, {0: (5,)})
    assert minors(node, "both") == {5}


@agent("core_mem")
def test_memory_and_compute_on_different_gpus_is_no_decision(node: Node, scheduler: ShareScheduler) -> None:
    name = assume(node, scheduler, pod_manifest("torn", {GPU_MEM: 10, GPU_CORE: 30}), V2, {0: (5,)})
    annotate(node, name, {CORE_ANNOTATION: '{"0":{"6":30}}'})
    del scheduler.decided[name]
    scheduler.bind(name)
    node.cluster.wait_phase(name, "Running")
    assert "do not agree" in event(node, name, "GPUDecisionIgnored")["message"]


@agent("topology")
def test_whole_gpus_that_nobody_chose(node: Node, scheduler: ShareScheduler) -> None:
    node.run(pod_manifest("silent", {GPU_WHOLE: 3}))
