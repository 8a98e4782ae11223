"""The agent as a whole with both stand-ins: what containers get, what the node shows, what people can ask."""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.simulation.driver import SimulatedGpu
from standin.ports import free_port
from tests.contract.harness import (
    ALWAYS,
    CORE,
    MEM,
    NODE,
    WHOLE,
    Isolating,
    Node,
    box,
    command,
    fetch,
    pod,
    wait_for,
)

MakeNode = Callable[..., Node]


def test_a_shared_container_gets_environment_and_device_nodes(node: MakeNode) -> None:
    """share: UUID, the ALIYUN_COM_GPU_* variables with minor, total, own and pod's units; its GPU's node and the control
    nodes, readable and writable; no CDI name."""
    one = node("1.36", box(2, 24))
    one.run()
    one.offers(mem=48)
    granted = one.kubelet.admit(pod("p", {MEM: 6})).containers["c0"]
    assert granted.env == {
        "NVIDIA_VISIBLE_DEVICES": one.uuids[0],
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_DEV": "24",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "6",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_UNIT": "GiB",
    }
    nodes = {"nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}
    assert {(d.host_path, d.container_path, d.permissions) for d in granted.devices} == {
        (f"/dev/{name}", f"/dev/{name}", "rw") for name in nodes
    }
    assert not granted.cdi
    assert not granted.mounts


def test_the_environment_names_the_minor_not_the_index(node: MakeNode) -> None:
    """A GPU whose minor is not its index: device node and ALIYUN_COM_GPU_MEM_IDX follow the minor."""
    gpus = box(2, 24)
    swapped = tuple(dataclasses.replace(gpu, minor=1 - gpu.minor) for gpu in gpus.gpus)
    one = node("1.36", dataclasses.replace(gpus, gpus=swapped))
    one.run()
    one.offers(mem=48)
    granted = one.kubelet.admit(pod("p", {MEM: 6})).containers["c0"]
    assert granted.env["NVIDIA_VISIBLE_DEVICES"] == one.uuids[0]
    assert granted.env["ALIYUN_COM_GPU_MEM_IDX"] == "1"
    assert "/dev/nvidia1" in {d.host_path for d in granted.devices}


def test_cdi_names_instead_of_device_nodes(node: MakeNode) -> None:
    """--device-strategy cdi: the CDI name of each GPU, once, and no device nodes."""
    one = node("1.36", box(2, 24))
    one.run(Isolating(), mode="core_mem", device_strategy=DeviceStrategy.CDI)
    one.offers(mem=48, core=200)
    granted = one.kubelet.admit(pod("p", {MEM: 6, CORE: 20})).containers["c0"]
    assert granted.cdi == (f"nvidia.com/gpu={one.uuids[0]}",)
    assert not granted.devices


def test_whole_gpus_carry_no_share(node: MakeNode) -> None:
    """topology: UUIDs of the GPUs, nothing about memory."""
    one = node("1.36", box(2, 24))
    one.run(mode="topology")
    one.offers(whole=2)
    granted = one.kubelet.admit(pod("p", {WHOLE: 2})).containers["c0"]
    assert granted.env == {"NVIDIA_VISIBLE_DEVICES": ",".join(one.uuids)}


def test_the_node_shows_its_gpus(node: MakeNode) -> None:
    """Labels aliyun.accelerator/*, capacity and allocatable aliyun.com/gpu-count, condition; put back when lost."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    one.run()

    def shown() -> tuple[Any, ...]:
        found = one.server.node()
        labels = {k.rpartition("_")[2]: v for k, v in found["metadata"]["labels"].items() if "accelerator" in k}
        amounts = [found["status"][side].get("aliyun.com/gpu-count") for side in ("capacity", "allocatable")]
        conditions = [c["status"] for c in found["status"]["conditions"] if c["type"] == "GPUAgentReady"]
        return labels, amounts, conditions

    wanted = ({"name": "NVIDIA-A100-SXM4-80GB", "mem": "24576MiB", "count": "2"}, ["2", "2"], ["True"])
    assert one.server.wait(lambda: shown() == wanted), shown()
    one.server.patch_node_status({side: {"aliyun.com/gpu-count": None} for side in ("capacity", "allocatable")})
    one.label("share", **{"aliyun.accelerator/nvidia_mem": None})
    assert one.server.wait(lambda: shown() == wanted), shown()


def test_pages_and_probes(node: MakeNode) -> None:
    """/healthz and /readyz, /metrics and /status tell the truth with a kubelet and without; unknown paths are told."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    agent = one.run(http_address=("127.0.0.1", 0))
    port = agent.http_port
    one.offers(mem=48)
    asked = one.bind(pod("p", {MEM: 6}))
    one.kubelet.admit(asked)
    one.kubelet.start_container(asked, "c0")
    wait_for(lambda: fetch(port, "/readyz") == (200, "ok\n"))
    wait_for(lambda: agent.status()["gpus"][0]["containers"])
    wait_for(lambda: agent.nvml.health_watch_up)
    assert fetch(port, "/healthz") == (200, "ok\n")
    page = json.loads(fetch(port, "/status")[1])
    assert page["mode"] == "share"
    assert page["node"] == "node-1"
    assert page["resources"][MEM]["healthy"] == 48
    assert page["gpus"][0]["containers"] == [{"container": "default/p[c0]", "resource": MEM, "units": 6}]
    metrics = fetch(port, "/metrics")[1]
    for line in (
        f'gpuagent_devices{{resource="{MEM}",health="healthy"}} 48.0',
        f'gpuagent_registered{{resource="{MEM}"}} 1.0',
        'gpuagent_mode{mode="share"} 1.0',
        f'gpuagent_rpc_duration_seconds_count{{method="Allocate",resource="{MEM}"}} 1.0',
        "gpuagent_health_watch_up 1.0",
    ):
        assert line in metrics
    assert re.search(r"# HELP gpuagent_registrations", metrics)
    code, text = fetch(port, "/nonsense")
    assert code == 404
    assert "/status" in text
    one.kubelet.stop()
    wait_for(lambda: fetch(port, "/readyz")[0] == 503)
    assert "kubelet.sock" in fetch(port, "/readyz")[1] or "tearing down" in fetch(port, "/readyz")[1]
    assert fetch(port, "/healthz")[0] == 200
    one.kubelet.start()


def test_status_as_table_and_as_json(node: MakeNode) -> None:
    """`gpuagent status`: a table with node, mode, GPUs, resources and what holds what; `-o json` the page itself."""
    one = node("1.36", box(2, 24))
    port = free_port()
    one.spawn("--mode", "share", "--http-address", f"127.0.0.1:{port}")
    one.offers(mem=48)
    one.kubelet.admit(pod("p", {MEM: 6}))
    url = f"http://127.0.0.1:{port}"
    assert one.kubelet.wait(lambda: "default/p" in fetch(port, "/status")[1])
    table = command("status", "--url", url)
    assert table.returncode == 0, table.stderr
    told = ("node node-1", "mode share", "2 x NVIDIA A100-SXM4-80GB, 24 GiB each", "6/24 GiB", MEM, "connected")
    for text in (*told, "     default/p[c0] 6 GiB\n"):
        assert text in table.stdout
    assert max(map(len, table.stdout.splitlines())) <= 80
    assert "\x1b" not in table.stdout, "colors are for terminals"
    page = command("status", "-o", "json", "--url", url)
    assert json.loads(page.stdout)["resources"][MEM]["healthy"] == 48
    as_yaml = yaml.safe_load(command("status", "-o", "yaml", "--url", url).stdout)
    assert as_yaml["gpus"] == json.loads(page.stdout)["gpus"]


def test_dry_run_prints_amounts_and_asks_nobody(node: MakeNode) -> None:
    """`gpuagent run --dry-run`: the amounts of every mode as JSON, nothing registered, no socket made."""
    one = node("1.36", box(2, 24))
    done = command("run", *one.flags(), "--dry-run", "--allow-unisolated", env=one.environment())
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    amounts = {mode: {name: n for name, n in view["resources"].items() if n} for mode, view in page["modes"].items()}
    assert amounts == {
        "default": {},
        "share": {MEM: 48},
        "cgpu": {MEM: 48},
        "mps": {MEM: 48},
        "core_mem": {MEM: 48, CORE: 200},
        "dra": {"gpu.gpuagent.io": 2},
        "topology": {WHOLE: 2},
    }
    assert [gpu["uuid"] for gpu in page["gpus"]] == one.uuids
    assert not one.kubelet.registrations
    assert not one.sockets()


def test_no_gpu_is_an_ordinary_node(node: MakeNode) -> None:
    """A driver without GPUs: registered with empty lists, the reason in problems."""
    one = node("1.36", dataclasses.replace(box(1), gpus=()))
    agent = one.run()
    assert one.kubelet.wait(lambda: all(one.kubelet.lists(resource) for resource in ALWAYS))
    one.offers()
    wait_for(lambda: "NoGPUs" in {p["reason"] for p in agent.status()["problems"]})


def test_a_late_driver_is_found(node: MakeNode) -> None:
    """No driver at the start: registered with empty lists, the reason is said with advice; offered when it is there."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    one.simulator.driver(False)
    agent = one.run()
    assert one.kubelet.wait(lambda: all(one.kubelet.lists(resource) for resource in ALWAYS))
    assert one.event("DriverUnavailable", "modprobe nvidia")
    assert "NVIDIA driver" in (agent.unready_because() or "")
    one.simulator.driver(True)
    one.offers(mem=48)
    wait_for(lambda: agent.unready_because() is None)


def known_gpus(node: Node) -> str:
    """The Node's annotation with the GPUs that it is known to have."""
    annotations: dict[str, str] = node.server.node()["metadata"].get("annotations") or {}
    return annotations.get(KNOWN_GPUS_ANNOTATION, "")


def test_a_gpu_that_becomes_smaller_is_not_sold_at_its_former_size(node: MakeNode) -> None:
    """In the same run it leaves the list, and the liveness probe fails; after the restart it has its new size."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    agent = one.run()
    one.offers(mem=48)
    smaller = one.uuids[1]
    wait_for(lambda: smaller in known_gpus(one))
    assert agent.unhealthy_because() is None
    one.simulator.odd(smaller, "memory_mib", 20 * 1024)
    agent.nvml.reread()
    one.offers(mem=24)
    assert one.event("GPUMemoryChanged", f"({smaller}) has 20480 MiB of memory now, and had 24576 MiB")
    assert smaller in (agent.unhealthy_because() or "")
    one.stop(agent)
    agent = one.run()
    one.offers(mem=44)
    assert one.event("GPUMemoryShrunk", f"kubectl annotate node {NODE} {KNOWN_GPUS_ANNOTATION}-")
    assert agent.unhealthy_because() is None
    removed = {"metadata": {"annotations": {KNOWN_GPUS_ANNOTATION: None}}}
    one.server.objects.patch(("nodes", "", NODE), "", removed, strategic=False)
    wait_for(lambda: "GPUMemoryShrunk" not in {p["reason"] for p in agent.status()["problems"]})


def test_a_gpu_that_is_missing_after_a_restart_is_named(node: MakeNode) -> None:
    """A GPU that the last run had and this one has not: it is named, until the operator says that it was removed."""
    one = node("1.36", box(3, 24), labels={MODE_LABEL: "share"})
    agent = one.run()
    one.offers(mem=72)
    gone = one.uuids[1]
    wait_for(lambda: gone in known_gpus(one))
    one.stop(agent)
    one.simulator.driver(False)
    with one.simulator.changed:
        left = [gpu for gpu in one.simulator.gpus if gpu.spec.uuid != gone]
        one.simulator.gpus = [SimulatedGpu(index, gpu.spec, gpu.mig) for index, gpu in enumerate(left)]
    one.simulator.driver(True)
    agent = one.run()
    assert one.event("GPUMissing", f"GPU {gone} at PCI address")
    assert one.event("GPUMissing", f"kubectl annotate node {NODE} {KNOWN_GPUS_ANNOTATION}-")
    one.offers(mem=48)
    removed = {"metadata": {"annotations": {KNOWN_GPUS_ANNOTATION: None}}}
    one.server.objects.patch(("nodes", "", NODE), "", removed, strategic=False)
    wait_for(lambda: "GPUMissing" not in {p["reason"] for p in agent.status()["problems"]})
    wait_for(lambda: one.uuids[0] in known_gpus(one))
    assert gone not in known_gpus(one)


def test_a_hanging_driver_keeps_nothing_else_from_working(node: MakeNode) -> None:
    """A call of the driver hangs after the start: Allocate and registration go on, pods start."""
    one = node("1.36", box(2, 24))
    agent = one.run()
    one.offers(mem=48)
    for function in ("nvmlEventSetWait", "nvmlDeviceGetMemoryInfo", "nvmlInit"):
        one.simulator.hang(function)
    asked = pod("p", {MEM: 6})
    assert one.kubelet.admit(asked)
    one.kubelet.start_container(asked, "c0")
    one.kubelet.restart()
    one.offers(mem=48)
    assert agent.unhealthy_because() is None


def test_a_driver_that_hangs_at_the_start_delays_no_registration(node: MakeNode) -> None:
    """The driver hangs from the start: registered with empty lists all the same, and offered when it answers."""
    one = node("1.36", box(2, 24))
    one.simulator.hang("nvmlInit")
    one.run()
    assert one.kubelet.wait(lambda: all(one.kubelet.lists(resource) for resource in ALWAYS))
    one.simulator.unhang()
    one.offers(mem=48)


@pytest.mark.parametrize("late", [False, True])
def test_without_api_server_nothing_is_waited_for(node: MakeNode, late: bool) -> None:
    """The API server is away at the start: registered all the same, the reason is said; the label's mode is taken when
    it comes back."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    one.server.stop()
    agent = one.run()
    assert one.kubelet.wait(lambda: all(one.kubelet.lists(resource) for resource in ALWAYS))
    wait_for(lambda: "APIServerUnavailable" in {p["reason"] for p in agent.status()["problems"]})
    assert one.server.url.partition("//")[2].partition(":")[0] in (agent.unready_because() or "")
    if late:
        one.server.start()
        one.offers(mem=48)
        wait_for(lambda: agent.unready_because() is None)
