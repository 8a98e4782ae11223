"""The agent lives on from case to case, as on a node; a scheduler is new in each."""

from collections.abc import Iterator

import pytest

from tests.e2e.agent.conftest import Node, connect_pod_resources, running_node
from tests.e2e.agent.decision_audit import audit_decisions
from tests.e2e.agent.schedulers.cases import AGENTS, make_scheduler
from tests.e2e.agent.share_scheduler import ShareScheduler
from tests.e2e.cluster import Cluster


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    rbac: None,
    device_nodes: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    """The agent of that name."""
    mode, flags, _ = AGENTS[request.param]
    workdir = tmp_path_factory.mktemp("agent")
    with (
        connect_pod_resources() as pod_resources,
        running_node(cluster, pod_resources, workdir, "dgx-a100", mode, flags) as node,
    ):
        yield node


@pytest.fixture
def node(request: pytest.FixtureRequest, shared: Node) -> Iterator[Node]:
    _, _, amounts = AGENTS[request.node.callspec.params["shared"]]
    shared.wait_amounts(**amounts)  # kubelet may have restarted since, and refuses pods until it has read the lists
    yield shared
    shared.end(*shared.pods)


@pytest.fixture
def scheduler(node: Node) -> Iterator[ShareScheduler]:
    """At the end of the test its pods are audited."""
    used = make_scheduler(node)
    yield used
    audit_decisions(node, used.decided)
