"""The chart grants what the agent uses: not less, and nothing else."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gpuagent.domain.reconcile.slice_writes import slice_name
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION
from tests.e2e.agent.conftest import Node
from tests.e2e.chart.agents import token
from tests.e2e.cluster import NODE_NAME, WAIT_S, Cluster, pod_manifest
from tests.e2e.stolen_token import tries

AGENT = "system:serviceaccount:kube-system:gpuagent"
SLICES, SLICE = "/apis/resource.k8s.io/v1/resourceslices", slice_name(NODE_NAME)
EXAMPLES = Path(__file__).parents[3] / "examples"
MAPS = "/api/v1/namespaces/kube-system/configmaps"
PATCH_PODS = ("pods", "patch")
"""Has its own tests, in which pods are annotated."""


def granted(node: Node) -> set[tuple[str, str]]:
    base = "/apis/rbac.authorization.k8s.io/v1"
    roles = [
        node.cluster.client.expect("GET", f"{base}/clusterroles/gpuagent"),
        node.cluster.client.expect("GET", f"{base}/namespaces/kube-system/roles/gpuagent"),
    ]
    return {
        (resource, verb)
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(node: Node, since: int) -> tuple[set[tuple[str, str]], list[Any]]:
    """Resource and verb of what was asked for, and what was refused."""
    calls, refused = set(), []
    for event in node.cluster.audit.events(since):
        if event["user"]["username"] == AGENT and "objectRef" in event:
            about = event["objectRef"]
            calls.add(("/".join(filter(None, (about["resource"], about.get("subresource")))), event["verb"]))
            if event.get("responseStatus", {}).get("code") in (401, 403, 422):
                refused.append((event["verb"], event["requestURI"], event["responseStatus"]))
    return calls, refused


def test_the_agent_uses_exactly_the_rights_for_claims_that_it_has(
    cluster: Cluster, installed: Callable[..., Node]
) -> None:
    """And an unprivileged container serves claims: it has every directory that it needs."""
    since = cluster.audit.position()
    node = installed("share", settings={"simulate": "dgx-a100"})
    node.wait_amounts(mem=640)
    release: Any = node.agent
    before = granted(node)
    release.upgrade(dra={"enabled": True})
    rights = granted(node) - before
    assert {resource for resource, _ in rights} == {"namespaces", "resourceclaims", "resourceslices"}
    node.switch("dra")
    cluster.client.wait(SLICES, SLICE, bool)
    example = EXAMPLES / "claims" / "share.yaml"
    template, pod = yaml.safe_load_all(example.read_text())
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    # Of such a claim, the agent reads whose namespace it is in.
    request["exactly"]["tolerations"] = [{"key": "gpu.gpuagent.io/fenced", "operator": "Exists"}]
    pod["spec"]["hostNetwork"] = True  # the cluster has no network for pods
    cluster.apply(template)
    try:
        node.run(pod)
        assert len(node.gpus_of(pod["metadata"]["name"])) == 1
        node.end(pod["metadata"]["name"])
    finally:
        cluster.api("DELETE", cluster.client.path_of(template))
    node.switch("share", mem=640)
    cluster.client.wait(SLICES, SLICE, lambda found: found is None)
    of_claims = {resource for resource, _ in rights}

    def used_of_claims() -> set[tuple[str, str]]:
        return {call for call in used(node, since)[0] if call[0] in of_claims}

    # The API server writes down a request after it has answered it.
    deadline = time.monotonic() + WAIT_S
    while used_of_claims() != rights and time.monotonic() < deadline:
        time.sleep(0.1)
    assert used(node, since)[1] == []
    assert used_of_claims() == rights


def test_the_agent_uses_exactly_the_rights_it_has(cluster: Cluster, installed: Callable[..., Node]) -> None:
    since = cluster.audit.position()
    node = installed("topology", settings={"simulate": "dgx1-v100", "settle": 0.2})
    wait = node.cluster.client.wait
    node.wait_amounts(gpu=8)
    release: Any = node.agent
    wait(MAPS, f"{NODE_NAME}-gputopo-report", lambda found: found is not None)
    release.inject(fault="xid", gpu=5, code=79)
    wait(MAPS, f"unhealthy-gpu-{NODE_NAME}", lambda found: found is not None)
    node.switch("share", mem=7 * 16)
    cluster.wait_node(lambda found: '"gpus":[[0,16,' in found["metadata"]["annotations"].get(NODE_GPUS_ANNOTATION, ""))
    wait(MAPS, f"{NODE_NAME}-gputopo-report", lambda found: found is None)
    wanted = granted(node) - {PATCH_PODS}
    deadline = time.monotonic() + WAIT_S
    while used(node, since)[0] != wanted and time.monotonic() < deadline:
        release.inject(fault="xid", gpu=1, code=13)  # an application's: the same Event again is counted on the first
        time.sleep(0.5)
    calls, refused = used(node, since)
    assert refused == []
    assert calls == wanted
    cluster.api("DELETE", f"{MAPS}/unhealthy-gpu-{NODE_NAME}")


@tries(
    "It can read all nodes and pods of the cluster, and by name all namespaces, ResourceClaims and the ConfigMaps of `kube-system`.",
    "It cannot read Secrets.",
)
def test_a_stolen_token_reads_what_the_page_says(cluster: Cluster, installed: Callable[..., Node]) -> None:
    """With the chart's rights alone. An object that is not there is 404 to whom may read it."""
    node = installed("share", settings={"simulate": "dgx-a100"}, dra={"enabled": True})
    release: Any = node.agent
    stolen = token(cluster, release.pod())

    def status(path: str, method: str = "GET", body: dict[str, Any] | None = None) -> int:
        return cluster.api(method, path, body, token=stolen)[0]

    claims, secrets = (
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
        "/api/v1/namespaces/kube-system/secrets",
    )
    assert [status(path) for path in ("/api/v1/pods", "/api/v1/nodes")] == [200, 200]
    assert [status(f"/api/v1/namespaces{name}") for name in ("/default", "")] == [200, 403]
    assert [status(f"{path}/none") for path in (claims, MAPS)] == [404, 404]
    assert [status(path) for path in (secrets, f"{secrets}/none", "/api/v1/secrets")] == [403, 403, 403]
    assert status("/api/v1/namespaces/default/pods", "POST", pod_manifest("made", {})) == 403
