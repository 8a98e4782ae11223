"""A release of the chart for each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gpuagent.kubelet.pod_resources import PodResources
from tests.e2e.agent.conftest import MODE, PLACEMENT, Node, connect_pod_resources
from tests.e2e.chart.agents import Agents, two_agents
from tests.e2e.chart.release import Release
from tests.e2e.cluster import Cluster


@pytest.fixture
def pod_resources() -> Iterator[PodResources]:
    with connect_pod_resources() as client:
        yield client


@pytest.fixture
def release(cluster: Cluster, agent_image: str, tmp_path: Path) -> Iterator[Callable[..., Release]]:
    """Makes releases, none installed; all are gone when the test is over."""
    numbers = count()
    with ExitStack() as made:

        def make(box: str = "dgx-a100", namespace: str = "kube-system") -> Release:
            workdir = tmp_path / f"release-{next(numbers)}"
            workdir.mkdir()
            one = Release(cluster, workdir, box, namespace)

            def end() -> None:
                if one.removable:
                    one.uninstall()
                    one.wait_no_pod()

            made.callback(end)
            return one

        yield make


@pytest.fixture(scope="module")
def installed_once(cluster: Cluster, agent_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The chart in mode share, for all tests of a module; they use `chart_node`."""
    cluster.label_node({MODE: "share", PLACEMENT: None})
    release: Any = Release(cluster, tmp_path_factory.mktemp("release"))
    with connect_pod_resources() as pod_resources:
        try:
            yield Node(cluster, pod_resources, release.install())
        finally:
            release.uninstall()
            release.wait_no_pod()


@pytest.fixture
def chart_node(installed_once: Node) -> Iterator[Node]:
    """The node with the module's release on it; at the end an audit, and no pod is left."""
    installed_once.label("share")
    installed_once.wait_amounts(mem=640)
    yield installed_once
    try:
        installed_once.audit()
    finally:
        installed_once.end(*installed_once.pods)


@pytest.fixture
def installed(
    cluster: Cluster, pod_resources: PodResources, release: Callable[..., Release]
) -> Iterator[Callable[..., Node]]:
    """Labels the node, installs the chart; at the end an audit, and no pod is left."""
    with ExitStack() as made:

        def make(mode: str | None = "share", **values: object) -> Node:
            cluster.label_node({MODE: mode, PLACEMENT: None})
            one: Any = release().install(**values)
            node = Node(cluster, pod_resources, one)
            made.callback(lambda: node.end(*node.pods))
            made.callback(node.audit)
            return node

        yield make


@pytest.fixture(scope="module")
def agents(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with two_agents(cluster, tmp_path_factory.mktemp("policies")) as tokens:
        yield tokens
