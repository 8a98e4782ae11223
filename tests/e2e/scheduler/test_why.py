"""Why pods wait, by `kubectl inspect cgpu --why`. Of claims, kube-scheduler has one sentence for most causes."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE, MODE_LABEL
from inspectcgpu.cli import run
from tests.e2e.cluster import pki
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import EVENTS, ControlPlane
from tests.e2e.scheduler.nodes import node, share_node
from tests.e2e.scheduler.pods import job, pod, why
from tests.e2e.scheduler.replica import Replica
from tests.unit.gpuscheduler.core.explain import cluster_objects as objects

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
ATTRIBUTE = 'device.attributes["gpu.gpuagent.io"]'
WHOLE = objects.WHOLE
TAINT = {"key": "team", "value": "b", "effect": "NoSchedule"}
LINKED = {"matchAttribute": "gpu.gpuagent.io/nvlinkDomain"}
REQUESTS = {
    "too-large": [objects.request(memory="100Gi")],
    "count": [objects.request(WHOLE, count=8)],
    "no-class": [objects.request("gpu-shared.gpuagent.io", memory="8Gi")],
    "no-capacity": [objects.request(mem="8Gi")],
    "no-attribute": [objects.request(memory="8Gi", cel=f'{ATTRIBUTE}.productname == "A"')],
    "no-model": [objects.request(memory="8Gi", cel=f'{ATTRIBUTE}.productName == "NVIDIA H100"')],
    "elsewhere": [objects.request(WHOLE, cel=f"{ATTRIBUTE}.minor == 7")],
    "linked": [objects.request(WHOLE, count=2, cel=f"{ATTRIBUTE}.minor in [1, 2]")],
    "fits": [objects.request(memory="8Gi")],
}
EXPECTED = {
    "too-large": "wants 100Gi on one GPU: the largest GPU has 80Gi, such as node-1 GPU 0",
    "count": "wants 8 whole GPUs on one node: no node where it may be has more than 4 such GPUs, as node-1 has",
    "no-class": (
        "wants DeviceClass gpu-shared.gpuagent.io, which the cluster does not have; did you mean gpu-share.gpuagent.io?"
    ),
    "no-capacity": "capacity gpu.gpuagent.io/mem is on no GPU; did you mean memory?",
    "no-attribute": "attribute gpu.gpuagent.io/productname is on no GPU; did you mean productName?",
    "no-model": "productName is NVIDIA A100-SXM4-80GB",
    "elsewhere": (
        "wants a whole GPU: 1 GPU has as much, and the pod may not be on the nodes: 1 node(s) had taints that it does "
        "not tolerate (node-2)"
    ),
    "linked": (
        "wants 2 GPUs with the same gpu.gpuagent.io/nvlinkDomain: no node has that many with one value free; with any "
        "value there are enough on node-1"
    ),
}
FULL = (
    "wants 30Gi on one GPU: most free is 12Gi, on node-1 GPU 1; 1 GPU is unhealthy (xid-79), 1 GPU is held "
    "whole, 1 GPU has as much free where the pod may not be (node-2)"
)


@pytest.fixture
def dra_nodes(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Two nodes in mode `dra`, one of which has a taint of the operator's."""
    client = control_plane.client
    for device_class in objects.classes():
        client.apply({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **device_class})
    tainted = node("node-2", [], {MODE_LABEL: "dra"})
    tainted["spec"] = {"taints": [TAINT]}
    control_plane.add_nodes([node("node-1", [], {MODE_LABEL: "dra"}), tainted])
    ill = objects.gpu(3, taint="unhealthy", value="xid-79")
    gpus = [*(objects.gpu(minor) for minor in range(3)), ill]
    slices = [objects.slice_of("node-1", *gpus), objects.slice_of("node-2", objects.gpu(7))]
    client.create_all(f"{API}/resourceslices", slices)
    yield control_plane
    control_plane.clear_pods()
    for found in client.expect("GET", CLAIMS)["items"]:
        path = f"{CLAIMS}/{found['metadata']['name']}"
        client.request("DELETE", path)
        # No controller takes the finalizer off here.
        client.request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
    client.request("DELETE", f"{API}/resourceslices")
    for device_class in objects.classes():
        client.request("DELETE", f"{API}/deviceclasses/{device_class['metadata']['name']}")


@pytest.fixture
def replica(dra_nodes: ControlPlane, make_replica: Callable[..., Replica]) -> Replica:
    made: Replica = make_replica("a")
    return made


def claiming(name: str) -> Json:
    """A pod with the claim of its own name."""
    return pod(name, {}, resourceClaims=[{"name": "gpu", "resourceClaimName": name}])


def sentence(control_plane: ControlPlane, capsys: pytest.CaptureFixture[str], name: str) -> str:
    """What the tool says of a pod."""
    assert run(["--kubeconfig", str(control_plane.kubeconfig(pki.ADMIN)), "--why", name], {}) == 0
    out = capsys.readouterr().out
    prefix = f"Pod default/{name} "
    assert out.startswith(prefix)
    return out.removeprefix(prefix).removeprefix("waits: ").removesuffix("\n")


def _is_bound(pods: Mapping[str, Json], name: str) -> bool:
    return name in pods and bool(pods[name]["spec"].get("nodeName"))


def test_each_cause_has_a_sentence(
    dra_nodes: ControlPlane, replica: Replica, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = []
    for name, requests in REQUESTS.items():
        constraints = [LINKED] if name == "linked" else []
        claims.append(objects.claim(name, *requests, constraints=constraints))
    dra_nodes.client.create_all(CLAIMS, claims)
    waiting = [*EXPECTED]
    dra_nodes.add_pods(claiming(name) for name in waiting)
    dra_nodes.pods.wait(lambda pods: all(why(pods, name) for name in waiting))
    dra_nodes.add_pods([claiming("fits")])
    dra_nodes.pods.wait(lambda pods: _is_bound(pods, "fits"))
    pods = dra_nodes.pods.wait(lambda _: True, 0)
    alike = [name for name in EXPECTED if "cannot allocate all claims" in why(pods, name)]
    # kube-scheduler itself names a class, or an attribute, that there is not.
    assert {*alike} == EXPECTED.keys() - {"no-class", "no-attribute"}
    found = {name: sentence(dra_nodes, capsys, name) for name in EXPECTED}
    assert {name: text for name, text in found.items() if not text.endswith(EXPECTED[name])} == {}
    assert sentence(dra_nodes, capsys, "fits") == "does not wait: it runs on node node-1"


def test_what_is_free_now_is_told(
    dra_nodes: ControlPlane, replica: Replica, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"fill-{minor}" for minor in range(3)]
    claims = [objects.claim("fill-0", objects.request(WHOLE, cel=f"{ATTRIBUTE}.minor == 0"))]
    for minor in (1, 2):
        request = objects.request(memory=f"{67 + minor}Gi", cel=f"{ATTRIBUTE}.minor == {minor}")
        claims.append(objects.claim(f"fill-{minor}", request))
    dra_nodes.client.create_all(CLAIMS, [*claims, objects.claim("full", objects.request(memory="30Gi"))])
    dra_nodes.add_pods(map(claiming, names))
    dra_nodes.pods.wait(lambda pods: all(_is_bound(pods, name) for name in names))
    dra_nodes.add_pods([claiming("full")])
    dra_nodes.pods.wait(lambda pods: "cannot allocate all claims" in why(pods, "full"))
    assert sentence(dra_nodes, capsys, "full") == FULL
    # The scheduler says the same in an Event.
    told = dra_nodes.client
    path = f"{EVENTS}?fieldSelector=reason=WaitingForGPUs,involvedObject.name=full"
    replica.extender.wait_for(lambda: [event["message"] for event in told.expect("GET", path)["items"]] == [FULL])


def test_pods_with_gpus_in_their_limits(
    control_plane: ControlPlane, make_replica: Callable[..., Replica], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where gpuscheduler has said why, the tool says the same."""
    control_plane.add_nodes([share_node("node-1", gpus=2)])
    replica = make_replica("a")
    part, *_ = job("train", 2, {GPU_MEM: 8})
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    gated = pod("gated", {GPU_MEM: 8}, schedulingGates=gates)
    control_plane.add_pods([pod("huge", {GPU_MEM: 200}), pod("whole", {GPU_WHOLE: 1}), part, gated])
    control_plane.pods.wait(lambda pods: all(why(pods, name) for name in ("huge", "whole", "train-0")))
    path = f"{EVENTS}?fieldSelector=reason=WaitingForGPUs"

    def pods_of_events() -> set[str]:
        events = control_plane.client.expect("GET", path)["items"]
        return {event["involvedObject"]["name"] for event in events}

    replica.extender.wait_for(lambda: {"huge", "whole"} <= pods_of_events())
    assert sentence(control_plane, capsys, "huge") == "node(s) had no GPU with 200 GiB"
    pods = control_plane.pods.wait(lambda _: True, 0)
    assert sentence(control_plane, capsys, "train-0") == why(pods, "train-0")
    assert "1 of 2 pods are there" in why(pods, "train-0")
    assert "node(s) give no whole GPUs: their mode is cgpu" in sentence(control_plane, capsys, "whole")
    expected = "has scheduling gate kueue.x-k8s.io/admission, which only the controller that set it removes"
    assert sentence(control_plane, capsys, "gated") == expected
