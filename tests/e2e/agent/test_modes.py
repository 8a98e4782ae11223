"""Every mode with real pods; amounts, environments, device nodes, placements, switches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.domain.pods.annotations import V1_GPU
from tests.e2e.agent.allocation_audit import spread_pod
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.podannotations import written
from tests.e2e.cluster import NODE_NAME, container, pod_manifest

MEM, CORE, GPU = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu"
EXAMPLES = Path(__file__).parents[3] / "examples"
UNISOLATED = ("--allow-unisolated",)
AMOUNTS = {
    "share": {"mem": 640},
    "cgpu": {"mem": 640},
    "mps": {"mem": 640},
    "core_mem": {"mem": 640, "core": 800},
    "topology": {"gpu": 8},
    "default": {"exclusive": 8},
}


def test_the_example_of_every_mode_runs(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="default", flags=UNISOLATED)
    for mode, amounts in AMOUNTS.items():
        node.switch(mode, **amounts)
        for example in EXAMPLES.glob(f"{mode.replace('_', '-')}.yaml"):
            manifest = yaml.safe_load(example.read_text())
            manifest["spec"]["hostNetwork"] = True  # the cluster of the tests has no network for pods
            manifest["spec"].pop("schedulerName", None)  # nor has it the chart's scheduler here
            node.run(manifest)
            node.audit()
            node.end(manifest["metadata"]["name"])
    assert {path.stem.replace("-", "_") for path in EXAMPLES.glob("*.yaml")} >= set(AMOUNTS)


def test_a_container_sees_its_share_and_device_nodes(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("one", {MEM: 10}))
    env = node.cluster.exec_env("one")
    gpu = next(g for g in node.agent.status()["gpus"] if g["uuid"] == env["NVIDIA_VISIBLE_DEVICES"])
    assert env["ALIYUN_COM_GPU_MEM_IDX"] == str(gpu["minor"])
    assert (env["ALIYUN_COM_GPU_MEM_CONTAINER"], env["ALIYUN_COM_GPU_MEM_DEV"]) == ("10", "80")
    assert {f"nvidia{gpu['minor']}", "nvidiactl", "nvidia-uvm"} <= set(node.cluster.container_devices("one"))
    others = {f"nvidia{n}" for n in range(8)} - {f"nvidia{gpu['minor']}"}
    assert not others & set(node.cluster.container_devices("one"))


def test_modes_that_promise_isolation_stay_at_zero_and_say_why(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="cgpu")
    node.wait_amounts()
    condition = {}

    def reported(found: dict[str, Any]) -> bool:
        condition.update({c["type"]: c for c in found["status"]["conditions"]})
        return bool(condition.get("GPUAgentReady", {}).get("reason") == "IsolationMissing")

    node.cluster.wait_node(reported)
    assert condition["GPUAgentReady"]["status"] == "False"


def test_binpack_fills_a_gpu_and_spread_takes_the_emptiest(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    for name in ("a", "b", "c"):
        node.run(pod_manifest(name, {MEM: 20}))
    assert len({gpu for name in "abc" for gpu in node.gpus_of(name)}) == 1
    node.label("share", "spread")
    node.agent.wait(lambda page: page["placement"] == "spread")
    for name in ("d", "e", "f"):
        node.run(pod_manifest(name, {MEM: 20}))
    assert len({gpu for name in "adef" for gpu in node.gpus_of(name)}) == 4


def test_init_sidecar_and_two_gpu_containers(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="core_mem", flags=UNISOLATED)
    node.wait_amounts(mem=640, core=800)
    limits = {MEM: 8, CORE: 20}
    first = container("first", limits, command=["/bin/sh", "-c", "env > /dev/null"])
    side = container("side", {MEM: 4, CORE: 10}, restart_policy="Always")
    manifest = pod_manifest("family", {MEM: 8, CORE: 20}, init=[first, side])
    manifest["spec"]["containers"].append(container("second", {MEM: 16, CORE: 30}))
    node.run(manifest)
    held = node.audit()
    assert {h.owner.container for h in held} >= {"main", "second", "side"}


def test_a_sidecar_goes_where_its_pod_fits_and_the_pod_is_annotated(make_node: Callable[..., Node]) -> None:
    """The GPU in use has room for the sidecar alone, and kubelet asks for sidecars first."""
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("filler", {MEM: 70}))
    side = container("side", {MEM: 4}, restart_policy="Always")
    node.run(pod_manifest("family", {MEM: 40}, init=[side]))
    assert node.gpus_of("family", "side") == node.gpus_of("family", "main") != node.gpus_of("filler")
    annotated = node.cluster.wait_pod("family", lambda pod: V1_GPU in written(pod))
    minor = int(written(annotated)[V1_GPU])
    assert [gpu["uuid"] for gpu in node.agent.status()["gpus"] if gpu["minor"] == minor] == node.gpus_of("family")
    node.audit()


def test_memory_spread_over_two_gpus(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.spread_pods.add("wide")
    node.run(spread_pod("wide", 2, pod_manifest("wide", {MEM: 40})))
    env = node.cluster.exec_env("wide")
    assert len(env["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "20"


def test_two_hundred_containers_have_memory_and_compute_on_one_gpu(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="core_mem", flags=(*UNISOLATED, "--core-step", "1"))
    node.wait_amounts(mem=640, core=800)
    manifests = []
    for number in range(20):
        manifest = pod_manifest(f"many-{number}", {MEM: 1 + number % 3, CORE: 2 + number % 2})
        for extra in range(9):
            limits = {MEM: 1 + (number + extra) % 4, CORE: 1 + (number * extra) % 4}
            manifest["spec"]["containers"].append(container(f"c{extra}", limits))
        manifests.append(manifest)
    for manifest in manifests:
        node.pods.append(manifest["metadata"]["name"])
        node.cluster.create_pod(manifest)
    for manifest in manifests:
        pod = node.cluster.wait_phase(manifest["metadata"]["name"], "Running", "Failed")
        assert pod["status"]["phase"] == "Running", pod["status"]
    held = node.audit()
    gpus: dict[object, set[str]] = {}
    for holding in held:
        gpus.setdefault(holding.owner, set()).update(device_id.split("-")[0] for device_id in holding.ids)
    assert len(gpus) == 200
    assert all(len(keys) == 1 for keys in gpus.values()), gpus


def test_a_request_that_fits_the_node_but_no_gpu_is_refused_with_a_reason(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    pod = node.run(pod_manifest("big", {MEM: 100}), phase="Failed")
    assert "no single GPU has that much" in pod["status"]["message"]
    assert "default/big[main]" in pod["status"]["message"]


def test_a_pod_bound_to_a_zeroed_resource_fails_admission(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    pod = node.run(pod_manifest("bound", {GPU: 1}, node=NODE_NAME), phase="Failed")
    assert pod["status"]["reason"] in {"UnexpectedAdmissionError", "OutOfaliyun.com/gpu"}


def test_a_switch_waits_for_pods_and_never_sells_a_gpu_twice(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.run(pod_manifest("old", {MEM: 10}))
    (held_gpu,) = node.gpus_of("old")
    node.switch("topology", gpu=7)
    before = node.cluster.container("old")
    assert [w["container"] for w in node.agent.status()["switch"]["waiting_for"]] == ["default/old[main]"]
    node.run(pod_manifest("new", {GPU: 7}))
    assert held_gpu not in node.gpus_of("new")
    node.audit()
    assert node.cluster.container("old") == before
    node.label(None)
    node.end("old")
    node.wait_amounts(gpu=8)
    assert node.agent.status()["mode"] == "topology"


def test_a_switch_sees_what_only_an_init_container_holds(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    manifest = pod_manifest("slow-init", {}, init=[container("first", {MEM: 10})])
    node.pods.append("slow-init")
    node.cluster.create_pod(manifest)
    node.cluster.wait_pod("slow-init", _init_runs)
    node.switch("topology", gpu=7)
    assert [w["container"] for w in node.agent.status()["switch"]["waiting_for"]] == ["default/slow-init[first]"]
    node.restart_agent(node.agent.kill)
    node.wait_amounts(gpu=7)
    node.end("slow-init")
    node.wait_amounts(gpu=8)


def _init_runs(pod: dict[str, Any]) -> bool:
    return any("running" in status["state"] for status in pod["status"].get("initContainerStatuses", ()))


def test_a_chain_of_switches_ends_with_the_last_mode_remembered(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="default", flags=UNISOLATED)
    node.wait_amounts(exclusive=8)
    held = 0
    for mode, limits in (("cgpu", {MEM: 10}), ("core_mem", {MEM: 10, CORE: 20}), ("topology", {GPU: 1})):
        full = AMOUNTS[mode]
        node.switch(mode, **{name: amount * (8 - held) // 8 for name, amount in full.items()})
        node.run(pod_manifest(f"of-{mode.replace('_', '-')}", limits))
        held += 1
    node.label(None)
    node.restart_agent(node.agent.kill)
    node.wait_amounts(gpu=6)
    node.label("no-such-mode")
    page = node.agent.wait(lambda page: any(p["reason"] == "InvalidModeLabel" for p in page["problems"]))
    assert page["mode"] == "topology"


@pytest.mark.parametrize("box", ["mixed", "t4"])
def test_other_boxes(make_node: Callable[..., Node], box: str) -> None:
    node = make_node(box=box, mode="share")
    amount = {"mixed": 15 + 15 + 22 + 22 + 40, "t4": 15}[box]
    node.wait_amounts(mem=amount)
    gpus = {"mixed": "5", "t4": "1"}[box]
    node.cluster.wait_node(lambda found: found["metadata"]["labels"].get("aliyun.accelerator/nvidia_count") == gpus)
    node.run(pod_manifest("whole", {MEM: 15}))


def test_node_facts_are_kept_right(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    wanted = {"aliyun.accelerator/nvidia_count": "8", "aliyun.accelerator/nvidia_mem": "81920MiB"}

    def right(found: dict[str, Any]) -> bool:
        labels, status = found["metadata"]["labels"], found["status"]
        amounts = [status[side].get("aliyun.com/gpu-count") for side in ("capacity", "allocatable")]
        return wanted.items() <= labels.items() and amounts == ["8", "8"]

    node.cluster.wait_node(right)
    node.cluster.label_node({"aliyun.accelerator/nvidia_count": "3"})
    node.cluster.wait_node(right)
