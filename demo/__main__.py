"""The walk: shares, a refusal, a mode switch under running pods, a GPU that fails and comes back, and a job.

With --long also placement, a GPU that is lost, isolation, claims, what a removed label does, and links.
"""

import argparse
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.node import DemoNode
from gpuagent.pages import topology_table
from gpuagent.system.output import exit_with
from gpuagent.system.stop_signal import StopSignal
from standin.kubelet.pods import Granted

PORT = 9445
EXAMPLES = Path(__file__).parents[1] / "examples"
WIDTH = 80


def main() -> int:
    """Walk once; then serve the metrics page, except with `--once`. The exit code: 1 if a step did not happen."""
    parser = argparse.ArgumentParser(
        prog="make demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--once", action="store_true", help="end after the walk")
    parser.add_argument("--long", action="store_true", help="walk through everything")
    parser.add_argument("--port", type=int, default=PORT, help="of the agent's HTTP pages (default: %(default)s)")
    options = parser.parse_args()
    try:
        _walk_both(options)
    except RuntimeError as err:
        print(f"demo: {err}", file=sys.stderr)
        return 1
    return 0


def _walk_both(options: argparse.Namespace) -> None:
    note("A node with eight 80-GB A100 GPUs. The GPUs, kubelet and the API server are stand-ins; the agent is real.")
    with DemoNode("dgx-a100", options.port) as node:
        walk(node, long=options.long)
    note("Another node: a DGX-1 with eight V100 GPUs, each joined by NVLink to four others, by one or two links.")
    with DemoNode("dgx1-v100", options.port) as node:
        nvlink(node, long=options.long)
        print(f"\nThat was the walk.{'' if options.long else ' make demo LONG=1 shows more.'}")
        if not options.once:
            stop = StopSignal()
            note("The agent stays up until Ctrl-C. Open its page, or look at the cluster from another terminal:")
            print(f"    {node.url}/\n    .venv/bin/kubectl-inspect-cgpu --kubeconfig {node.kubeconfig}", flush=True)
            stop.wait()


def walk(node: DemoNode, *, long: bool) -> None:
    """Every step says what happens, does it, and shows the node's table."""
    if long:
        step("No label yet: mode default. GPUs are whole; --exclusive-resource has the agent serve nvidia.com/gpu.")
        until(node, offers(node, "nvidia.com/gpu", 8))
        show(node)
    switch(node, shares(node, long=long))
    faults(node, long=long)
    if not long:
        return
    limits(node)
    isolation(node)
    claims(node)

    step("The label is removed: the last mode stays in force. What the node's Events say of all this:")
    node.api.label_node({"ack.node.gpu.schedule": None})
    until(node, lambda _: any(event["reason"] == "ModeLabelRemoved" for event in node.api.events()))
    for event in node.api.events():
        print(f"    {event['type']:<8} {event['reason']:<20} {textwrap.shorten(event['message'], 45)}")


def shares(node: DemoNode, *, long: bool) -> list[str]:
    """Pods share GPUs, and one that fits on none is refused; the names of those that run."""
    pods = ["chat", "embed", "rank"]
    step("The operator labels the node ack.node.gpu.schedule=share. GPUs are now advertised by the GiB, 80 each.")
    node.api.label_node({"ack.node.gpu.schedule": "share"})
    until(node, offers(node, "aliyun.com/gpu-mem", 640))
    if long:
        show(node)
    else:
        show_resources(node)

    step("Three pods ask for 10, 20 and 50 GiB. Placement is binpack: they fill one GPU before the next is touched.")
    for name, amount in zip(pods, (10, 20, 50), strict=True):
        run(node, name, mem=amount)
    until(node, holds(pods))
    show(node)

    if long:
        step("Placement spread, for pods from now on: the next two get GPUs of their own.")
        node.api.label_node({"ack.node.gpu.placement": "spread"})
        until(node, lambda page: page["placement"] == "spread")
        pods += ["web-1", "web-2"]
        for name in pods[3:]:
            run(node, name, mem=8)
        until(node, holds(pods))
        show(node)

    step("A pod asks for 100 GiB. The node has more free, but no GPU has 100: refused, with a text for its owner.")
    admission = node.run_pod("too-big", mem=100)
    print(textwrap.indent(textwrap.fill(admission.failed, WIDTH - 4), "    "))
    return pods


def switch(node: DemoNode, pods: Sequence[str]) -> None:
    """The mode changes under these running pods."""
    held = sum(bool(gpu["containers"]) for gpu in node.status()["gpus"])
    step("The label changes to topology while pods run. Free GPUs change hands at once, held ones when their pods end.")
    node.api.label_node({"ack.node.gpu.schedule": "topology", "ack.node.gpu.placement": None})
    until(node, offers(node, "aliyun.com/gpu", 8 - held))
    show(node)

    step("A training pod takes two whole GPUs meanwhile, and the old pods end one by one.")
    run(node, "train", gpus=2)
    for name in pods:
        node.end_pod(name)
    until(node, offers(node, "aliyun.com/gpu", 8))
    show(node)


def faults(node: DemoNode, *, long: bool) -> None:
    """GPUs fail and come back."""
    step(
        "GPU 7 reports XID 79, and the driver hands the event to a thread that waits for another GPU. The agent takes"
        " the GPU from the event: its neighbors go on serving."
    )
    node.inject(fault="xid", gpu=7, code=79, any_waiter=True)
    until(node, offers(node, "aliyun.com/gpu", 7))
    show(node)

    step("GPU 7 was reset: the driver asks for nothing any more. After --settle (1 s here) it is advertised.")
    node.inject(fault="action", gpu=7, value=0)
    until(node, offers(node, "aliyun.com/gpu", 8))
    if not long:
        show_resources(node)
        return
    show(node)

    step("GPU 6 falls off the bus without an XID. The agent detects it within 5 s.")
    node.inject(fault="lose", gpu=6, silent=True)
    until(node, offers(node, "aliyun.com/gpu", 7))
    show(node)
    node.inject(fault="restore", gpu=6)


def limits(node: DemoNode) -> None:
    """The driver's own limit of memory holds for all programs of a pod."""
    step(
        "Mode cgpu promises isolation of memory. NVIDIA's driver limits it from version 615 on (here a simulated one)."
        " The agent's helper for it starts, and the GPUs are advertised by the GiB:"
    )
    node.api.label_node({"ack.node.gpu.schedule": "cgpu"})
    node.end_pod("train")
    node.limited.start_helper()
    until(node, offers(node, "aliyun.com/gpu-mem", 640))
    show_resources(node)

    step(
        "A pod asks for 10 GiB. Its limit is in the driver before its container runs. Two programs in it take what they"
        " can get:"
    )
    run(node, "greedy", mem=10)
    for number in ("first", "second"):
        print(f"    the {number} {node.take_all('greedy')}", flush=True)
    node.end_pod("greedy")


def isolation(node: DemoNode) -> None:
    """A mode that requires isolation: without a layer, with one, and when the layer ends."""
    step("Mode core_mem promises isolation of memory and compute. No layer isolates here: 0 is advertised.")
    node.api.label_node({"ack.node.gpu.schedule": "core_mem"})
    until(node, settled("core_mem"))
    show_resources(node)

    step(
        "NVIDIA MPS is installed (a stand-in of its control program). The agent starts a daemon for each GPU, and"
        " advertises again."
    )
    node.install_mps()
    until(node, offers(node, "aliyun.com/gpu-mem", 640))
    for name, mem, core in (("fast", 10, 30), ("large", 40, 50)):
        caps(node, name, mem=mem, core=core)
    show(node)

    step("The MPS daemons die while their program is replaced: 0 is advertised, and what runs is not affected.")
    node.remove_mps()
    until(node, offers(node, "aliyun.com/gpu-mem", 0))
    show(node)

    step(
        "The program is there again: the agent starts the daemons and advertises again. What kubectl inspect cgpu"
        " shows:"
    )
    node.install_mps()
    until(node, offers(node, "aliyun.com/gpu-mem", 640))
    node.inspect()


def claims(node: DemoNode) -> None:
    """The node goes over to Dynamic Resource Allocation and back, under running pods."""
    step(
        "Mode dra, for Kubernetes 1.36 and later: the GPUs become devices in a ResourceSlice, which the stock scheduler"
        " shares out. The GPU of the two pods has a taint until they end."
    )
    node.api.label_node({"ack.node.gpu.schedule": "dra"})
    until(node, lambda _: [bool(device.get("taints")) for device in node.devices()].count(True) == 1)
    print("\n".join(map(device_line, node.devices())), flush=True)

    step("A pod with a claim from the template of examples/claims/core-mem.yaml starts:")
    template, granted = node.run_claim("claimed", EXAMPLES / "claims" / "core-mem.yaml")
    print(textwrap.indent(template, "    "))
    print(f"    claimed: NVIDIA_VISIBLE_DEVICES names {visible_gpus(node, granted)}, {mps_limits(granted)}\n")
    until(node, lambda page: any("claim" in one for gpu in page["gpus"] for one in gpu["containers"]))
    print(node.table().partition("isolation by")[0], flush=True)

    step("The label goes back to core_mem. A GPU has units again 10 s after the slice is gone, or when its claim is.")
    node.api.label_node({"ack.node.gpu.schedule": "core_mem"})
    until(node, offers(node, "aliyun.com/gpu-mem", 560))
    print(node.table().partition("isolation by")[0], flush=True)
    node.api.delete_pod("claimed", grace_s=None)
    until(node, offers(node, "aliyun.com/gpu-mem", 640))


def device_line(device: dict[str, Any]) -> str:
    """A device of a ResourceSlice in short."""
    amounts = ", ".join(f"{name} {value['value']}" for name, value in device["capacity"].items())
    taints = "".join(f"   taint {taint['key']}" for taint in device.get("taints") or ())
    return f"{device['name']}   {amounts}   isolation {device['attributes']['isolation']['string']}{taints}"


def nvlink(node: DemoNode, *, long: bool) -> None:
    """Whole GPUs as sets: by links, and beside their job's."""
    node.api.label_node({"ack.node.gpu.schedule": "topology"})
    until(node, offers(node, "aliyun.com/gpu", 8))
    if long:
        step("Mode topology. What joins the GPUs, how fast it is, and the best set of each size (gpuagent topology):")
        print(topology_table.render(node.topology()), flush=True)

    step(
        "A notebook takes one GPU. Then two pods of one job come, with a GPU each: their GPUs have a double link."
        " Pod bert gets four that are all linked."
    )
    run(node, "notebook", gpus=1)
    job = {"gpu-topology": "pytorch-dist-nccl", "gpu-topology-replica": "2"}
    for name in ("master", "worker"):
        run(node, f"pytorch-dist-nccl-{name}-0", labels=job, gpus=1)
    run(node, "bert", gpus=4)
    until(node, lambda _: sum(bool(gpu["holders"]) for gpu in node.topology()["gpus"]) == 7)
    print(node.table().partition("RESOURCE")[0].rstrip(), flush=True)


def note(text: str) -> None:
    print(f"\n{textwrap.fill(text, WIDTH)}", flush=True)


_number = 0


def step(text: str) -> None:
    global _number  # noqa: PLW0603 (a script's counter)
    _number += 1
    print("\n" + textwrap.fill(f"=== {_number}. {text}", WIDTH, subsequent_indent="    ") + "\n", flush=True)


def show(node: DemoNode) -> None:
    print(node.table(), flush=True)


def show_resources(node: DemoNode) -> None:
    """The lower part of the table."""
    print("RESOURCE" + node.table().partition("RESOURCE")[2], flush=True)


def run(node: DemoNode, name: str, labels: Mapping[str, str] | None = None, **limits: int) -> None:
    admission = node.run_pod(name, labels, **limits)
    if not admission:
        raise RuntimeError(f"pod {name} was not admitted: {admission.failed}")
    print(f"    {name}: NVIDIA_VISIBLE_DEVICES names {visible_gpus(node, admission.containers['main'])}")


def visible_gpus(node: DemoNode, granted: Granted) -> str:
    """The GPUs of a container by number: four UUIDs fit no line."""
    numbers = {gpu["uuid"]: str(gpu["index"]) for gpu in node.status()["gpus"]}
    return f"GPU {', '.join(numbers[uuid] for uuid in granted.env['NVIDIA_VISIBLE_DEVICES'].split(','))}"


def caps(node: DemoNode, name: str, **limits: int) -> None:
    """A pod in an isolating mode, and the limits its container gets."""
    admission = node.run_pod(name, None, **limits)
    if not admission:
        raise RuntimeError(f"pod {name} was not admitted: {admission.failed}")
    print(f"    {name}: {mps_limits(admission.containers['main'])}")


def mps_limits(granted: Granted) -> str:
    """The limits of a container that uses MPS."""
    env = granted.env
    given = {key.removeprefix("CUDA_MPS_"): value for key, value in sorted(env.items()) if key.startswith("CUDA_MPS_")}
    given.pop("PIPE_DIRECTORY")
    return ", ".join(f"{key}={value}" for key, value in given.items())


def offers(node: DemoNode, resource: str, healthy: int) -> Callable[[dict[str, Any]], bool]:
    """That many are healthy, for the agent and for kubelet, which admits pods by the list that it has."""
    return lambda page: page["resources"][resource]["healthy"] == healthy == (node.kubelet.allocatable(resource) or 0)


def holds(pods: Collection[str]) -> Callable[[dict[str, Any]], bool]:
    return lambda page: sum(len(gpu["containers"]) for gpu in page["gpus"]) == len(pods)


def settled(mode: str) -> Callable[[dict[str, Any]], bool]:
    return lambda page: page["mode"] == mode and page["switch"]["phase"] != "settling"


def until(node: DemoNode, ready: Callable[[dict[str, Any]], bool]) -> None:
    if not node.wait(lambda: ready(node.status())):
        raise RuntimeError(
            f"this did not happen; the node shows:\n{node.table()}\n{node.log.read_text(encoding='utf-8')}"
        )


if __name__ == "__main__":
    exit_with("demo", main)
