"""What kubelet 1.35 does with prepared claims: requests, status, its own records, restarts."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuagent.kubelet.dra.kubelet_claims import claims_of_kubelet
from tests.e2e.agent.chart_classes import chart_classes
from tests.e2e.agent.conftest import KUBELET_DIR, Node
from tests.e2e.agent.dra.claims import CLAIMS, claiming, devices, of, wait_files, wait_published
from tests.e2e.agent.dra.feature_gates import EVERY, HEALTH, NAMED, Gates, applied
from tests.e2e.agent.dra.test_claims_health import index_of, shown
from tests.e2e.cluster import Cluster, pod_manifest

Json = dict[str, Any]
WHOLE = "gpu.gpuagent.io"
GPU = "aliyun.com/gpu"


@pytest.fixture(scope="module", params=[Gates("1.35", frozenset()), Gates("1.35", EVERY)], ids=str)
def gates(request: pytest.FixtureRequest, cluster: Cluster, kubelet_1_35: None) -> Iterator[Gates]:
    with applied(cluster, request.param) as case:
        yield case


@pytest.fixture
def templates(cluster: Cluster) -> Iterator[None]:
    """One for a GPU, and one with two requests for a GPU each."""
    two = {"devices": {"requests": [{"name": name, "exactly": {"deviceClassName": WHOLE}} for name in ("a", "b")]}}
    manifests = [
        of("ResourceClaimTemplate", "one", {"spec": devices(WHOLE)}, "default"),
        of("ResourceClaimTemplate", "two", {"spec": two}, "default"),
    ]
    for manifest in manifests:
        cluster.apply(manifest)
    yield
    for manifest in manifests:
        cluster.api("DELETE", cluster.client.path_of(manifest))


@pytest.fixture
def node(
    make_node: Callable[..., Node], gates: Gates, cluster: Cluster, templates: None, no_claims: None
) -> Iterator[Node]:
    with chart_classes(cluster, extendedResource=GPU):
        made = make_node(mode="dra", flags=("--settle", "1"))
        made.wait_amounts()
        wait_published(made)
        yield made


def splitting(name: str) -> Json:
    """A pod of three containers. One uses the first request of its claim, one the second, and one both."""
    manifest = claiming(name, "two")
    (first,) = manifest["spec"]["containers"]
    uses: dict[str, Json] = {"main": {"request": "a"}, "side": {"request": "b"}, "all": {}}
    manifest["spec"]["containers"] = [
        {**first, "name": container, "resources": {"claims": [{"name": "main", **use}]}}
        for container, use in uses.items()
    ]
    return manifest


def test_containers_have_their_requests_and_the_pod_seems_to_run(node: Node, gates: Gates) -> None:
    """This kubelet shows all devices of a claim for each container that uses a part of it."""
    pod = node.run(splitting("split"))
    (first,), (second,) = node.gpus_of("split"), node.gpus_of("split", "side")
    assert first != second
    assert {*node.gpus_of("split", "all")} == {first, second}
    if HEALTH not in gates.on:
        assert not shown(pod)
        return

    def healths(stored: Json) -> list[str]:
        return sorted(health for health, _ in shown(stored).values())

    # The third is what the container has that uses the whole claim.
    node.cluster.wait_pod("split", lambda stored: healths(stored) == ["Healthy"] * 3)
    node.agent.inject(fault="lose", gpu=index_of(node, first))
    node.cluster.wait_pod("split", lambda stored: healths(stored) == ["Healthy", "Healthy", "Unhealthy"])


def test_claims_outlive_restarts_of_kubelet_and_agent(node: Node) -> None:
    node.run(claiming("held", "one"))
    held = node.gpus_of("held")
    (claim,) = node.cluster.client.expect("GET", CLAIMS)["items"]
    assert claims_of_kubelet(KUBELET_DIR) == frozenset([claim["metadata"]["uid"]])
    node.agent.kill()
    node.cluster.restart_kubelet()
    node.agent.start()
    node.wait_counted()
    node.run(claiming("next", "one"))
    assert node.gpus_of("held") == held != node.gpus_of("next")

    def names_both(page: Json) -> bool:
        pods = {container["container"] for gpu in page["gpus"] for container in gpu["containers"]}
        return pods == {"default/held[main]", "default/next[main]"}

    node.agent.wait(names_both)
    wait_files(node, 2)
    node.agent.kill()
    node.cluster.delete_pod("held", grace=1, timeout=0)
    node.agent.start()
    node.cluster.wait_pod_gone("held")
    node.pods.remove("held")
    wait_files(node, 1)


def test_limits_get_gpus_by_a_claim_if_kubelet_has_the_gate_too(node: Node, gates: Gates) -> None:
    if NAMED in gates.on:
        node.run(pod_manifest("named", {GPU: 2}))
        assert len({*node.gpus_of("named")}) == 2
        node.end("named")
        wait_files(node, 0)
        return
    node.pods.append("waits")
    node.cluster.create_pod(pod_manifest("waits", {GPU: 2}))
    node.cluster.wait_pod("waits", is_unschedulable)


def is_unschedulable(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(condition.get("reason") == "Unschedulable" for condition in conditions)
