"""The agent's memory when tenants' pods are as large as the API server permits: while it runs, at a restart."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.agent.resting import fields
from bench.node import Node
from bench.result import Results, Say
from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.pods.pod import REJECTED
from gpuagent.domain.sharing.mode import GPU_MEM

BOX, DEVICES = "dgx-a100", 640
RUNNING_MIB, RESTART_MIB = 96.0, 110.0
ANY = "example.com/notes"
EDITS_A_SECOND = 43
SETTLE_S, LONGEST_S = 3.0, 120.0


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB: resident now, and the most since the process began."""

    rss: float
    peak: float


@dataclass(frozen=True, slots=True)
class Load:
    """A load of tenants. `begin` makes the pods; `go_on`, if any, is called repeatedly while memory is sampled."""

    what: str
    begin: Callable[[Node], None]
    go_on: Callable[[Node, int], None] | None = None


def of(node: Node) -> Memory:
    """The agent's memory now."""
    status = fields(node.proc / "status")
    return Memory(status["VmRSS"] / 1024, status["VmHWM"] / 1024)


def measure(results: Results, seconds: float, say: Say, *, quick: bool) -> None:
    """Each load by itself: `seconds` of it under a running agent, then a restart of the agent under it."""
    for load in loads(10 if quick else 1):
        say(f"memory: {load.what}")
        with Node(BOX, "share") as node:
            _start(node)
            time.sleep(SETTLE_S)
            before = of(node)
            load.begin(node)
            _taken(node)
            end, steps, most = time.monotonic() + seconds, 0, 0.0
            while time.monotonic() < end:
                if load.go_on:
                    load.go_on(node, steps)
                time.sleep(1 / EDITS_A_SECOND)
                steps, most = steps + 1, max(most, of(node).rss)
            running = of(node)
            node.stop_agent()
            _start(node)
            _taken(node)
            time.sleep(SETTLE_S)
            again = of(node)
        text = f"{before.rss:.1f} before, {running.rss:.1f} MiB, at most {running.peak:.1f}"
        results.row(f"memory: {load.what}", text, f"< {RUNNING_MIB:.0f} MiB", running.rss < RUNNING_MIB)
        text = f"peak {again.peak:.1f} MiB, then {again.rss:.1f}"
        results.row(f"memory at a restart: {load.what}", text, f"< {RESTART_MIB:.0f} MiB", again.peak < RESTART_MIB)
        results.keep(f"memory: {load.what}", [before.rss, running.rss, running.peak, again.rss, again.peak])


def loads(divisor: int = 1) -> tuple[Load, ...]:
    """Numbers of pods are divided, for a quick run."""
    few, some, many, most = (max(10, number // divisor) for number in (110, 300, 1000, 6000))
    return (
        Load(f"{few} running pods, 250 kB of annotations each", lambda node: _run(node, few, 250_000)),
        Load(f"{some} failed pods of 262 kB", lambda node: fail(node, some, 262_000)),
        Load(f"{many} failed pods of 200 kB", lambda node: fail(node, many, 200_000)),
        Load(f"{most} failed pods without annotations", lambda node: fail(node, most, 0)),
        Load(
            f"100 pending pods, 250 KiB of V2 text edited {EDITS_A_SECOND} times a second",
            lambda node: _pend(node, 100),
            _edit,
        ),
        Load("20 pending pods of 5,000 containers", _many_containers),
    )


def _start(node: Node) -> None:
    node.start_agent()
    node.registered()
    node.offers(GPU_MEM, DEVICES, LONGEST_S)


def _taken(node: Node) -> None:
    """Wait until the agent has read what is there: a pod made now is admitted as one that the watch has shown."""
    name = f"last-{time.monotonic_ns()}"
    node.run_pod(name, {GPU_MEM: 1})
    wanted = f'pod="{name}"'.encode()
    end = time.monotonic() + LONGEST_S
    while wanted not in node.page("metrics"):
        if time.monotonic() > end:
            raise node.fail(f"{name} is not on the page of metrics")
        time.sleep(0.1)
    node.end(name)


def _run(node: Node, count: int, size: int) -> None:
    for n in range(count):
        node.run_pod(f"run-{n}", {GPU_MEM: 1}, {ANY: "x" * size})


def fail(node: Node, count: int, size: int) -> None:
    """Fail pods as kubelet's refusal does, which need no place on the node then.

    The Node reports a kubelet before 1.34, because for those alone the agent lists pods that failed before its start.
    """
    node.api.patch_node_status({"nodeInfo": {"kubeletVersion": "v1.33.0"}})
    words = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
    status = {"phase": "Failed", "reason": REJECTED, "message": f"{words} {GPU_MEM}, which is unexpected"}
    for n in range(count):
        node.api.create_pod(f"failed-{n}", {GPU_MEM: "1"}, annotations={ANY: "x" * size} if size else {})
        node.api.patch_pod(f"failed-{n}", {"status": status}, subresource="status")


def _pend(node: Node, count: int) -> None:
    for n in range(count):
        node.api.create_pod(f"pending-{n}", {GPU_MEM: "1"}, annotations={MEMORY_ANNOTATION: _v2(0)})


def _edit(node: Node, step: int) -> None:
    patch = {"metadata": {"annotations": {MEMORY_ANNOTATION: _v2(step)}}}
    node.api.patch_pod(f"pending-{step % 100}", patch)


def _v2(step: int) -> str:
    return f'{{"0":{{"{step % 8}":1}}}}' + " " * (250 * 1024)


def _many_containers(node: Node) -> None:
    limits = {GPU_MEM: "1"}
    for n in range(20):
        containers = [{"name": f"container-{c}", "image": "x", "resources": {"limits": limits}} for c in range(5000)]
        body = {"metadata": {"name": f"many-{n}"}, "spec": {"nodeName": node.api.node_name, "containers": containers}}
        node.api.objects.create("pods", "default", body | {"status": {"phase": "Pending"}})
