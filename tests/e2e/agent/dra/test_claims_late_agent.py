"""The agent comes after kubelet has tried: pods with claims run soon, and not after kubelet's 60 to 90 s."""

import time
from typing import Any

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import (
    CDI_DIR,
    PODS,
    PREPARED_AGAIN,
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

TURNS = 5


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


def test_pods_that_came_while_the_agent_was_away_are_prepared_again(node: Node) -> None:
    """Without a change of the pod, kubelet tries again 60 to 90 s after it has failed.

    Now and then it tries all pods of a turn again by itself, before the agent does it. Therefore there are some turns.
    """
    logged = len(node.agent.log_text())
    for turn in range(TURNS):
        node.agent.stop()
        names = [f"early-{turn}-{number}" for number in range(3)]
        for name in names:
            node.pods.append(name)
            node.cluster.create_pod(claiming(name, "share-8g"))
        failed(node.cluster, 3)
        node.agent.start()
        node.agent.wait_ready()
        print(f"the longest wait for a claim was {wait_prepared(node):.1f} s")
        for name in names:
            node.cluster.wait_phase(name, "Running")
        audit_claims(node)
        audit_files(node)
        if PREPARED_AGAIN in node.agent.log_text()[logged:]:
            break
        node.end(*names)
        wait_files(node, 0)
    assert PREPARED_AGAIN in node.agent.log_text()[logged:]


def test_after_a_reboot_pods_run_when_the_agent_has_come(node: Node) -> None:
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
    end = time.monotonic() + WAIT_S
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


def test_pods_that_were_deleted_while_the_agent_was_away_end_when_it_is_back(node: Node) -> None:
    """Kubelet has failed to unprepare their claims."""
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
        node.cluster.wait_pod_gone(name)
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
