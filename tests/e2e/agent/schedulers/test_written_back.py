"""What the agent writes back, whatever happens to it or to what it wrote."""

import time

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION, V1_ASSIGNED, V1_GPU, V1_UNITS
from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.decision_audit import audit_decisions, living
from tests.e2e.agent.podannotations import MERGE, annotate, event, wait_written, written
from tests.e2e.agent.process import RBAC
from tests.e2e.agent.schedulers.cases import agent, each_family, place
from tests.e2e.agent.share_scheduler import AnnotationFamily, ShareScheduler
from tests.e2e.cluster import WAIT_S, pod_manifest

V1, V2, BOTH, GROUP = AnnotationFamily


@agent("share")
@each_family
def test_annotations_that_a_user_changes_later(node: Node, scheduler: ShareScheduler, family: AnnotationFamily) -> None:
    place(node, scheduler, pod_manifest("changed", {GPU_MEM: 10}), family, {0: (2,)})
    audit_decisions(node, scheduler.decided)
    forged = (
        {V1_GPU: "7", V1_UNITS: "60", V1_ASSIGNED: "false"} if family is V1 else {MEMORY_ANNOTATION: '{"0":{"7":10}}'}
    )
    annotate(node, "changed", forged)
    corrected = event(node, "changed", "AnnotationCorrected")
    assert corrected["type"] == "Warning"
    assert (
        f"annotation {next(iter(forged))} says {forged.get(V1_GPU) or forged[MEMORY_ANNOTATION]}"
        in corrected["message"]
    )


@agent("share")
def test_restarts_of_the_agent_write_nothing_twice(node: Node, scheduler: ShareScheduler) -> None:
    for family in (V1, V2, BOTH):
        place(node, scheduler, pod_manifest(f"decided-{family.lower()}", {GPU_MEM: 10}), family, {0: (4,)})
    node.run(pod_manifest("silent", {GPU_MEM: 10}))
    audit_decisions(node, scheduler.decided)
    pods, began = living(node), node.cluster.audit.position()
    before = {name: written(node.cluster.pod(name)) for name in pods}
    for end in (node.agent.stop, node.agent.kill):
        node.restart_agent(end)
        # Once this one is annotated, the agent has looked at them all.
        node.run(pod_manifest(f"after-{end.__name__}", {GPU_MEM: 1}))
        wait_written(node, f"after-{end.__name__}", {V1_ASSIGNED: "true"})
    patched = [
        asked["objectRef"]["name"]
        for asked in node.cluster.audit.events(began)
        if asked["verb"] == "patch" and asked["objectRef"]["resource"] == "pods"
    ]
    assert set(patched) == {"after-stop", "after-kill"}
    assert {name: written(node.cluster.pod(name)) for name in pods} == before


@agent("share")
def test_an_agent_that_is_killed_before_it_could_write(node: Node, scheduler: ShareScheduler) -> None:
    """What it may not write it cannot have written; the next one completes it from kubelet's allocations."""
    pods = pod_manifest("one", {GPU_MEM: 10}), pod_manifest("two", {GPU_MEM: 12})
    (role, *_) = RBAC
    kept = [rule for rule in role["rules"] if rule["resources"] != ["pods"]]
    reading = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    node.cluster.apply({**role, "rules": [*kept, reading]})
    try:
        wait_forbidden(node)
        for manifest, family in zip(pods, (V1, V2), strict=True):
            place(node, scheduler, manifest, family, {0: (2,)})
        node.run(pod_manifest("silent", {GPU_MEM: 14}))
        node.agent.wait(lambda page: any(p["reason"] == "AnnotationsNotWritten" for p in page["problems"]))
        node.agent.kill()
        assert written(node.cluster.pod("one"))[V1_ASSIGNED] == "false"
        assert written(node.cluster.pod("silent")) == {}
    finally:
        node.cluster.apply(role)
    node.agent.start()
    node.agent.wait_ready()


def wait_forbidden(node: Node) -> None:
    """Until the API server goes by the new rule."""
    path, token = "/api/v1/namespaces/default/pods/nobody", node.cluster.token("gpuagent")
    end = time.monotonic() + WAIT_S
    while node.cluster.api("PATCH", path, {}, MERGE, token)[0] != 403:
        assert time.monotonic() < end
        time.sleep(0.05)


@agent("topology")
def test_a_group_that_a_user_changes_later(node: Node, scheduler: ShareScheduler) -> None:
    place(node, scheduler, pod_manifest("group", {GPU_WHOLE: 2}), GROUP, {0: (1, 6)})
    annotate(node, "group", {GROUP_ANNOTATION: "2,5"})
    assert f"annotation {GROUP_ANNOTATION} says 2,5" in event(node, "group", "AnnotationCorrected")["message"]
