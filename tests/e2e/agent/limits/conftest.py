"""A node whose driver limits the memory of pods, and attackers on it."""

from collections.abc import Iterator

import pytest

from gpuagent.simulation import boxes
from tests.e2e.agent import kept_agent
from tests.e2e.agent.conftest import Node, connect_pod_resources, running_node
from tests.e2e.agent.limits.helper import BOX, Helper
from tests.e2e.cluster import Cluster


@pytest.fixture(scope="package")
def pod_cgroups(cluster: Cluster) -> Iterator[Cluster]:
    """Kubelet makes a control group for each pod."""
    kept_agent.end()
    _restart_kubelet(cluster, pod_cgroups=True)
    yield cluster
    _restart_kubelet(cluster, pod_cgroups=False)


def _restart_kubelet(cluster: Cluster, *, pod_cgroups: bool) -> None:
    """With this setting, and without the containers of before.

    Those of a pod that was deleted by force may still be there. Kubelet would look for them in other control groups.
    """
    cluster.stop_kubelet()
    cluster.remove_containers()
    cluster.start_kubelet(pod_cgroups=pod_cgroups)


@pytest.fixture(params=["dmem", "misc"], scope="module")
def helper(request: pytest.FixtureRequest, pod_cgroups: Cluster) -> Iterator[Helper]:
    """The helper on a driver with each of the two ways of accounting."""
    with Helper(pod_cgroups, str(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def limited_node(
    pod_cgroups: Cluster, helper: Helper, rbac: None, device_nodes: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """Mode cgpu, with the limits of NVIDIA's driver."""
    flags = ("--isolation", "limits", "--limits-socket", str(helper.socket))
    workdir = tmp_path_factory.mktemp("limits")
    with (
        connect_pod_resources() as pod_resources,
        running_node(pod_cgroups, pod_resources, workdir, BOX, "cgpu", flags) as node,
    ):
        node.wait_amounts(mem=len(boxes.load(BOX).gpus) * 80)
        yield node
