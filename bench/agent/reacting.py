"""The time until kubelet has the right list again: after a label change, a GPU fault, a restart, a lost connection."""

import http.client
import json
import ssl
import time
from collections.abc import Callable
from typing import Any

from bench.node import NODE, RESOURCES, Node
from bench.result import Results, Say
from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE, MODE_LABEL
from gpuagent.kubelet.deviceplugin.device_feed import MIN_GAP_S
from gpuagent.simulation.fault_socket import inject
from standin.kubelet.state import Received

BOX, GPUS, DEVICES = "dgx-a100", 8, 640
BAR_MS = 100.0
SILENT_BAR_MS = 5000.0
RESTART_BAR_MS, LOST_BAR_MS, EXIT_BAR_MS = 500.0, 3000.0, 2000.0
XID = 79
CLOSE_S = 0.05


def labels(results: Results, switches: int, say: Say) -> None:
    """Switch to and fro between share and topology."""
    say(f"label changes: {switches}")
    times = []
    with Node(BOX, "share") as node:
        _up(node)
        old, new = (GPU_MEM, DEVICES), (GPU_WHOLE, GPUS)
        for number in range(switches):
            _rest(node)
            began = time.monotonic()
            _patch_label(node, "topology" if number % 2 == 0 else "share")
            times.append(_heard(node, old[0], began, lambda one: not _healthy(one)))
            node.offers(*new)
            if not node.kubelet.wait(lambda gone=old[0]: node.count(gone) == 0):  # type: ignore[misc]
                raise node.fail("the former mode's devices stay in kubelet's list")
            old, new = new, old
    results.reaction("node label to first new list", "label", times, BAR_MS)


def faults(results: Results, agents: int, gpus: int, say: Say) -> None:
    """An XID on one GPU after the other, then two in quick succession."""
    say(f"XIDs: {agents} x {gpus} GPUs")
    alone: list[float] = []
    close: list[float] = []
    for _ in range(agents):
        with Node(BOX, "share") as node:
            _up(node)
            for gpu in range(gpus - 1):
                _rest(node)
                alone.append(_break(node, _xid(gpu)))
            time.sleep(CLOSE_S)
            close.append(_break(node, _xid(gpus - 1)))
    results.reaction("XID to Unhealthy", "xid", alone, BAR_MS)
    results.reaction(f"XID {CLOSE_S * 1000:.0f} ms after another", "xid after another", close)


def silent_losses(results: Results, gpus: int, say: Say) -> None:
    """One GPU after the other falls off the bus without an XID."""
    say(f"GPUs lost without an XID: {gpus}")
    with Node(BOX, "share") as node:
        _up(node)
        times = []
        for gpu in range(gpus):
            _rest(node)
            times.append(_break(node, {"fault": "lose", "gpu": gpu, "silent": True}))
    results.reaction("GPU lost without an XID to Unhealthy", "silent loss", times, SILENT_BAR_MS)


def connections(results: Results, runs: int, say: Say) -> None:
    """Kubelet restarts, then closes one plugin's connection; finally the agent is stopped."""
    say(f"lost connections: {runs}")
    restarts, losses, exits = [], [], []
    with Node(BOX, "share") as node:
        for _ in range(runs):
            _up(node)
            node.kubelet.stop()
            began = time.monotonic()
            node.kubelet.start()
            restarts.append(max(_heard(node, resource, began, lambda _: True) for resource in RESOURCES))
            node.offers(GPU_MEM, DEVICES)
            began = time.monotonic()
            node.kubelet.close_connection(GPU_MEM)
            losses.append(_heard(node, GPU_MEM, began, lambda _: True))
            began = time.monotonic()
            node.stop_agent()
            exits.append((time.monotonic() - began) * 1000)
    results.reaction("kubelet's restart to all lists", "kubelet restart", restarts, RESTART_BAR_MS)
    results.reaction("connection lost to next list", "connection lost", losses, LOST_BAR_MS)
    results.reaction("SIGTERM to exit", "exit", exits, EXIT_BAR_MS)


def _up(node: Node) -> None:
    node.start_agent()
    node.registered()
    node.offers(GPU_MEM, DEVICES)
    end = time.monotonic() + 10
    while b"gpuagent_health_watch_up 1.0" not in node.page("metrics"):
        if time.monotonic() > end:
            raise node.fail("no health watch")
        time.sleep(0.05)


def _xid(gpu: int) -> dict[str, Any]:
    return {"fault": "xid", "gpu": gpu, "code": XID}


def _break(node: Node, fault: dict[str, Any]) -> float:
    """Milliseconds from the injection of a fault to the list that shows one more GPU unhealthy."""
    sound = node.count(GPU_MEM, "Healthy") or 0
    began = time.monotonic()
    inject(node.root / "s" / "simulator.sock", fault)
    return _heard(node, GPU_MEM, began, lambda one: _healthy(one) < sound)


def _heard(node: Node, resource: str, began: float, news: Callable[[Received], bool]) -> float:
    """Milliseconds from `began` to the arrival of the list that is the news."""

    def found() -> list[Received]:
        return [one for one in node.kubelet.lists(resource)[-4:] if one.time >= began and news(one)]

    if not node.kubelet.wait(lambda: bool(found())):
        raise node.fail(f"no new list of {resource}")
    return (found()[0].time - began) * 1000


def _healthy(one: Received) -> int:
    return sum(device.health == "Healthy" for device in one.message.devices)


def _rest(node: Node) -> None:
    """Wait until the least time between two lists on a stream has passed, to keep it out of the measurement."""
    last = max((one.time for one in map(node.last, RESOURCES) if one), default=0.0)
    time.sleep(max(0.0, last + MIN_GAP_S + 0.15 - time.monotonic()))


def _patch_label(node: Node, mode: str) -> None:
    tls = ssl.create_default_context(cafile=node.authority)
    connection = http.client.HTTPSConnection(node.api.url.removeprefix("https://"), timeout=5, context=tls)
    body = json.dumps({"metadata": {"labels": {MODE_LABEL: mode}}})
    connection.request("PATCH", f"/api/v1/nodes/{NODE}", body, {"Content-Type": "application/merge-patch+json"})
    if connection.getresponse().status != http.client.OK:
        raise node.fail("the stand-in API server refused the label")
    connection.close()
