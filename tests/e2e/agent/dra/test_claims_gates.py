"""Mode `dra` on Kubernetes 1.34 and 1.35, with the feature gates on and, as by default, off.

The control plane emulates the version. Kubelet is a real one of 1.35.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.agent.chart_classes import chart_classes
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import SLICE, SLICES, claiming, devices, of, wait_files, wait_published
from tests.e2e.agent.dra.feature_gates import ALL, EVERY, NAMED, SETS, SHARES, TAINTS, Gates, applied
from tests.e2e.agent.dra.test_claims_health import index_of
from tests.e2e.cluster import Cluster, pod_manifest

Json = dict[str, Any]
SET_SLICE = f"{SLICE}-sets-2-0"
WHOLE = "gpu.gpuagent.io"
GPU = "aliyun.com/gpu"


CASES = [
    Gates("1.34", frozenset()),
    Gates("1.34", EVERY),
    Gates("1.35", frozenset()),
    Gates("1.35", EVERY),
    *(Gates("1.35", EVERY - {gate}) for gate in (SHARES, TAINTS, SETS)),
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def gates(request: pytest.FixtureRequest, cluster: Cluster, kubelet_1_35: None) -> Iterator[Gates]:
    with applied(cluster, request.param) as case:
        yield case


@pytest.fixture
def node(make_node: Callable[..., Node], gates: Gates, cluster: Cluster, no_claims: None) -> Iterator[Node]:
    """A node that publishes what the API server keeps."""
    with chart_classes(cluster, extendedResource=GPU):
        made = make_node(mode="dra", flags=("--gpu-sets",), fresh=True)
        made.wait_amounts()
        wait_published(made)
        yield made


@pytest.fixture
def run(node: Node) -> Iterator[Callable[..., Json]]:
    """Runs a pod with a claim of this spec."""
    made = []

    def running(name: str, spec: Json, **given: Any) -> Json:
        manifest = of("ResourceClaimTemplate", name, {"spec": spec}, "default")
        node.cluster.apply(manifest)
        made.append(manifest)
        return node.run(claiming(name, name), **given)

    yield running
    for manifest in made:
        node.cluster.api("DELETE", node.cluster.client.path_of(manifest))


def published(node: Node) -> list[Json]:
    found: list[Json] = node.cluster.client.expect("GET", f"{SLICES}/{SLICE}")["spec"]["devices"]
    return found


def test_whole_gpus_with_constraints_alternatives_and_admin_access(
    node: Node, run: Callable[..., Json], of_administrators: None
) -> None:
    # The first: while devices can be shared, the scheduler gives a monitor those that have all of their memory free.
    watching = {"name": "gpu", "exactly": {"deviceClassName": WHOLE, "allocationMode": "All", "adminAccess": True}}
    run("monitor", {"devices": {"requests": [watching]}})
    assert len(node.gpus_of("monitor")) == 8
    run("two", devices(WHOLE, count=2))
    assert len(set(node.gpus_of("two"))) == 2
    near = devices(WHOLE, count=2)
    near["devices"]["constraints"] = [{"matchAttribute": "gpu.gpuagent.io/numaNode"}]
    run("near", near)
    nodes = {
        device["attributes"]["numaNode"]["int"]
        for device in published(node)
        if device["attributes"]["uuid"]["string"] in node.gpus_of("near")
    }
    assert len(nodes) == 1
    many, fewer = ({"name": f"of-{count}", "deviceClassName": WHOLE, "count": count} for count in (16, 3))
    run("fewer", {"devices": {"requests": [{"name": "gpu", "firstAvailable": [many, fewer]}]}})
    held = [*node.gpus_of("two"), *node.gpus_of("near"), *node.gpus_of("fewer")]
    assert len(set(held)) == len(held) == 7
    wait_files(node, 4)
    node.end(*node.pods)
    wait_files(node, 0)


def test_a_gpu_with_a_fault_is_given_to_no_claim(node: Node, gates: Gates, run: Callable[..., Json]) -> None:
    (first, *others) = [device["attributes"]["uuid"]["string"] for device in published(node)]
    node.agent.inject(fault="xid", gpu=index_of(node, first), code=79)

    def is_out(found: Json | None) -> bool:
        kept = {one["attributes"]["uuid"]["string"]: one for one in found["spec"]["devices"]} if found else {}
        if TAINTS in gates.on:
            return first in kept and "taints" in kept[first]
        return bool(kept) and first not in kept

    node.cluster.client.wait(SLICES, SLICE, is_out)
    node.cluster.restart_scheduler()
    run("others", devices(WHOLE, count=7))
    assert sorted(node.gpus_of("others")) == sorted(others)
    for uuid in others:
        node.agent.inject(fault="xid", gpu=index_of(node, uuid), code=79)
    node.cluster.client.wait(SLICES, SLICE, lambda found: found is not None and not free_devices(found))
    reasons = {problem["reason"] for problem in node.agent.status()["problems"]}
    assert "ResourceSliceChanged" not in reasons, "an empty slice is stored as it was sent"


def free_devices(found: Json) -> list[Json]:
    return [device for device in found["spec"].get("devices", ()) if "taints" not in device]


def test_the_agent_says_which_gate_is_off_and_serves_the_rest(
    node: Node, gates: Gates, run: Callable[..., Json]
) -> None:
    if SETS in gates.on:
        node.cluster.client.wait(SLICES, SET_SLICE, bool)
        pair = devices("gpu-set.gpuagent.io")
        pair["devices"]["requests"][0]["exactly"]["selectors"] = [
            {"cel": {"expression": 'device.attributes["gpu.gpuagent.io"].gpus == 2'}}
        ]
        run("pair", pair)
        assert len(node.gpus_of("pair")) == 2
    if SHARES in gates.on:
        run("share", devices("gpu-share.gpuagent.io", memory="8Gi"))
        assert node.cluster.exec_env("share")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8"
    else:
        waits(node, "share", devices("gpu-share.gpuagent.io", memory="8Gi"))
    if NAMED in gates.on:
        node.run(pod_manifest("named", {GPU: 1}))
        assert len(node.gpus_of("named")) == 1

    def only_warns(page: Json) -> bool:
        severities = {problem["severity"] for problem in page["problems"]}
        return reported(page) == {SHARES, TAINTS, SETS} - gates.on and severities <= {"warning"}

    node.agent.wait(only_warns)


def reported(page: Json) -> set[str]:
    """The gates that the agent's problems name."""
    texts = [problem["message"] for problem in page["problems"] if problem["reason"] == "FeatureGateOff"]
    return {gate for gate in ALL for text in texts if f"feature gate {gate} is off" in text}


def waits(node: Node, name: str, spec: Json) -> None:
    """A pod that the scheduler finds no device for."""
    manifest = of("ResourceClaimTemplate", name, {"spec": spec}, "default")
    node.cluster.apply(manifest)
    node.pods.append(name)
    node.cluster.create_pod(claiming(name, name))
    node.cluster.wait_pod(name, is_unschedulable)
    node.cluster.api("DELETE", node.cluster.client.path_of(manifest))


def is_unschedulable(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)
