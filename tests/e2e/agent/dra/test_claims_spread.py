"""Placement `spread` on nodes in mode `dra`: claims that come at once are spread over the GPUs."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import SLICE, SLICES, claiming, template, wait_published
from tests.e2e.cluster import Cluster


@pytest.fixture
def pairs(cluster: Cluster) -> Iterator[str]:
    """A template for a share on each of two GPUs."""
    manifest = template("pair-4g", "gpu-share.gpuagent.io", count=2, memory="4Gi")
    cluster.apply(manifest)
    yield "pair-4g"
    cluster.api("DELETE", cluster.client.path_of(manifest))


@pytest.fixture
def spread_node(make_node: Callable[..., Node], classes: None, no_claims: None) -> Node:
    node = make_node(mode="dra")
    node.wait_amounts()
    wait_published(node)
    node.label("dra", "spread")
    node.cluster.client.wait(SLICES, SLICE, lambda stored: _limits(stored) == {"1"})
    node.cluster.restart_scheduler()
    return node


def _limits(stored: dict[str, Any] | None) -> set[str]:
    """How many claims each GPU takes now."""
    devices = stored["spec"]["devices"] if stored else []
    return {device["capacity"]["sharers"]["value"] for device in devices}


@pytest.mark.parametrize(("count", "each"), [(16, 2), (64, 8)])
def test_claims_that_come_at_once_are_spread_evenly(
    spread_node: Node, count: int, each: int, record_property: Callable[[str, object], None]
) -> None:
    names = [f"share-{n}" for n in range(count)]
    spread_node.pods += names
    began = time.monotonic()
    for name in names:
        spread_node.cluster.create_pod(claiming(name, "share-4g"))
    created_s = time.monotonic() - began
    for name in names:
        spread_node.cluster.wait_phase(name, "Running")
    running_s = time.monotonic() - began
    record_property("created_s", round(created_s, 1))
    record_property("running_s", round(running_s, 1))
    print(f"{count} pods: created after {created_s:.1f} s, running after {running_s:.1f} s")

    shares = Counter(spread_node.gpus_of(name)[0] for name in names)
    assert sorted(shares.values()) == [each] * 8


def test_a_claim_of_two_gpus_finds_them_on_an_uneven_node(spread_node: Node, pairs: str) -> None:
    """Seven GPUs have a share, and the eighth has none: the level alone would let claims on that one only."""
    for n in range(7):
        spread_node.run(claiming(f"share-{n}", "share-4g"))
    spread_node.run(claiming("pair", pairs))
    assert len({*spread_node.gpus_of("pair")}) == 2
