"""`python -m bench.soak --minutes 30`: run a node with hostile pods, and check whether the agent's resources grow.

Pods come ten a second, a third of them with annotations by schedulers, good, wrong and junk of up to 250 kB. Watches
break and expire, kubelet restarts, the placement flips, metrics and status are read. A row each minute, and rules at
the end; the exit code is 1 where one is broken. One rule is that each container has what was promised, as `simworld`
checks it.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bench.agent.resting import fields, ticks
from bench.node import BenchError, Node, compile_everything
from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.pod import REJECTED
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, GPU_MEM, PLACEMENT_LABEL
from gpuagent.system.output import exit_with
from simworld.recorded import STORY, RecordedNode
from standin.api.refusal import Refusal
from standin.kubelet.pods import Container, Granted, Pod, StartError

BOX, DEVICES, GPUS = "dgx-a100", 640, 8
RUNNING, FAILED = 110, 60
"""Pods that run at a time, as many as kubelet allows, and failed ones that stay."""
MOST_MIB, SLACK_MIB, SLACK = 96.0, 2.0, 0.02
TREND = 1.5
WARM_MIN = 5
RATE = 10.0
"""Pods a second."""
JUNK_BYTES = 250_000
WAIT_S = 60.0

_INDEXES = (*"0123456789", "00", "-1", " 1", "1e3", "²", "", "10000", "9" * 5000, "GPU-x")
_AMOUNTS = ("0", "1", "4", "-1", "4.0", "4e0", "1e999", "true", "null", "NaN", '"4"', str(2**64), "[4]", "{}", "")
_JUNK = ("x", " ", "[", '{"0":', "9", "😀", "\\u0000", "\x1b[31m", '{"0":{"1":4}}', "é")


@dataclass(slots=True)
class Minute:
    """The counts and samples of one minute."""

    admitted: int = 0
    refused: int = 0
    ms: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    ticks: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def rss(self) -> float:
        return statistics.median(self.rss_mib)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.ms)


class Soak:
    """One node and the events on it."""

    def __init__(self, node: Node, seed: int) -> None:
        self._node = node
        self._rng = random.Random(seed)  # noqa: S311 - the same every time is the point
        self._running: deque[Pod] = deque()
        self._failed: deque[str] = deque()
        self._number = 0
        self._placement = "binpack"
        self.promises = RecordedNode("soak")

    def pod(self, now: Minute) -> None:
        """Add a pod, and remove one if there are too many."""
        while len(self._running) >= RUNNING:
            self._end(self._running.popleft())
        self._number += 1
        name, units = f"soak-{self._number}", self._rng.choice((1, 1, 2, 4, 8))
        body = self._body(name, units)
        made = self._node.api.objects.create("pods", "default", body)
        pod = Pod(name, uid=made["metadata"]["uid"], containers=(Container("main", {GPU_MEM: units}),))
        self._record_pod(pod, {"phase": "Pending"})
        began = time.monotonic()
        admission = self._node.kubelet.admit(pod)
        now.ms.append((time.monotonic() - began) * 1000)
        if admission:
            now.admitted += 1
            with suppress(StartError):  # refused at its start: kubelet tries again, and the pod lives
                self._record_start(pod, self._node.kubelet.start_container(pod, "main"))
                self._status(name, {"phase": "Running"})
            self._running.append(pod)
        else:
            now.refused += 1
            refusal = {"phase": "Failed", "reason": REJECTED, "message": admission.failed}
            self._record_pod(pod, refusal)
            self._status(name, refusal)
            self._failed.append(name)
            while len(self._failed) > FAILED:
                self._delete(self._failed.popleft())

    def _body(self, name: str, units: int) -> dict[str, object]:
        spelled = self._rng.choice((str(units), str(units), f"{units}e0", f"{units * 1000}m"))
        labels = {GPU_COUNT_LABEL: self._rng.choice(("2", "0", "x", "9999"))} if self._rng.random() < 0.05 else {}
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True, "uid": "set", "name": "set"}
        return {
            "metadata": {
                "name": name,
                "labels": {"app": "soak", **labels},
                "annotations": self._annotations(units),
                "ownerReferences": [owner] if self._rng.random() < 0.5 else [],
            },
            "spec": {
                "nodeName": self._node.api.node_name,
                "containers": [{"name": "main", "image": "work", "resources": {"limits": {GPU_MEM: spelled}}}],
            },
            "status": {"phase": "Pending"},
        }

    def _annotations(self, units: int) -> dict[str, str]:
        rng, gpu = self._rng, self._rng.randrange(GPUS)
        kind = rng.random()
        if kind < 0.1:  # good
            return {an.MEMORY_ANNOTATION: an.shares_text(an.Shares({0: {gpu: units}}))}
        if kind < 0.15:
            stamp = time.time_ns()
            return an.assumed_texts(an.Assumed(gpu, units, 80, stamp, assigned=False))
        if kind < 0.25:  # wrong
            rows = ",".join(f'"{rng.choice(_INDEXES)}":{rng.choice(_AMOUNTS)}' for _ in range(rng.randrange(4)))
            return {rng.choice(an.KEYS): f'{{"{rng.choice(_INDEXES)}":{{{rows}}}}}'}
        if kind < 0.35:  # junk
            piece = rng.choice(_JUNK)
            text = piece * (rng.randrange(JUNK_BYTES) // len(piece.encode()))
            return {rng.choice((*an.KEYS, "example.com/notes")): text}
        return {}

    def _record_pod(self, pod: Pod, status: dict[str, str]) -> None:
        asks = [{"name": "main", "asks": pod.container("main").limits, "sets": ()}]
        # Most decisions here are wrong or junk, so the agent chooses: what was decided is not checked.
        known = {"uid": pod.uid, "name": pod.name, "node": "soak", "annotations": {}, "containers": asks, "init": ()}
        now = {"reason": "", "message": "", **status, "gone": False, "listed": False}
        self._record("pod", **known, **now)

    def _record_start(self, pod: Pod, granted: Granted) -> None:
        resources = {resource: {"ids": ids, "env": granted.env} for resource, ids in granted.ids.items()}
        self._record("given", uid=pod.uid, container="main", resources=resources)
        started = {"uid": pod.uid, "container": "main", "env": granted.env}
        self._record("running", started=[started], ended=[])

    def _record(self, kind: str, **line: object) -> None:
        self.promises.read([{"at": time.monotonic(), "kind": kind, **line}])

    def _end(self, pod: Pod) -> None:
        self._record("running", started=[], ended=[(pod.uid, "main")])
        self.promises.forget(pod.uid)
        self._status(pod.name, {"phase": "Succeeded"})
        self._node.kubelet.remove(pod)
        self._delete(pod.name)

    def _status(self, name: str, status: dict[str, str]) -> None:
        self._node.api.patch_pod(name, {"status": status}, subresource="status")

    def _delete(self, name: str) -> None:
        with suppress(Refusal):  # the agent has deleted it
            self._node.api.delete_pod(name)

    # Other events

    def drop_watches(self) -> None:
        self._node.api.drop_watches()

    def expire(self) -> None:
        self._node.api.expire()
        self._node.api.drop_watches()

    def flip(self) -> None:
        self._placement = "spread" if self._placement == "binpack" else "binpack"
        self._node.api.label_node({PLACEMENT_LABEL: self._placement})

    def restart_kubelet(self) -> None:
        at = time.monotonic()
        self._node.kubelet.restart()
        self._node.kubelet.readmit()

        def back() -> bool:
            last = self._node.last(GPU_MEM)
            return last is not None and last.time >= at and self._node.count(GPU_MEM, "Healthy") == DEVICES

        if not self._node.kubelet.wait(back, WAIT_S):
            raise self._node.fail("the agent did not register again after kubelet restarted")

    def read_pages(self) -> None:
        for page in ("metrics", "status", "topology"):
            self._node.page(page)


def soak(it: Soak, node: Node, minutes: int, rate: float, say: Callable[[str], None]) -> list[Minute]:
    """Run it; one row for each minute."""
    faults: tuple[tuple[float, Callable[[], None]], ...] = (
        (15, it.read_pages),
        (20, it.drop_watches),
        (31, it.flip),
        (47, it.expire),
        (75, it.restart_kubelet),
    )
    began = time.monotonic()
    due = {act: began + every_s for every_s, act in faults}
    rows: list[Minute] = []
    say(HEAD)
    for number in range(minutes):
        now, until = Minute(), began + (number + 1) * 60
        sampled, before, next_at = 0.0, ticks(node.proc), time.monotonic()
        while (at := time.monotonic()) < until:
            it.pod(now)
            for every_s, act in faults:
                if at >= due[act]:
                    due[act] = at + every_s
                    now.faults.append(act.__name__)
                    act()
            if at - sampled >= 1:
                sampled = at
                _sample(node, now)
            next_at += 1 / rate
            time.sleep(max(0.0, next_at - time.monotonic()))
        if not it.promises.history.broken:
            del it.promises.history.entries[:-STORY]
        now.ticks = ticks(node.proc) - before
        rows.append(now)
        say(row(number + 1, now))
    return rows


def _sample(node: Node, now: Minute) -> None:
    status = fields(node.proc / "status")
    now.rss_mib.append(status["VmRSS"] / 1024)
    now.threads.append(int(status["Threads"]))
    now.files.append(sum(1 for _ in (node.proc / "fd").iterdir()))


HEAD = "minute  admitted  refused  RSS MiB  threads  files  p50 ms  p99 ms  CPU %  faults"


def row(number: int, now: Minute) -> str:
    ms = sorted(now.ms)
    percent = now.ticks / os.sysconf("SC_CLK_TCK") / 60 * 100
    return (
        f"{number:6}  {now.admitted:8}  {now.refused:7}  {now.rss:7.1f}  {min(now.threads):7}  {min(now.files):5}"
        f"  {now.median_ms:6.1f}  {ms[len(ms) * 99 // 100]:6.0f}  {percent:5.1f}  {len(now.faults)}"
    )


def broken(rows: Sequence[Minute], rate: float = RATE) -> list[str]:
    """The rules that were broken, in words; none where nothing grows."""
    if len(rows) < 3:
        return ["too short: three minutes or more are needed"]
    warm = min(WARM_MIN, len(rows) // 2) - 1
    then, last = rows[warm], rows[-1]
    found = []
    if (reached := per_second(rows)) < rate / 2:
        found.append(f"{reached:.1f} pods came each second, and {rate:g} were wanted: the machine is too slow")
    most = then.rss + max(SLACK_MIB, then.rss * SLACK)
    if last.rss > most:
        found.append(f"memory grew from {then.rss:.1f} MiB in minute {warm + 1} to {last.rss:.1f} in the last one")
    if (peak := max(max(one.rss_mib) for one in rows)) >= MOST_MIB:
        found.append(f"resident memory was {peak:.1f} MiB, and {MOST_MIB:.0f} is the bar")
    for what, a, b in (("threads", then.threads, last.threads), ("open files", then.files, last.files)):
        if min(b) > min(a):
            found.append(f"{what}: {min(a)} in minute {warm + 1}, {min(b)} in the last one")
    half = (len(rows) - warm) // 2
    early, late = (statistics.median(one.median_ms for one in part) for part in (rows[warm:-half], rows[-half:]))
    if late > early * TREND:
        found.append(f"the median admission took {early:.1f} ms in the first half and {late:.1f} ms in the second")
    return found


def per_second(rows: Sequence[Minute]) -> float:
    """Pods that came, admitted and refused."""
    return sum(one.admitted + one.refused for one in rows) / len(rows) / 60


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--rate", type=float, default=RATE, help="pods a second at most (default: 10)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    compile_everything()
    try:
        with Node(BOX, "share") as node:
            node.start_agent()
            node.registered()
            node.offers(GPU_MEM, DEVICES)
            it = Soak(node, options.seed)
            rows = soak(it, node, options.minutes, options.rate, lambda text: print(text, flush=True))
            odd = [line for line in node.log.read_text(encoding="utf-8").splitlines() if "Traceback" in line]
    except BenchError as err:
        print(f"soak: {err}", file=sys.stderr)
        return 1
    print(it.promises.checked.words())
    for entry in it.promises.story():
        print(entry)
    found = broken(rows, options.rate) + ([f"{len(odd)} traces in the agent's log"] if odd else [])
    found += it.promises.history.broken
    print(f"{per_second(rows):.1f} pods a second for {len(rows)} minutes; {'; '.join(found) or 'nothing grows'}")
    return 1 if found else 0


if __name__ == "__main__":
    exit_with("soak", lambda: main(sys.argv[1:]))
