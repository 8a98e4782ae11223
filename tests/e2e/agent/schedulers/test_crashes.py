"""A scheduler that dies between its two steps, and pods that are created again."""

import time

import pytest

from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.decision_audit import audit_decisions
from tests.e2e.agent.podannotations import written
from tests.e2e.agent.schedulers.cases import WHOLE, agent, assume, each_family, minors, place
from tests.e2e.agent.share_scheduler import AnnotationFamily, ShareScheduler
from tests.e2e.cluster import pod_manifest

V1, V2, BOTH, GROUP = AnnotationFamily


@agent("share")
@pytest.mark.parametrize(("first", "then"), [(V1, V1), (V2, V2), (V1, V2), (V2, V1)])
def test_a_crash_between_the_steps_and_another_gpu_later(
    node: Node, scheduler: ShareScheduler, first: AnnotationFamily, then: AnnotationFamily
) -> None:
    name = assume(node, scheduler, pod_manifest("twice", {GPU_MEM: WHOLE}), first, {0: (1,)})
    scheduler.restart()
    place(node, scheduler, pod_manifest("other", {GPU_MEM: WHOLE}), then, {0: (1,)})
    scheduler.assume(name, then, {0: (6,)})
    scheduler.bind(name)
    node.cluster.wait_phase(name, "Running")
    assert minors(node, name) == {6}


@agent("share")
@each_family
def test_a_crash_between_the_steps_and_another_node_later(
    node: Node, scheduler: ShareScheduler, family: AnnotationFamily
) -> None:
    name = assume(node, scheduler, pod_manifest("elsewhere", {GPU_MEM: WHOLE}), family, {0: (3,)})
    scheduler.restart()
    scheduler.assume(name, family, {0: (3,)})
    scheduler.bind(name, "another-node")
    before = written(node.cluster.pod(name))
    scheduler.forget(name)
    place(node, scheduler, pod_manifest("here", {GPU_MEM: WHOLE}), family, {0: (3,)})
    audit_decisions(node, scheduler.decided, ["here"])
    assert written(node.cluster.pod(name)) == before, "pods of other nodes are not ours to annotate"
    node.pods.remove(name)
    node.cluster.delete_pod(name)


@agent("share")
@each_family
def test_a_pod_that_is_made_again_under_its_name(
    node: Node, scheduler: ShareScheduler, family: AnnotationFamily
) -> None:
    place(node, scheduler, pod_manifest("again", {GPU_MEM: 10}), family, {0: (1,)})
    first = node.cluster.container("again")
    node.cluster.delete_pod("again", timeout=0)
    node.pods.remove("again")
    place(node, scheduler, pod_manifest("again", {GPU_MEM: 10}), family, {0: (6,)})
    while first.alive:
        time.sleep(0.05)
    assert minors(node, "again") == {6}


@agent("topology")
def test_a_crash_between_the_steps_and_another_group_later(node: Node, scheduler: ShareScheduler) -> None:
    name = assume(node, scheduler, pod_manifest("group", {GPU_WHOLE: 2}), GROUP, {0: (1, 6)})
    scheduler.restart()
    place(node, scheduler, pod_manifest("other", {GPU_WHOLE: 1}), GROUP, {0: (1,)})
    scheduler.assume(name, GROUP, {0: (2, 3)})
    scheduler.bind(name)
    node.cluster.wait_phase(name, "Running")
    assert minors(node, name) == {2, 3}
