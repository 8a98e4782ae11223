"""What the agent writes on real pods, against a real API server: once, right, and also after it was away."""

import time
from collections.abc import Callable
from typing import Any

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION as V2
from gpuagent.domain.sharing.mode import GPU_COUNT, GROUP_ANNOTATION
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.decision_audit import audit_decisions
from tests.e2e.agent.podannotations import MERGE, annotate, event, wait_written, written
from tests.e2e.amounts import older_kubelet_in_long
from tests.e2e.cluster import NODE_NAME, pod_manifest

MEM, GPU = "aliyun.com/gpu-mem", "aliyun.com/gpu"
INDEX, UNITS, GPU_UNITS, ASSUMED, ASSIGNED = (
    f"ALIYUN_COM_GPU_MEM_{part}" for part in ("IDX", "POD", "DEV", "ASSUME_TIME", "ASSIGNED")
)
LONG_AGO = "1700000000000000000"


def decided(gpu: int, units: int) -> dict[str, str]:
    """What the gpushare scheduler extender writes when it binds."""
    return {INDEX: str(gpu), UNITS: str(units), GPU_UNITS: "80", ASSIGNED: "false", ASSUMED: LONG_AGO}


@older_kubelet_in_long
def test_a_hand_shake_is_completed_and_a_pod_without_annotations_is_annotated(
    kubelet: str, make_node: Callable[..., Node]
) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("decided", {MEM: 10}, annotations={**decided(0, 10), "theirs": "x"}))
    now = wait_written(node, "decided", {ASSIGNED: "true"})
    assert int(now[ASSUMED]) > int(LONG_AGO)
    assert (now["theirs"], V2 in now) == ("x", False)
    node.run(pod_manifest("silent", {MEM: 12}))
    wait_written(node, "silent", {ASSIGNED: "true", GPU_UNITS: "80"})
    audit_decisions(node, {})
    before = written(node.cluster.pod("silent"))
    node.restart_agent(node.agent.kill)
    node.run(pod_manifest("later", {MEM: 3}))
    wait_written(node, "later", {ASSIGNED: "true"})
    assert written(node.cluster.pod("silent")) == before


def test_what_somebody_writes_on_a_running_pod_is_put_right(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("forged", {MEM: 10}))
    full = wait_written(node, "forged", {ASSIGNED: "true"})
    annotate(node, "forged", {V2: '{"0":{"7":10}}', INDEX: "7"})
    wait_written(node, "forged", {V2: full[V2], INDEX: full[INDEX]})
    assert "says" in event(node, "forged", "AnnotationCorrected")["message"]
    annotate(node, "forged", dict.fromkeys(full))
    now = wait_written(node, "forged", {key: text for key, text in full.items() if key != ASSUMED})
    assert int(now[ASSUMED]) > int(full[ASSUMED])


def test_whole_gpus_are_reported_in_mode_topology(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="topology")
    node.wait_amounts(gpu=8)
    node.run(pod_manifest("whole", {GPU: 2}))
    numbers = {gpu["uuid"]: gpu["minor"] for gpu in node.agent.status()["gpus"]}
    wait_written(
        node, "whole", {GROUP_ANNOTATION: ",".join(map(str, sorted(numbers[uuid] for uuid in node.gpus_of("whole"))))}
    )


def test_an_api_server_that_was_away_in_the_middle_gets_everything(make_node: Callable[..., Node]) -> None:
    """Pods are bound, the server goes, the agent is killed: whatever had come to run is told when it is back."""
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    names = [f"away-{n}" for n in range(6)]
    for n, name in enumerate(names):
        # Of different amounts: each is told from the others, and is on the GPU that was chosen for it.
        manifest = pod_manifest(name, {MEM: 2 + n}, annotations=decided(0, 2 + n) if n % 2 else {})
        if n == 0:
            node.run(manifest)
            continue
        node.pods.append(name)
        node.cluster.create_pod(manifest)
        time.sleep(0.15)  # the last ones are usually in the middle of it
    node.cluster.stop_apiserver()
    try:
        node.agent.kill()
        node.agent.start()
        node.agent.wait(lambda page: all(view["registered"] for view in page["resources"].values()))
    finally:
        node.cluster.start_apiserver()
    for name in names:
        node.cluster.wait_phase(name, "Running", "Failed")  # the latter if kubelet asked while there was no agent
    audit_decisions(node, {})


def test_the_api_server_compares_the_version_and_the_uid(make_node: Callable[..., Node]) -> None:
    """What every write of annotations relies on, and the stand-in of the API server imitates."""
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("p", {MEM: 1}))
    path, other = "/api/v1/namespaces/default/pods/p", "00000000-0000-0000-0000-000000000000"
    wait_written(node, "p", {ASSIGNED: "true"})
    seen = node.cluster.pod("p")["metadata"]
    annotate(node, "p", {"theirs": "x"})
    cases = (
        ({"uid": seen["uid"], "resourceVersion": seen["resourceVersion"]}, 409),
        ({"uid": other, "resourceVersion": seen["resourceVersion"]}, 409),
        ({"uid": other}, 422),
    )
    for named, wanted in cases:
        status, answer = node.cluster.api("PATCH", path, {"metadata": {**named, "annotations": {"a": "b"}}}, MERGE)
        assert status == wanted, answer
    gone = f"{path}-gone"
    body = {"metadata": {"uid": other, "resourceVersion": "1", "annotations": {"a": "b"}}}
    assert node.cluster.api("PATCH", gone, body, MERGE)[0] == 404
    assert "a" not in written(node.cluster.pod("p"))


@older_kubelet_in_long
def test_gpu_count_comes_back_whatever_resets_it(kubelet: str, make_node: Callable[..., Node]) -> None:
    """The annotation is removed; kubelet is killed; the Node is deleted, and kubelet creates it without the annotation."""
    node = make_node(mode="share")

    def right(found: dict[str, Any]) -> bool:
        return all(found["status"][side].get(GPU_COUNT) == "8" for side in ("capacity", "allocatable"))

    node.cluster.wait_node(right)
    path = f"/api/v1/nodes/{NODE_NAME}"
    for side in ("capacity", "allocatable"):
        node.cluster.client.expect("PATCH", f"{path}/status", {"status": {side: {GPU_COUNT: None}}}, MERGE)
        node.cluster.wait_node(right)
    node.cluster.kill_kubelet()
    node.cluster.start_kubelet()
    node.cluster.wait_node(right)
    labels = node.cluster.node()["metadata"]["labels"]
    node.cluster.stop_kubelet()
    node.cluster.client.expect("DELETE", path)
    node.cluster.start_kubelet()
    node.cluster.wait_node(right)
    node.cluster.label_node(labels)
    node.cluster.wait_node(lambda found: not found["spec"].get("taints"))
    node.wait_amounts(mem=640)
