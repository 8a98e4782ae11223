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
