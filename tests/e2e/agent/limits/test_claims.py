"""The share of a claim is the limit of its pod, as that of a pod with devices is."""

from collections.abc import Iterator

import pytest

from tests.e2e.agent.chart_classes import chart_classes
from tests.e2e.agent.conftest import Node, connect_pod_resources, running_node
from tests.e2e.agent.dra.claims import claiming, template, wait_published
from tests.e2e.agent.limits.attacks import GPU, Json, attack, mount_driver, share, wait_ready, wait_unused
from tests.e2e.agent.limits.helper import BOX, Helper
from tests.e2e.agent.podannotations import event
from tests.e2e.cluster import Cluster, container

CLAIM = {"claims": [{"name": "main"}]}


@pytest.fixture(scope="module")
def dra_node(
    pod_cgroups: Cluster, helper: Helper, rbac: None, device_nodes: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """The agent chooses the driver: there is no MPS, with which it would limit compute as well."""
    flags = ("--limits-socket", str(helper.socket))
    workdir = tmp_path_factory.mktemp("claims")
    with (
        chart_classes(pod_cgroups),
        connect_pod_resources() as pod_resources,
        running_node(pod_cgroups, pod_resources, workdir, BOX, "dra", flags) as node,
    ):
        wait_published(node)
        yield node


@pytest.fixture
def node(dra_node: Node, helper: Helper) -> Iterator[Node]:
    """With a template for as much as the other tests' pods have."""
    made = template("limited-4g", "gpu-isolated.gpuagent.io", memory="4Gi")
    dra_node.cluster.apply(made)
    yield dra_node
    dra_node.end(*dra_node.pods)
    wait_unused(helper)
    dra_node.cluster.api("DELETE", dra_node.cluster.client.path_of(made))


def claimed(name: str, helper: Helper, others: tuple[Json, ...] = ()) -> Json:
    manifest = claiming(name, "limited-4g", command=attack("plain"))
    manifest["spec"]["containers"] += others
    mount_driver(manifest, helper)
    return manifest


def test_a_pod_gets_what_it_has_claimed_and_no_more(node: Node, helper: Helper) -> None:
    node.run(claimed("claimed", helper))
    wait_ready(node, "claimed")
    assert helper.used(GPU) == share()


def test_two_containers_of_a_pod_share_what_it_has_claimed(node: Node, helper: Helper) -> None:
    second = container("second", {}, command=attack("plain")) | {"resources": CLAIM}
    if helper.backend == "misc":
        # The nearest cgroup alone is limited there, so nothing would bound both of them together.
        node.pods.append("both")
        node.cluster.create_pod(claimed("both", helper, (second,)))
        event(node, "both", "GPURefused", "give each container a share of its own")
        return
    node.run(claimed("both", helper, (second,)))
    for each in ("main", "second"):
        wait_ready(node, "both", each)
    assert helper.used(GPU) == share()
