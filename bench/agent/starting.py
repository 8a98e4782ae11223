"""From exec to registered: the time that a new agent needs at its start."""

import time
from collections.abc import Callable

from bench.node import RESOURCES, Node
from bench.result import Results, Say
from gpuagent.domain.sharing.mode import GPU_MEM

BOX, DEVICES = "dgx-a100", 640
BAR_MS = 500.0
GRACE_MS = 10_000.0
"""`terminationGracePeriodSeconds` of the chart, after which kubelet kills the agent."""


def measure(results: Results, runs: int, say: Say) -> None:
    """All kinds of starts."""
    _starts(results, runs, say, "first start on a node", lambda _: None)
    _starts(results, runs, say, "API server refuses connections", lambda node: node.api.stop(), offers=False)
    _starts(results, runs, say, "API server accepts and is silent", lambda node: node.api.pause(), offers=False)
    _restarts(results, runs, say)


def _starts(  # noqa: PLR0913 (by name)
    results: Results, runs: int, say: Say, how: str, prepare: Callable[[Node], object], *, offers: bool = True
) -> None:
    say(f"start: {how}")
    times: dict[str, list[float]] = {}
    for _ in range(runs):
        with Node(BOX, "share", fresh=True) as node:
            prepare(node)
            _once(node, times, offers=offers)
    _rows(results, how, times)


def _restarts(results: Results, runs: int, say: Say) -> None:
    how = "restart, mode stored"
    say(f"start: {how}")
    times: dict[str, list[float]] = {}
    ends: list[float] = []
    with Node(BOX, "share") as node:
        _once(node, {}, offers=True)
        for _ in range(runs):
            began = time.monotonic()
            node.stop_agent()
            ends.append((time.monotonic() - began) * 1000)
            _once(node, times, offers=True)
    _rows(results, how, times)
    results.reaction("SIGTERM to the agent's end", "start: SIGTERM to the end ms", ends, GRACE_MS)


def _once(node: Node, times: dict[str, list[float]], *, offers: bool) -> None:
    node.start_agent()
    node.registered()
    if offers:
        node.offers(GPU_MEM, DEVICES)
    lists = [[one for one in node.kubelet.lists(resource) if one.time >= node.started] for resource in RESOURCES]
    asked = [one.time for one in node.kubelet.registrations if one.time >= node.started]
    offered = [one.time for one in node.kubelet.lists(GPU_MEM) if one.time >= node.started and one.message.devices]
    moments = {
        "first Register": min(asked),
        "last Register": max(asked),
        "registered": max(*(of[0].time for of in lists), *asked),
        **({"devices": offered[0]} if offered else {}),
    }
    for name, moment in moments.items():
        times.setdefault(name, []).append((moment - node.started) * 1000)


def _rows(results: Results, how: str, times: dict[str, list[float]]) -> None:
    kept = {name: results.keep(f"start, {how}: {name}", values) for name, values in times.items()}
    got = kept["registered"]
    value = f"p50 {got['p50']:.0f} ms, worst {got['max']:.0f} ms of {got['count']:.0f}"
    if "devices" in kept:
        value += f"; devices advertised {kept['devices']['p50']:.0f} ms"
    what = f"start to registered: {how}"
    results.row(what, value, f"p50 < {BAR_MS:.0f} ms", got["p50"] < BAR_MS)
