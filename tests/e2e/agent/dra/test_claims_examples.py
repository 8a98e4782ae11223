"""The examples of claims with several requests or alternatives, as they are."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.other_driver import OtherDriver
from tests.e2e.agent.conftest import KUBELET_DIR, Node
from tests.e2e.agent.dra.claims import SLICE, SLICES, of, sharing, wait_published
from tests.e2e.agent.dra.test_claims_sets import minors, wait_slices
from tests.e2e.cluster import NODE_NAME, Cluster

Json = dict[str, Any]
EXAMPLES = Path(__file__).parents[4] / "examples" / "claims"
LINKED = ({0, 1, 2, 3}, {4, 5, 6, 7})
"""Fours of a DGX-1 in which each GPU reaches each by an NVLink."""
NIC_DRIVER, NIC_CLASS = "dra.net", "dranet"


@pytest.fixture
def make_pod(cluster: Cluster) -> Iterator[Callable[[str, str], Json]]:
    """Applies the template of an example, and gives its pod under another name."""
    templates: list[Json] = []

    def make(example: str, name: str) -> Json:
        template, pod = yaml.safe_load_all((EXAMPLES / f"{example}.yaml").read_text())
        cluster.apply(template)
        templates.append(template)
        pod["metadata"]["name"] = name
        pod["spec"]["hostNetwork"] = True  # the cluster of the tests has no network for pods
        made: Json = pod
        return made

    yield make
    for template in {template["metadata"]["name"]: template for template in templates}.values():
        cluster.api("DELETE", cluster.client.path_of(template))


@pytest.fixture
def make_claim_of(cluster: Cluster) -> Iterator[Callable[[str, str], None]]:
    """Makes a claim for the GPU with a UUID."""
    claims: list[Json] = []

    def make(name: str, uuid: str) -> None:
        selector = {"cel": {"expression": f'device.attributes["gpu.gpuagent.io"].uuid == "{uuid}"'}}
        exactly = {"deviceClassName": "gpu.gpuagent.io", "selectors": [selector]}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        claims.append(of("ResourceClaim", name, spec, "default"))
        cluster.apply(claims[-1])

    yield make
    for claim in claims:
        cluster.api("DELETE", cluster.client.path_of(claim))


def test_linked_gpus_are_taken_and_then_any(
    make_node: Callable[..., Node],
    classes: None,
    no_claims: None,
    make_pod: Callable[[str, str], Json],
    make_claim_of: Callable[[str, str], None],
) -> None:
    """With one GPU of each side of the box taken, six GPUs are left, and no four of them are a set."""
    node = make_node("dgx1-v100", mode="dra", flags=("--gpu-sets", "--settle", "1"))
    wait_published(node)
    wait_slices(node, 5)
    node.run(make_pod("linked-gpus", "linked"))
    assert minors(node, "linked") in LINKED
    node.end("linked")
    uuids = {int(gpu["minor"]): gpu["uuid"] for gpu in node.agent.status()["gpus"]}
    for minor in (0, 4):
        make_claim_of(f"gpu-{minor}", uuids[minor])
        node.run(sharing(f"single-{minor}", f"gpu-{minor}"))
    node.run(make_pod("linked-gpus", "any"))
    found = minors(node, "any")
    assert len(found) == 4
    assert not found & {0, 4}


@pytest.fixture
def network_devices(cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """A second driver on the node; publishes two devices, of which the second has a PCIe root that is given."""
    selector = {"cel": {"expression": f'device.driver == "{NIC_DRIVER}"'}}
    device_class = of("DeviceClass", NIC_CLASS, {"selectors": [selector]})
    made = [device_class]

    def publish(pcie_root: str) -> None:
        roots = {"nic-0": "pci0000:ff", "nic-1": pcie_root}
        devices = [
            {"name": name, "attributes": {"resource.kubernetes.io/pcieRoot": {"string": root}}}
            for name, root in roots.items()
        ]
        pool = {"name": NODE_NAME, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": NIC_DRIVER, "nodeName": NODE_NAME, "pool": pool, "devices": devices}
        made.append(of("ResourceSlice", "network-devices", spec))
        cluster.apply(made[-1])

    with OtherDriver(KUBELET_DIR, NIC_DRIVER):
        cluster.apply(device_class)
        yield publish
    for manifest in made:
        cluster.api("DELETE", cluster.client.path_of(manifest))


def test_a_gpu_and_its_network_device_are_of_one_root(
    network_devices: Callable[[str], None], node: Node, make_pod: Callable[[str, str], Json]
) -> None:
    """The GPU is the last one in the order of the slice: no other has a network device.

    The other driver is there until the pods are gone, because kubelet has it unprepare their claim.
    """
    last = node.cluster.client.expect("GET", f"{SLICES}/{SLICE}")["spec"]["devices"][-1]
    network_devices(last["attributes"]["resource.kubernetes.io/pcieRoot"]["string"])
    node.run(make_pod("gpu-and-nic", "aligned"))
    assert node.gpus_of("aligned") == [last["attributes"]["uuid"]["string"]]
    (claim,) = node.cluster.client.expect("GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims")["items"]
    results = claim["status"]["allocation"]["devices"]["results"]
    assert {result["device"] for result in results} == {last["name"], "nic-1"}
