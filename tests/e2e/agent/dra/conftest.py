"""A node in mode `dra`, with the classes and templates of the tests."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.agent.chart_classes import chart_classes
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import CDI_DIR, CLAIMS, files, label_default, template, wait_published
from tests.e2e.cluster import WAIT_S, Cluster


@pytest.fixture(scope="module")
def kubelet_1_35(cluster: Cluster) -> Iterator[None]:
    """Tests of the file may restart kubelet in that version. The cluster's own comes back after the last of them."""
    own = cluster.kubelet_version
    yield
    cluster.restart_kubelet(own, feature_gates=())


@pytest.fixture
def no_cdi_files() -> None:
    """None of a test that failed, or of a run that was ended: tests count them."""
    for path in files(CDI_DIR):
        path.unlink(missing_ok=True)


@pytest.fixture
def classes(cluster: Cluster, no_cdi_files: None) -> Iterator[None]:
    """The chart's classes, and templates."""
    manifests = [
        template("share-8g", "gpu-share.gpuagent.io", memory="8Gi"),
        template("share-4g", "gpu-share.gpuagent.io", memory="4Gi"),
        template("two", "gpu.gpuagent.io", count=2),
    ]
    with chart_classes(cluster):
        for manifest in manifests:
            cluster.apply(manifest)
        yield
        for manifest in manifests:
            cluster.api("DELETE", cluster.client.path_of(manifest))


@pytest.fixture
def no_claims(cluster: Cluster, no_cdi_files: None) -> None:
    """Wait until the controllers have deleted the claims of the test before: until then they count as allocated."""
    end = time.monotonic() + WAIT_S
    while claims := cluster.client.expect("GET", CLAIMS)["items"]:
        assert time.monotonic() < end, [claim["metadata"]["name"] for claim in claims]
        time.sleep(0.05)


@pytest.fixture
def node(make_node: Callable[..., Node], classes: None, no_claims: None) -> Node:
    made = make_node(mode="dra")
    made.wait_amounts()
    wait_published(made)
    return made


@pytest.fixture
def of_administrators(cluster: Cluster) -> Iterator[None]:
    """The namespace `default` is one that may have claims with `adminAccess`."""
    label_default(cluster, "true")
    yield
    label_default(cluster, None)
