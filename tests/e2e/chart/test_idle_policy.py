"""With `idlePolicy`, an agent may evict pods where their namespace says so, on the real API server, and nowhere else."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpuagent.domain.usage.idle_policy import WHEN_IDLE_LABEL
from tests.e2e.chart.agents import MERGE, OTHER, Agents, two_agents
from tests.e2e.cluster import WAIT_S, Cluster, pod_manifest

NAMESPACE = "/api/v1/namespaces/default"
POD = f"{NAMESPACE}/pods/idle"
OTHER_UID = "00000000-0000-0000-0000-000000000000"
CONFLICT = 409


@pytest.fixture(scope="module")
def agents(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with two_agents(cluster, tmp_path_factory.mktemp("idle"), idlePolicy=True) as tokens:
        yield tokens


@pytest.fixture
def idle(cluster: Cluster, agents: Agents) -> Iterator[dict[str, Any]]:
    """A pod of a node that has no kubelet."""
    yield cluster.create_pod(pod_manifest("idle", {}, node=OTHER))
    cluster.api("DELETE", POD, {"gracePeriodSeconds": 0})
    label(cluster, None)


def label(cluster: Cluster, value: str | None) -> None:
    cluster.client.expect("PATCH", NAMESPACE, {"metadata": {"labels": {WHEN_IDLE_LABEL: value}}}, MERGE)


def evict(cluster: Cluster, token: str, uid: str) -> tuple[int, str]:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "idle", "namespace": "default"},
        "deleteOptions": {"preconditions": {"uid": uid}, "gracePeriodSeconds": 0},
    }
    status, answer = cluster.api("POST", f"{POD}/eviction", body, "application/json", token)
    return status, str(answer.get("message", ""))


def wait_in_force(cluster: Cluster, token: str) -> None:
    """Wait until the policy goes by the namespace's label. A pod with the name and another UID is not evicted.

    The API server's policies read namespaces from a cache.
    """
    deadline = time.monotonic() + WAIT_S
    while (answer := evict(cluster, token, OTHER_UID))[0] != CONFLICT:
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)


def test_the_api_server_finds_the_policy_well_typed(cluster: Cluster, agents: Agents) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    seen = cluster.client.wait(path, "gpuagent-pods", lambda one: "typeChecking" in (one or {}).get("status", {}))
    assert (seen or {})["status"]["typeChecking"] == {}


@pytest.mark.parametrize("value", [None, "report-after-2h", "never"])
def test_a_namespace_that_does_not_say_so_is_safe(
    cluster: Cluster, agents: Agents, idle: dict[str, Any], value: str | None
) -> None:
    label(cluster, value)
    status, message = evict(cluster, agents.ours, idle["metadata"]["uid"])
    assert status in (403, 422), message
    assert "evict them where their namespace says so" in message


def test_pods_of_a_namespace_that_says_so_are_evicted_by_uid_and_not_deleted(
    cluster: Cluster, agents: Agents, idle: dict[str, Any]
) -> None:
    label(cluster, "evict-after-2h")
    wait_in_force(cluster, agents.ours)
    status, answer = cluster.api("DELETE", POD, {}, "application/json", agents.ours)
    assert status in (403, 422), answer
    status, message = evict(cluster, agents.ours, idle["metadata"]["uid"])
    assert status == 201, message
