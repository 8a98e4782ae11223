"""Karpenter with its kwok provider, which creates the Nodes that kwok then plays."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from standin.ports import free_port
from tests.e2e.cluster import pki
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import NODES, ControlPlane
from tests.e2e.scheduler.controllers.controller import define_kinds
from tests.e2e.scheduler.nodes import share_node

EXAMPLE = Path(__file__).parents[4] / "examples" / "autoscaling" / "karpenter.yaml"
POOL_LABEL = "karpenter.sh/nodepool"
POOLS, CLAIMS = "/apis/karpenter.sh/v1/nodepools", "/apis/karpenter.sh/v1/nodeclaims"
OVERLAYS = "/apis/karpenter.sh/v1alpha1/nodeoverlays"
GPUS, UNITS = 4, 22
"""Of an instance of the type in the example."""
_NODE_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_MERGE = "application/merge-patch+json"


class Karpenter:
    """Karpenter, and the objects of the example. Of these, only the class of nodes is that of the kwok provider."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._client = control_plane.client
        directory = control_plane.workdir / "karpenter"
        directory.mkdir(exist_ok=True)
        self._types = directory / "instance-types.json"
        self._types.write_text(json.dumps([_instance_type("g5.12xlarge", 5.7), _instance_type("m5.large", 0.1)]))
        self._process = control_plane.process("karpenter", (str(control_plane.bin / "karpenter"),))

    def start(self) -> None:
        """Define its kinds, create the objects, and start it."""
        text = (self._control_plane.bin / "karpenter.yaml").read_text()
        define_kinds(self._control_plane, [made for made in yaml.safe_load_all(text) if made])
        self._client.apply(_object(_NODE_CLASS))
        for made in yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8")):
            if made["kind"] == "NodePool":
                made["spec"]["template"]["spec"]["nodeClassRef"] = _NODE_CLASS
            self._client.apply(made)
        self._process.start(
            {
                "KUBECONFIG": str(self._control_plane.kubeconfig(pki.ADMIN)),
                "FEATURE_GATES": "NodeOverlay=true",
                "INSTANCE_TYPES_FILE_PATH": str(self._types),
                "DISABLE_LEADER_ELECTION": "true",
                "METRICS_PORT": str(free_port()),
                "HEALTH_PROBE_PORT": str(free_port()),
            }
        )

    def stop(self) -> None:
        """Have it end its nodes, which no one else can delete, then end it."""
        for collection in (POOLS, CLAIMS, OVERLAYS):
            self._client.request("DELETE", collection)
        self._process.wait_for(lambda: not self.claims())
        self._process.kill()

    def claims(self) -> list[Json]:
        """The instances that it has asked its provider for."""
        claims: list[Json] = self._client.expect("GET", CLAIMS)["items"]
        return claims

    def new_nodes(self, count: int) -> list[str]:
        """Names of its nodes, once there are so many."""
        self._process.wait_for(lambda: len(self._nodes()) >= count)
        return self._nodes()

    def nominated(self, pod: str) -> str:
        """What it last said of the node that a pod should get; empty if it said nothing."""
        path = f"/api/v1/events?fieldSelector=reason=Nominated,involvedObject.name={pod}"
        events: Iterable[Json] = self._client.expect("GET", path)["items"]
        return " ".join(event["message"] for event in events)

    def wait_until_nominated(self, pod: str, node: str) -> None:
        """Wait until it says that a pod should get a node."""
        self._process.wait_for(lambda: node in self.nominated(pod))

    def _nodes(self) -> list[str]:
        listed = self._client.expect("GET", f"{NODES}?labelSelector={POOL_LABEL}")
        return [node["metadata"]["name"] for node in listed["items"]]


def advertise(control_plane: ControlPlane, name: str) -> None:
    """Write what the agent writes on a node of the example's type."""
    made = share_node(name, GPUS, UNITS)
    amounts: Mapping[str, str] = made["status"]["allocatable"]
    of_gpus = {resource: amount for resource, amount in amounts.items() if resource.startswith("aliyun.com/")}
    annotations = {"metadata": {"annotations": made["metadata"]["annotations"]}}
    control_plane.client.expect("PATCH", f"{NODES}/{name}", annotations, _MERGE)
    status = {"status": {"capacity": of_gpus, "allocatable": of_gpus}}
    control_plane.client.expect("PATCH", f"{NODES}/{name}/status", status, _MERGE)


def _object(reference: Mapping[str, str]) -> Json:
    return {
        "apiVersion": f"{reference['group']}/v1alpha1",
        "kind": reference["kind"],
        "metadata": {"name": reference["name"]},
        "spec": {},
    }


def _instance_type(name: str, price: float) -> Json:
    """An instance without GPUs: those come from the overlay."""
    where = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "zone"}
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in where.items()]
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "offerings": [{"Price": price, "Available": True, "Requirements": requirements}],
        "resources": {"cpu": "48", "memory": "192Gi", "ephemeral-storage": "100Gi", "pods": "110"},
    }
