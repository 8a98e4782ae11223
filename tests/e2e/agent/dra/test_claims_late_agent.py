"""The agent comes after kubelet has tried: pods with claims run soon, and not after kubelet's 60 to 90 s."""

import time
from typing import Any

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import (
    CDI_DIR,
    PODS,
    RETRIED_S,
    SLICE,
    SLICES,
    audit_claims,
    audit_files,
    claiming,
    files,
    wait_files,
    wait_prepared,
)
from tests.e2e.cluster import WAIT_S, Cluster
from tests.e2e.cluster.runtime import containers


def failed(cluster: Cluster, pods: int) -> None:
    """Wait until kubelet has failed to prepare the claims of so many pods."""
    end = time.monotonic() + WAIT_S
    while len(failures(cluster)) < pods:
        assert time.monotonic() < end
        time.sleep(0.2)


def failures(cluster: Cluster) -> set[str]:
    """UIDs of the pods for which kubelet has failed to prepare the claims, of those that there are."""
    query = "/api/v1/namespaces/default/events?fieldSelector=reason%3DFailedPrepareDynamicResources"
    told = {one["involvedObject"]["uid"] for one in cluster.client.expect("GET", query)["items"]}
    return told & {one["metadata"]["uid"] for one in cluster.client.expect("GET", PODS)["items"]}


def test_pods_that_came_while_the_agent_was_away_run_soon_after(node: Node) -> None:
    node.agent.stop()
    for number in range(3):
        node.pods.append(f"early-{number}")
        node.cluster.create_pod(claiming(f"early-{number}", "share-8g"))
    failed(node.cluster, 3)
    node.agent.start()
    node.agent.wait_ready()
    wait_prepared(node)
    for number in range(3):
        node.cluster.wait_phase(f"early-{number}", "Running")
    audit_claims(node)
    audit_files(node)


def test_after_a_reboot_pods_run_soon_after_the_agent_has_come(node: Node) -> None:
    names = [f"pod-{number}" for number in range(5)]
    for name in names:
        node.run(claiming(name, "share-8g", restart_policy="Always"))
    held = [node.gpus_of(name) for name in names]
    former = {node.cluster.container(name).id for name in names}
    node.agent.stop()
    node.cluster.stop_kubelet()
    node.cluster.remove_containers()
    for path in files(CDI_DIR):
        path.unlink()
    node.cluster.start_kubelet()
    failed(node.cluster, len(names))
    node.agent.start()
    node.agent.wait_ready()
    end = time.monotonic() + RETRIED_S
    while len(files(CDI_DIR)) < len(names):
        assert time.monotonic() < end
        time.sleep(0.05)
    wait_prepared(node)
    node.cluster.client.wait(SLICES, SLICE, bool)
    for name in names:
        node.cluster.wait_pod(name, lambda pod: runs_again(pod, former))
    assert [node.gpus_of(name) for name in names] == held
    audit_claims(node)
    audit_files(node)


def test_pods_that_were_deleted_while_the_agent_was_away_end_soon_after(node: Node) -> None:
    """Kubelet has failed to unprepare their claims. It would try again 10 to 15 s later."""
    names = [f"pod-{number}" for number in range(3)]
    for name in names:
        node.run(claiming(name, "share-8g"))
    node.agent.kill()
    for name in names:
        node.cluster.delete_pod(name, grace=1, timeout=0)
    end = time.monotonic() + WAIT_S
    while any(container.pod in names and container.alive for container in containers()):
        assert time.monotonic() < end
        time.sleep(0.1)
    node.agent.start()
    node.agent.wait_ready()
    began = time.monotonic()
    for name in names:
        node.cluster.wait_pod_gone(name, timeout=RETRIED_S)
        node.pods.remove(name)
    print(f"gone {time.monotonic() - began:.1f} s after the agent was ready")
    wait_files(node, 0)


def runs_again(pod: dict[str, Any], former: set[str]) -> bool:
    """Whether it has a running container that was not there before.

    Phase and status stay over a reboot, until kubelet has told of it.
    """
    for container in pod["status"].get("containerStatuses", ()):
        _, _, identity = container.get("containerID", "").rpartition("://")
        if "running" in container["state"] and identity not in former:
            return True
    return False
