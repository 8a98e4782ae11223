"""The agent as a real pod from the real chart: what it may, what it serves, and what changes to it cost."""

from typing import Any

from tests.e2e.agent.conftest import MODE, Node
from tests.e2e.cluster import pod_manifest

MEM = "aliyun.com/gpu-mem"


def story(node: Node, *pods: str) -> dict[str, Any]:
    """What must stay as it is while the agent changes: processes, starts, and what kubelet's allocations show."""
    held = {str(h.owner): sorted(h.ids) for h in node.audit()}
    return {
        pod: (
            node.cluster.container(pod),
            node.cluster.pod(pod)["status"]["containerStatuses"][0]["state"],
            node.cluster.pod(pod)["status"]["containerStatuses"][0]["restartCount"],
            held[f"default/{pod}[main]"],
        )
        for pod in pods
    }


def test_the_agent_serves_pods_from_an_unprivileged_container(chart_node: Node) -> None:
    node = chart_node
    node.run(pod_manifest("web", {MEM: 8}))
    assert len(node.gpus_of("web")) == 1
    release: Any = node.agent
    pod = release.pod()
    assert pod["spec"]["priorityClassName"] == "system-node-critical"
    process = release.cluster.container(pod["metadata"]["name"], "gpuagent", release.namespace)
    with open(f"/proc/{process.pid}/status") as file:
        status = dict(line.rstrip().split(":\t", 1) for line in file if ":\t" in line)
    assert {status[kind] for kind in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert release.cluster.execute(
        pod["metadata"]["name"], "python3", "-c", "open('/x', 'w')", container="gpuagent", namespace=release.namespace
    ).returncode


def test_the_agent_comes_back_after_kubelet_has_made_its_sockets_anew(chart_node: Node) -> None:
    node = chart_node
    node.run(pod_manifest("before", {MEM: 8}))
    before = story(node, "before")
    node.cluster.restart_kubelet()
    node.wait_amounts(mem=640)
    node.run(pod_manifest("after", {MEM: 8}))
    assert story(node, "before") == before


def test_an_upgrade_and_a_rollback_leave_running_pods_alone(chart_node: Node) -> None:
    node = chart_node
    release: Any = node.agent
    first_revision = release.revision
    node.run(pod_manifest("one", {MEM: 8}))
    node.run(pod_manifest("two", {MEM: 80}))
    before, first = story(node, "one", "two"), release.pod()["metadata"]["uid"]

    release.upgrade(settings={"max-pods-per-gpu": 7, "log-level": "info"})
    second = release.pod()["metadata"]["uid"]
    assert second != first
    node.wait_amounts(mem=640)
    node.run(pod_manifest("three", {MEM: 4}))
    assert story(node, "one", "two") == before

    release.rollback(first_revision)
    assert release.pod()["metadata"]["uid"] != second
    node.wait_amounts(mem=640)
    node.run(pod_manifest("four", {MEM: 4}))
    assert story(node, "one", "two") == before
    assert node.agent.status()["mode"] == "share"


def test_an_upgrade_that_changes_nothing_of_the_pod_replaces_none(chart_node: Node) -> None:
    release: Any = chart_node.agent
    first_revision = release.revision
    before = release.pod()["metadata"]["uid"]
    release.upgrade(metrics={"podMonitor": {"interval": "30s"}}, rbac={"configMaps": False})
    assert release.pod()["metadata"]["uid"] == before
    release.rollback(first_revision)


def test_removing_the_label_changes_nothing_and_the_agent_stays(chart_node: Node) -> None:
    node = chart_node
    node.cluster.wait_node(lambda found: "aliyun.accelerator/nvidia_count" in found["metadata"]["labels"])
    before: Any = node.agent
    uid = before.pod()["metadata"]["uid"]
    node.label(None)
    node.agent.wait(lambda page: page["label"][MODE] is None)
    node.run(pod_manifest("later", {MEM: 8}))
    assert before.pod()["metadata"]["uid"] == uid
    # A new pod of the agent's knows the mode, too.
    node.cluster.delete_pod(before.pod()["metadata"]["name"], grace=1, namespace=before.namespace)
    before.wait_rolled_out()
    node.wait_amounts(mem=640)
    # The controller may have told of the deleted pod until now: the new one need not be there yet.
    node.agent.wait(lambda page: page["mode"] == "share")
