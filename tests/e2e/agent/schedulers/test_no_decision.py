"""What is no decision, and what cannot be kept."""

import json

import pytest

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION, V1_ASSIGNED, V1_ASSUMED, V1_GPU
from gpuagent.domain.sharing.mode import GPU_MEM
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.podannotations import event, written
from tests.e2e.agent.schedulers.cases import WHOLE, agent, assume, each_family, minors, place, refused
from tests.e2e.agent.share_scheduler import AnnotationFamily, ShareScheduler, stale
from tests.e2e.cluster import pod_manifest

V1, V2, BOTH, GROUP = AnnotationFamily


@agent("share")
def test_a_template_that_brings_an_old_index(node: Node, scheduler: ShareScheduler) -> None:
    place(node, scheduler, pod_manifest("template", {GPU_MEM: WHOLE}), V1, {0: (0,)})
    node.run(pod_manifest("copy", {GPU_MEM: WHOLE}, annotations=stale(0, WHOLE)))
    assert f"{V1_ASSUMED} is older than the pod" in event(node, "copy", "GPUDecisionIgnored")["message"]
    assert minors(node, "copy") != {0}


@agent("share")
def test_a_template_that_brings_a_table(node: Node, scheduler: ShareScheduler) -> None:
    """It has no time: a copy that fits is as good as a decision, and never gets what somebody holds."""
    place(node, scheduler, pod_manifest("template", {GPU_MEM: 50}), V2, {0: (3,)})
    copied = {MEMORY_ANNOTATION: written(node.cluster.pod("template"))[MEMORY_ANNOTATION]}
    status = node.run(pod_manifest("too-much", {GPU_MEM: 50}, annotations=copied), phase="Failed")["status"]
    assert f"a scheduler chose GPU 3 for it (annotation {MEMORY_ANNOTATION})" in status["message"]
    node.run(pod_manifest("fits", {GPU_MEM: 30}, annotations={MEMORY_ANNOTATION: '{"0":{"3":30}}'}))
    assert minors(node, "fits") == {3}


FORGED = {
    "amount-v1": {**stale(3, WHOLE), V1_ASSUMED: "9999999999999999999", V1_ASSIGNED: "false"},
    "amount-v2": {MEMORY_ANNOTATION: json.dumps({"0": {"3": WHOLE}})},
    "container-v2": {MEMORY_ANNOTATION: json.dumps({"0": {"3": 4}, "1": {"3": 70}})},
    "text-v1": {**stale(3, 4), V1_GPU: "three"},
    "text-v2": {MEMORY_ANNOTATION: "{"},
}


@agent("share")
@pytest.mark.parametrize("forged", FORGED)
def test_what_does_not_fit_the_pod(node: Node, scheduler: ShareScheduler, forged: str) -> None:
    """It is served as if nothing stood there, told so, and its annotations are put right."""
    node.run(pod_manifest("forged", {GPU_MEM: 4}, annotations=FORGED[forged]))
    event(node, "forged", "GPUDecisionIgnored")
    event(node, "forged", "AnnotationCorrected")


@agent("share")
@each_family
def test_a_gpu_that_is_not_there(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    name = assume(node, scheduler, pod_manifest("lost", {GPU_MEM: 4}), family, {0: (9,)})
    scheduler.bind(name)
    assert "names GPU 9, and this node has no such GPU" in refused(node, name)
    scheduler.forget(name)
    place(node, scheduler, pod_manifest("next", {GPU_MEM: 4}), family, {0: (1,)})


@agent("share")
@each_family
def test_a_gpu_that_is_full(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    place(node, scheduler, pod_manifest("big", {GPU_MEM: WHOLE - 2}), family, {0: (3,)})
    name = assume(node, scheduler, pod_manifest("late", {GPU_MEM: 4}), family, {0: (3,)})
    scheduler.bind(name)
    assert "a scheduler chose GPU 3 for it" in refused(node, name)
    scheduler.forget(name)
    place(node, scheduler, pod_manifest("small", {GPU_MEM: 2}), family, {0: (3,)})


@agent("share")
@each_family
def test_a_pod_that_has_ended_counts_for_nothing(
    node: Node, scheduler: ShareScheduler, family: AnnotationFamily
) -> None:
    name = assume(node, scheduler, pod_manifest("ended", {GPU_MEM: WHOLE}, command=["/bin/true"]), family, {0: (4,)})
    scheduler.bind(name)
    node.cluster.wait_phase(name, "Succeeded")
    scheduler.forget(name)
    place(node, scheduler, pod_manifest("next", {GPU_MEM: WHOLE}), family, {0: (4,)})
