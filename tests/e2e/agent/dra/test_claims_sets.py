"""Sets of linked GPUs on a DGX-1: one device a claim, best links first, and no GPU is given twice."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuagent.kubelet.pod_resources import PodResources
from tests.e2e.agent.conftest import Node, running_node
from tests.e2e.agent.dra.claims import DRIVER, SLICE, SLICES, claiming, of, wait_files, wait_published
from tests.e2e.agent.dra.test_claims_health import wait_shown
from tests.e2e.cluster import Cluster

Json = dict[str, Any]
QUADS = ({0, 1, 2, 3}, {4, 5, 6, 7})
DOUBLE = ({0, 3}, {1, 2}, {2, 3}, {4, 7}, {5, 6}, {6, 7}, {0, 4}, {1, 5})
"""Pairs with two NVLinks."""
SHORT = {2: "pair", 4: "four", 8: "eight"}


@pytest.fixture
def node(make_node: Callable[..., Node], sets: None) -> Node:
    made = make_node("dgx1-v100", mode="dra", flags=("--gpu-sets", "--settle", "1"))
    wait_published(made)
    wait_slices(made, 5)
    return made


@pytest.fixture
def sets(cluster: Cluster, classes: None) -> Iterator[None]:
    manifests = [*(template_of(size) for size in SHORT), template_of(1)]
    for manifest in manifests:
        cluster.apply(manifest)
    yield
    for manifest in manifests:
        cluster.api("DELETE", cluster.client.path_of(manifest))


def union(*found: set[int]) -> set[int]:
    return {minor for one in found for minor in one}


def template_of(size: int) -> Json:
    """A template for a set of so many GPUs; for one, a whole GPU."""
    exactly: Json = {"deviceClassName": "gpu.gpuagent.io"}
    if size > 1:
        text = f'device.attributes["{DRIVER}"].gpus == {size}'
        exactly = {"deviceClassName": "gpu-set.gpuagent.io", "selectors": [{"cel": {"expression": text}}]}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return of("ResourceClaimTemplate", SHORT.get(size, "single"), {"spec": spec}, "default")


def wait_slices(node: Node, wanted: int) -> None:
    """Wait until the pool has so many slices, all of one generation."""

    def there(_: Json) -> bool:
        specs = [stored["spec"] for stored in node.cluster.client.expect("GET", SLICES)["items"]]
        pools = [spec["pool"] for spec in specs if spec["driver"] == DRIVER]
        return len(pools) == wanted and len({pool["generation"] for pool in pools}) == 1

    node.agent.wait(there)


def runs(node: Node, name: str, template: str) -> set[int]:
    """Run a pod; the minor numbers of its GPUs."""
    node.run(claiming(name, template))
    return minors(node, name)


def minors(node: Node, name: str) -> set[int]:
    by_uuid = {gpu["uuid"]: int(gpu["minor"]) for gpu in node.agent.status()["gpus"]}
    found = {by_uuid[uuid] for uuid in node.gpus_of(name)}
    assert {f"nvidia{minor}" for minor in found} <= set(node.cluster.container_devices(name))
    return found


def waits(node: Node, name: str, template: str) -> None:
    """Create a pod for which the scheduler finds no device."""
    node.pods.append(name)
    node.cluster.create_pod(claiming(name, template))
    node.cluster.wait_pod(name, lambda pod: any(one.get("reason") == "Unschedulable" for one in conditions(pod)))


def conditions(pod: Json) -> list[Json]:
    found: list[Json] = pod["status"].get("conditions", [])
    return found


def test_sets_and_single_gpus_come_from_one_box(node: Node) -> None:
    share = runs(node, "share", "share-8g")
    four = runs(node, "four", "four")
    assert four in QUADS
    assert not share & four
    pair = runs(node, "pair", "pair")
    assert pair in DOUBLE
    assert not pair & (share | four)
    assert runs(node, "again", "share-8g") == share, "the GPU that has room"
    rest = runs(node, "single", "single")
    assert [len(rest), rest & (share | four | pair)] == [1, set()]
    waits(node, "second", "pair")
    node.end("four")
    node.cluster.wait_phase("second", "Running")
    assert minors(node, "second") in [one for one in DOUBLE if one <= four]


def test_all_eight_wait_for_the_last_share(node: Node) -> None:
    runs(node, "share", "share-8g")
    waits(node, "eight", "eight")
    node.end("share")
    node.cluster.wait_phase("eight", "Running")
    assert minors(node, "eight") == set(range(8))
    waits(node, "single", "single")
    node.end("eight")
    node.cluster.wait_phase("single", "Running")


def test_the_order_follows_what_is_left(node: Node) -> None:
    singles = [runs(node, f"single-{n}", "single") for n in range(5)]
    assert len(union(*singles)) == 5
    quad = next(quad for quad in QUADS if singles[0] <= quad)
    assert union(*singles[:4]) == quad, "single GPUs leave a quad whole as long as they can"
    assert not singles[-1] <= quad
    assert runs(node, "pair", "pair") in [pair for pair in DOUBLE if not pair & union(*singles)]


def test_four_pairs_have_two_links_each(node: Node) -> None:
    pairs = [runs(node, f"pair-{n}", "pair") for n in range(4)]
    assert all(pair in DOUBLE for pair in pairs)
    assert union(*pairs) == set(range(8))


def test_kubelet_shows_the_health_of_a_set(node: Node) -> None:
    four = runs(node, "four", "four")
    wait_shown(node, "four", "Healthy")
    index = next(int(gpu["index"]) for gpu in node.agent.status()["gpus"] if gpu["minor"] == max(four))
    node.agent.inject(fault="lose", gpu=index)
    (message,) = wait_shown(node, "four", "Unhealthy")
    assert f"GPU {index} " in message
    assert not runs(node, "pair", "pair") & four
    node.agent.inject(fault="restore", gpu=index)
    wait_shown(node, "four", "Healthy")


def test_a_set_keeps_its_gpus_over_restarts_and_without_the_setting(
    cluster: Cluster, rbac: None, pod_resources: PodResources, device_nodes: None, sets: None, tmp_path: Path
) -> None:
    with running_node(cluster, pod_resources, tmp_path, "dgx1-v100", "dra", ("--gpu-sets",)) as node:
        wait_published(node)
        wait_slices(node, 5)
        four = runs(node, "four", "four")
        node.cluster.restart_kubelet()
        wait_slices(node, 5)
        taken = runs(node, "pair", "pair")
        node.agent.stop()
        node.agent.flags = ()
        node.agent.start()
        node.agent.wait_ready()
        wait_slices(node, 4)
        singles = [runs(node, f"single-{n}", "single") for n in range(2)]
        assert [len(one) for one in singles] == [1, 1]
        assert not union(*singles) & (four | taken)
        waits(node, "third", "single")
        node.end("four")
        node.cluster.wait_phase("third", "Running")
        assert all(not one & other for one, other in pairwise([taken, *singles, minors(node, "third")]))
        node.end("pair")
        wait_slices(node, 1)
        node.cluster.client.wait(SLICES, SLICE, lambda found: "consumesCounters" not in str(found))
        wait_files(node, 3)
