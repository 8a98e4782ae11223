"""The chart's policy of memory limits on the real API server: no author of a pod chooses a container's own limit."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from manifests.render import CHART
from tests.e2e.chart.agents import MERGE
from tests.e2e.chart.release import HELM
from tests.e2e.cluster import WAIT_S, Cluster, pod_manifest

Json = dict[str, Any]

NAME = "gpu-memory-limits"
PODS = "/api/v1/namespaces/default/pods"
SHARE = {"aliyun.com/gpu-mem": 4}
FORGED = ("NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST")
# No node: what the API server takes is never run.
NOWHERE = {"nodeSelector": {"example.com/nowhere": "true"}}


def policy(*, claims: bool) -> list[Json]:
    """What the chart installs, with mode dra or without it."""
    command = [str(HELM), "template", "gpuagent", str(CHART), "--namespace=kube-system", "--kube-version=1.36"]
    command += ["--set=image.repository=none,limits.enabled=true", f"--set=dra.enabled={str(claims).lower()}"]
    command += ["--show-only=templates/limits-policy.yaml"]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout
    return [document for document in yaml.safe_load_all(rendered) if document]


@contextmanager
def in_force(cluster: Cluster, *, claims: bool = False) -> Iterator[None]:
    objects = policy(claims=claims)
    for manifest in objects:
        cluster.apply(manifest)
    seen = cluster.client.wait(
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        NAME,
        lambda policy: "typeChecking" in (policy or {}).get("status", {}),
    )
    assert (seen or {})["status"]["typeChecking"] == {}
    wait_for_answer(cluster, refused=True)
    try:
        yield
    finally:
        for manifest in reversed(objects):
            cluster.api("DELETE", cluster.client.path_of(manifest))
        wait_for_answer(cluster, refused=False)
        for pod in cluster.api("GET", PODS)[1]["items"]:
            cluster.api("DELETE", f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})


def wait_for_answer(cluster: Cluster, *, refused: bool) -> None:
    """Until the API server goes by the policy, or no longer does."""
    deadline = time.monotonic() + WAIT_S
    wanted = 422 if refused else 201
    while (answer := create(cluster, pod("probe", forged={FORGED[0]: "1"}), dry_run=True))[0] != wanted:
        assert time.monotonic() < deadline, f"the policy is {'not' if refused else 'still'} in force: {answer}"
        time.sleep(0.1)


def pod(
    name: str,
    limits: dict[str, int] | None = None,
    forged: dict[str, str] | None = None,
    place: str = "main",
) -> Json:
    """A pod with a share, and with these variables in one of its containers: main, init or sidecar."""
    made = pod_manifest(name, SHARE if limits is None else limits)
    spec = made["spec"]
    spec |= NOWHERE
    spec["initContainers"] = [{"name": "init", "image": "none"}]
    spec["containers"].append({"name": "sidecar", "image": "none"})
    for container in (*spec["initContainers"], *spec["containers"]):
        if container["name"] == place:
            container["env"] = environment(forged or {})
    return dict(made)


def environment(variables: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def create(cluster: Cluster, manifest: Json, *, dry_run: bool = False) -> tuple[int, str]:
    status, answer = cluster.api("POST", f"{PODS}?dryRun=All" if dry_run else PODS, manifest)
    return status, str(answer.get("message", ""))


def add_ephemeral(cluster: Cluster, name: str, variables: dict[str, str]) -> tuple[int, str]:
    """As `kubectl debug` does it."""
    container = {"name": "debug", "image": "none", "env": environment(variables)}
    body = {"spec": {"ephemeralContainers": [container]}}
    strategic = "application/strategic-merge-patch+json"
    status, answer = cluster.api("PATCH", f"{PODS}/{name}/ephemeralcontainers", body, strategic)
    return status, str(answer.get("message", ""))


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("place", ["main", "init", "sidecar"])
def test_no_container_of_a_pod_with_a_share_names_its_own_limit(cluster: Cluster, name: str, place: str) -> None:
    with in_force(cluster):
        status, message = create(cluster, pod("p", forged={name: "40000"}, place=place))
        assert (status, "remove them from env" in message) == (422, True), message


def test_a_debugging_container_names_no_limit_either(cluster: Cluster) -> None:
    with in_force(cluster):
        assert create(cluster, pod("p"))[0] == 201
        status, message = add_ephemeral(cluster, "p", {FORGED[0]: "40000"})
        assert (status, "remove them from env" in message) == (422, True), message
        assert add_ephemeral(cluster, "p", {"MINE": "1"})[0] == 200


def test_pods_from_before_the_policy_can_be_debugged_and_changed(cluster: Cluster) -> None:
    assert create(cluster, pod("old", forged={FORGED[0]: "1"}))[0] == 201
    with in_force(cluster):
        label = {"metadata": {"labels": {"mine": "1"}}}
        assert cluster.api("PATCH", f"{PODS}/old", label, MERGE)[0] == 200
        assert add_ephemeral(cluster, "old", {"MINE": "1"})[0] == 200


@pytest.mark.parametrize("resource", ["aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu"])
def test_it_concerns_every_resource_of_the_agents_and_nobody_else(cluster: Cluster, resource: str) -> None:
    with in_force(cluster):
        assert create(cluster, pod("p", {resource: 1}, {FORGED[0]: "1"}))[0] == 422
        assert create(cluster, pod("q", {resource: 1}, {"NVIDIA_GPU_MEMORY": "1"}))[0] == 201
        # Other device plugins have a use for these variables.
        assert create(cluster, pod("r", {"example.com/gpu": 1}, {FORGED[0]: "1"}))[0] == 201
        assert create(cluster, pod("s", {}, {FORGED[0]: "1"}))[0] == 201


@pytest.mark.parametrize("claims", [False, True])
def test_pods_with_claims_are_held_to_it_in_mode_dra(cluster: Cluster, claims: bool) -> None:
    with in_force(cluster, claims=claims):
        manifest = pod("p", {}, {FORGED[0]: "1"})
        manifest["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu"}]
        assert create(cluster, manifest)[0] == (422 if claims else 201)
