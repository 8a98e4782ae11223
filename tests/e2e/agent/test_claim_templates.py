"""Mode `dra` as a user comes to it: the chart's classes and the examples."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.simulation import boxes
from standin.mps.host import MpsHost
from tests.e2e.agent.chart_classes import chart_classes
from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import NODE_NAME, Cluster, pod_manifest

EXAMPLES = Path(__file__).parents[3] / "examples" / "claims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
SLICE = f"{NODE_NAME}-gpu.gpuagent.io"
BOX = "dgx-a100"

Json = dict[str, Any]


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsHost]:
    with MpsHost() as host:
        monkeypatch.setenv("PATH", f"{host.control.parent}:/usr/bin:/bin:/usr/sbin:/sbin")
        host.write_smi({"modes": dict.fromkeys((gpu.uuid for gpu in boxes.load(BOX).gpus), "Default")})
        yield host


@pytest.fixture
def node(cluster: Cluster, make_node: Callable[..., Node], mps: MpsHost) -> Iterator[Node]:
    """In mode dra with an isolation layer for memory and compute, and the chart's classes."""
    with chart_classes(cluster, extendedResource="aliyun.com/gpu"):
        made = make_node(box=BOX, mode="dra", flags=("--mps-control", str(mps.control), "--mps-pipe-dir", str(mps.own)))
        made.wait_amounts()
        made.cluster.client.wait(SLICES, SLICE, lambda found: found is not None and all(map(isolates, devices(found))))
        yield made


def devices(found: Json) -> list[Json]:
    return list(found["spec"]["devices"])


def isolates(device: Json) -> bool:
    return bool(device["attributes"]["computeIsolated"]["bool"])


def run(node: Node, template: Json, pod: Json) -> dict[str, str]:
    """The environment of the pod's container, once it runs."""
    node.cluster.apply(template)
    try:
        node.run(pod)
        return dict(node.cluster.exec_env(pod["metadata"]["name"]))
    finally:
        node.cluster.api("DELETE", node.cluster.client.path_of(template))


def template_of(example: str) -> Json:
    template: Json = next(yaml.safe_load_all((EXAMPLES / f"{example}.yaml").read_text()))
    return template


def claiming(name: str, template: Json) -> Json:
    manifest = pod_manifest(name, {})
    manifest["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template["metadata"]["name"]}]
    manifest["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return manifest


def test_the_pod_of_a_template_runs_with_both_limits(node: Node) -> None:
    template = template_of("core-mem")
    began = time.monotonic()
    env = run(node, template, claiming("both", template))
    print(f"runs {time.monotonic() - began:.2f} s after its template was applied")
    gpu = next(gpu for gpu in node.agent.status()["gpus"] if gpu["uuid"] == env["NVIDIA_VISIBLE_DEVICES"])
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={gpu['memory_mib'] * 4 // 80}M"


@pytest.mark.parametrize(("example", "count", "memory"), [("topology", 2, None), ("share", 1, "4")])
def test_the_pod_of_a_template_has_its_amounts(node: Node, example: str, count: int, memory: str | None) -> None:
    template = template_of(example)
    env = run(node, template, claiming("amounts", template))
    assert len(set(env["NVIDIA_VISIBLE_DEVICES"].split(","))) == count
    assert env.get("ALIYUN_COM_GPU_MEM_CONTAINER") == memory


def test_the_example_of_every_mode_runs(node: Node) -> None:
    found = {}
    # Shares of two GPUs are for nodes without MPS.
    modes = {path.stem for path in EXAMPLES.parent.glob("*.yaml")} - {"two-gpus"}
    for example in sorted(path for path in EXAMPLES.glob("*.yaml") if path.stem in modes):
        template, pod = yaml.safe_load_all(example.read_text())
        pod["spec"]["hostNetwork"] = True  # the cluster of the tests has no network for pods
        env = run(node, template, pod)
        limits = {name for name in env if name.startswith("CUDA_MPS_") and name != "CUDA_MPS_PIPE_DIRECTORY"}
        found[example.stem] = len(env["NVIDIA_VISIBLE_DEVICES"].split(",")), len(limits)
        node.end(pod["metadata"]["name"])
    share, both, none = (1, 1), (1, 2), 0
    assert found == {
        "cgpu": share,
        "core-mem": both,
        "default": (1, none),
        "mps": share,
        "share": share,
        "topology": (2, none),
    }


def test_whole_gpus_in_limits_are_served_without_a_claim_in_the_pod(node: Node) -> None:
    template = template_of("share")
    share = run(node, template, claiming("share", template))
    node.run(pod_manifest("limits", {"aliyun.com/gpu": 2}))
    gpus = set(node.gpus_of("limits"))
    assert len(gpus) == 2
    assert share["NVIDIA_VISIBLE_DEVICES"] not in gpus
    env = node.cluster.exec_env("limits")
    assert not [name for name in env if name.startswith(("ALIYUN_COM_GPU_MEM", "CUDA_MPS"))]


def test_each_container_with_gpus_in_its_limits_sees_its_own(node: Node) -> None:
    """The scheduler makes one claim for both."""
    pod = pod_manifest("both", {"aliyun.com/gpu": 1})
    (first,) = pod["spec"]["containers"]
    two = {"aliyun.com/gpu": "2"}
    pod["spec"]["containers"].append({**first, "name": "second", "resources": {"limits": two, "requests": two}})
    node.run(pod)
    names = (first["name"], "second")
    found = [set(node.cluster.exec_env("both", name)["NVIDIA_VISIBLE_DEVICES"].split(",")) for name in names]
    assert [len(gpus) for gpus in found] == [1, 2]
    assert not found[0] & found[1]
