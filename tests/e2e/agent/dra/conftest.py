"""A node in mode `dra`, with the classes and templates of the tests."""

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import CLASSES, SLICE, SLICES, device_class, template
from tests.e2e.cluster import Cluster


@pytest.fixture
def classes(cluster: Cluster) -> Iterator[None]:
    manifests = [
        *map(device_class, CLASSES),
        template("share-8g", "gpu-share.gpuagent.io", memory="8Gi"),
        template("share-4g", "gpu-share.gpuagent.io", memory="4Gi"),
        template("two", "gpu.gpuagent.io", count=2),
    ]
    for manifest in manifests:
        cluster.apply(manifest)
    yield
    for manifest in manifests:
        cluster.api("DELETE", cluster.client.path_of(manifest))


@pytest.fixture
def node(make_node: Callable[..., Node], classes: None) -> Node:
    made = make_node(mode="dra")
    made.wait_amounts()
    made.cluster.client.wait(SLICES, SLICE, bool, 30)
    return made
