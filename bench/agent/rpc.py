"""Allocate, GetPreferredAllocation and PreStartContainer: how long kubelet waits for each."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.agent.calls import Echo, Server, in_turns
from bench.agent.echo import TYPES
from bench.node import BenchError, Node, allocate, prefer, prestart
from bench.result import Results, Say
from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    MEMORY_ANNOTATION,
    Assumed,
    Shares,
    assumed_texts,
    shares_text,
)
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM

ASK, PERCENT = 10, 25
PODS, DECIDED, TO_COME = 50, 200, 32
ECHO_FACTOR, P99_MS = 1.3, 2.0
PREFER_MS, DECIDED_MS, DECIDED_P99_MS = 0.3, 1.0, 4.0
"""GetPreferredAllocation above the echo, which asks kubelet as well where there are decisions."""
SPORADIC_S, REST_S = 0.01, 0.04
Decided = Callable[[int], Mapping[str, str]]
"""Number of a pod to the annotations that a scheduler writes on it."""


@dataclass(frozen=True, slots=True)
class Size:
    """A box, the number of its GPUs, and the memory units of each."""

    name: str
    box: str
    gpus: int
    units: int
    barred: bool


class Rpc:
    """Measures one node after the other against the same two echo servers."""

    def __init__(self, results: Results, rounds: int, folder: Path, say: Say) -> None:
        self._results = results
        self._rounds = rounds
        self._say = say
        self._stack = ExitStack()
        self._parsed = self._stack.enter_context(Echo(folder / "parsed.sock", "parsed"))
        self._bytes = self._stack.enter_context(Echo(folder / "bytes.sock", "bytes"))
        for method in TYPES:
            self._parsed.answers(method, b"")

    def close(self) -> None:
        self._stack.close()

    # -- measurements ------------------------------------------------------------------------------------------

    def empty_node(self, size: Size, mode: str) -> None:
        """Preferences and allocations on a node without allocated devices."""
        self._say(f"calls: {size.name}, {mode}")
        limits = {GPU_MEM: ASK} if mode == "share" else {GPU_MEM: ASK, GPU_CORE: PERCENT}
        whole = {name: size.units if name == GPU_MEM else 100 for name in limits}
        with Node(size.box, mode, ["--allow-unisolated"]) as node:
            node.pend("ask", limits)
            node.pend("ask-whole", whole)
            node.start_agent()
            node.registered()
            node.offers(GPU_MEM, size.gpus * size.units)
            gpus = node.ids(GPU_MEM)
            offered = [i for ids in gpus for i in ids]
            agent = self._server(node, GPU_MEM)
            _until_quick(agent, prefer(offered, ASK))
            where = f"{size.name}, {mode}"
            for many in (ASK, size.units):
                name = f"GetPreferredAllocation {where}: {many} of {len(offered)}"
                self._compare(name, "GetPreferredAllocation", agent, [prefer(offered, many)], barred=size.barred)
            if size.barred:
                node.end("ask")
                self._new_pods(node, limits, where, prefers=mode == "core_mem")
            for many in (ASK, size.units):
                name = f"Allocate {where}: {many} ids"
                self._compare(name, "Allocate", agent, [allocate(ids[:many]) for ids in gpus], barred=size.barred)
            if size.barred and mode == "share":
                self.bare(size)
                requests = [allocate(ids[:ASK]) for ids in gpus]
                name = f"Allocate {where}: {ASK} ids, one call in 10 ms"
                self._compare(
                    name, "Allocate", agent, requests, barred=False, pause_s=SPORADIC_S, rounds=self._rounds // 10
                )
                slots = [allocate(ids[n : n + ASK]) for n in range(0, size.units, ASK) for ids in gpus]
                name = f"Allocate {where}: {ASK} ids, {len(slots)} recent allocations"
                self._compare(name, "Allocate", agent, slots, barred=False)

    def _new_pods(
        self,
        node: Node,
        limits: Mapping[str, int],
        where: str,
        decided: Decided | None = None,
        *,
        prefers: bool = True,
    ) -> None:
        """The calls for a container's last resource; `decided` has the annotations of each pod, by its number."""
        servers = {name: self._server(node, name) for name in limits}
        last = list(limits)[-1]
        for method in ("GetPreferredAllocation", "Allocate") if prefers else ("Allocate",):
            self._pod_by_pod(node, servers, limits, (last, method), where, decided)

    def full_node(self, size: Size, starts: int) -> None:
        """The same with pods running, and PreStartContainer, which is about pods."""
        self._say(f"calls: {size.name}, {PODS} pods running")
        with Node(size.box, "share") as node:
            node.start_agent()
            node.registered()
            node.offers(GPU_MEM, size.gpus * size.units)
            pods = [node.run_pod(f"pod-{number}", {GPU_MEM: ASK}) for number in range(PODS)]
            node.pend("ask", {GPU_MEM: ASK})
            agent = self._server(node, GPU_MEM)
            free = node.free(GPU_MEM)
            _until_quick(agent, prefer(free, ASK))
            where = f"{size.name}, {PODS} pods"
            name = f"GetPreferredAllocation {where}: {ASK} of {len(free)}"
            self._compare(name, "GetPreferredAllocation", agent, [prefer(free, ASK)], barred=False)
            held = [_held(node, pod.uid) for pod in pods]
            _read_book(node)
            name = f"PreStartContainer {where}: container starts again"
            self._compare(name, "PreStartContainer", agent, [prestart(ids) for ids in held], barred=False)
            self._first_starts(node, agent, where, starts)
            node.end("ask")
            self._new_pods(node, {GPU_MEM: ASK}, where, prefers=False)

    def _first_starts(self, node: Node, agent: Server, where: str, starts: int) -> None:
        """PreStartContainer right after Allocate: the agent reads kubelet's allocations to identify the container."""
        start, times = agent.method("PreStartContainer"), []
        for number in range(starts):
            pod = node.pend(f"new-{number}", {GPU_MEM: ASK})
            if not node.kubelet.admit(pod):
                raise node.fail("a pod was not admitted")
            request = prestart(_held(node, pod.uid))
            began = time.perf_counter_ns()
            start(request)
            times.append((time.perf_counter_ns() - began) / 1e6)
            node.kubelet.remove(pod)
            node.api.delete_pod(pod.name)
        name = f"PreStartContainer {where}: first start, kubelet's allocations are read"
        got = self._results.keep(f"{name}, agent", times)
        self._results.row(name, f"p50 {got['p50']:.1f} ms, worst {got['max']:.1f} ms")

    def _pod_by_pod(  # noqa: PLR0913 (one caller)
        self,
        node: Node,
        servers: Mapping[str, Server],
        limits: Mapping[str, int],
        timed: tuple[str, str],
        where: str,
        decided: Decided | None,
    ) -> None:
        """Kubelet's calls for one new pod after the other, up to the call that is timed (resource, method)."""
        pods: list[str] = []
        free = {name: node.free(name) for name in limits}

        def request(number: int) -> bytes:
            if pods:
                node.end(pods.pop())
            time.sleep(REST_S)  # the agent takes note of the pod's end
            node.receive(f"new-{number}", limits, decided(number) if decided else None)
            pods.append(f"new-{number}")
            for resource, size in limits.items():
                question = prefer(free[resource], size)
                if timed == (resource, "GetPreferredAllocation"):
                    time.sleep(REST_S if resource == next(iter(limits)) else 0)  # the agent has seen the pod
                    return question
                answer = self._ask(servers[resource], "GetPreferredAllocation", question)
                chosen = pb.PreferredAllocationResponse.FromString(answer).container_responses[0].deviceIDs
                if timed == (resource, "Allocate"):
                    return allocate(chosen)
                self._ask(servers[resource], "Allocate", allocate(chosen))
                node.book(pods[-1], resource, chosen)
            raise AssertionError(timed)

        resource, method = timed
        name = f"{method} {where}: {limits[resource]} of {resource.partition('/')[2]} for a new pod"
        self._compare(name, method, servers[resource], request, barred=True, rounds=self._rounds // 10)
        node.end(pods.pop())

    def _ask(self, agent: Server, method: str, request: bytes) -> bytes:
        """Ask the agent; the echo server is asked too, so that it is as warm as the agent is."""
        self._parsed.server.method(method)(request)
        return agent.method(method)(request)

    def bare(self, size: Size) -> None:
        """The cost of decoding and encoding in the echo server: the same calls with and without them."""
        request = allocate([f"hbw464wgz6-ms-{n}" for n in range(size.units)])
        answer = pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs={"A": "x" * 200})])
        encoded = answer.SerializeToString()
        calls = {"parsed": self._parsed.answers("Allocate", encoded), "bytes": self._bytes.answers("Allocate", encoded)}
        times = in_turns(calls, lambda _: request, self._rounds)
        got = {who: self._results.keep(f"echo {who}", values)["p50"] * 1000 for who, values in times.items()}
        text = f"p50 {got['parsed']:.0f} µs with protobuf, {got['bytes']:.0f} without"
        self._results.row(f"the echo server by itself: {size.units} ids", text)

    def decided_node(self, size: Size, mode: str) -> None:
        """The same where a scheduler chose the GPU of every pod, and kubelet has not asked for some of them yet."""
        self._say(f"calls: {size.name}, {mode}, {DECIDED} pods with decisions")
        small, limits = {GPU_MEM: 1}, {GPU_MEM: ASK}
        if mode == "core_mem":
            small, limits = small | {GPU_CORE: 2}, limits | {GPU_CORE: PERCENT}
        flags = ["--max-pods-per-gpu", str(DECIDED), "--core-step", "1", "--allow-unisolated"]
        with Node(size.box, mode, flags) as node:
            node.start_agent()
            node.registered()
            node.offers(GPU_MEM, size.gpus * size.units)
            agent = self._server(node, GPU_MEM)
            _until_followed(node, agent, size, limits)  # from now on it sees pods in kubelet's order
            annotated = [_decided(number, size, small) for number in range(DECIDED + TO_COME)]
            pods = [node.pend(f"pod-{number}", small, texts) for number, texts in enumerate(annotated)]
            _until_followed(node, agent, size, limits)
            for pod in pods[:DECIDED]:
                node.start_pod(pod)
            _read_book(node)
            where = f"{size.name}, {mode}, {DECIDED} pods with decisions"
            with self._parsed.asking(node.kubelet.pod_resources_socket, pods[0].name):
                self._new_pods(node, limits, f"{where}, decided", lambda number: _decided(number, size, limits))
                self._new_pods(node, limits, f"{where}, undecided")
                node.receive("ask", limits, _decided(0, size, limits))
                free = node.free(GPU_MEM)
                _until_quick(agent, prefer(free, ASK))
                name = f"GetPreferredAllocation {where}: {ASK} of {len(free)}"
                rounds = self._rounds // 10  # kubelet, which is asked each time, answers 100 such calls a second
                question = [prefer(free, ASK)]
                self._compare(
                    name, "GetPreferredAllocation", agent, question, barred=True, pause_s=SPORADIC_S, rounds=rounds
                )
            ids = [i for i in node.ids(GPU_MEM)[0] if i in free][:ASK]
            self._compare(f"Allocate {where}: {ASK} ids", "Allocate", agent, [allocate(ids)], barred=True)

    # -- how ---------------------------------------------------------------------------------------------------

    def _server(self, node: Node, resource: str) -> Server:
        server = Server(node.plugin_socket(resource))
        self._stack.callback(server.close)
        return server

    def _compare(  # noqa: PLR0913 (by name)
        self,
        name: str,
        method: str,
        agent: Server,
        requests: Sequence[bytes] | Callable[[int], bytes],
        *,
        barred: bool,
        pause_s: float = 0.0,
        rounds: int | None = None,
    ) -> None:
        """One row: the agent next to the echo, which gives the agent's first answer."""
        asked = agent.method(method)

        def request(number: int) -> bytes:
            return requests(number) if callable(requests) else requests[number % len(requests)]

        answer = asked(request(-1000))
        calls = {"agent": asked, "echo": self._parsed.answers(method, answer)}
        times = in_turns(calls, request, rounds or self._rounds, pause_s=pause_s)
        ours, echo = (self._results.keep(f"{name}, {who}", values) for who, values in times.items())
        factor = ours["p50"] / echo["p50"]
        value = (
            f"p50 {ours['p50'] * 1000:.0f} µs = {factor:.2f} x echo's {echo['p50'] * 1000:.0f};"
            f" p99 {ours['p99']:.2f} ms (echo {echo['p99']:.2f})"
        )
        if not barred or method == "PreStartContainer":
            self._results.row(name, value)
        elif method == "Allocate":
            held = factor < ECHO_FACTOR and ours["p99"] < P99_MS
            self._results.row(name, value, f"p50 < {ECHO_FACTOR} x echo, p99 < {P99_MS:.0f} ms", held)
        else:
            above, p99 = (DECIDED_MS, DECIDED_P99_MS) if self._parsed.asks_kubelet else (PREFER_MS, P99_MS)
            own = ours["p50"] - echo["p50"]
            beyond = "echo that asks kubelet" if self._parsed.asks_kubelet else "echo"
            bar = f"p50 < {above * 1000:.0f} µs above {beyond}, p99 < {p99:.0f} ms"
            self._results.row(name, f"{value}; own {own * 1000:.0f} µs", bar, own < above and ours["p99"] < p99)


def big_box(folder: Path) -> Size:
    """Sixteen GPUs of 141 GiB, as a box file."""
    buses = ", ".join(f'"00000000:{0x10 + n:02X}:00.0"' for n in range(16))
    text = (
        'description = "16 GPUs of 141 GiB"\n\n[[gpus]]\nmodel = "NVIDIA H200"\nmemory_mib = 144384\n'
        f'compute_capability = "9.0"\nmig = false\npci_bus_ids = [{buses}]\n'
        f"numa_nodes = {[n // 8 for n in range(16)]}\n"
    )
    path = folder / "big.toml"
    path.write_text(text, encoding="utf-8")
    return Size("16 x 141", str(path), 16, 141, barred=False)


SMALL = Size("8 x 80", "dgx-a100", 8, 80, barred=True)


def _decided(number: int, size: Size, limits: Mapping[str, int]) -> dict[str, str]:
    """A scheduler's annotations for the pod of this number: ACK's on odd numbers, the open extender's on even ones."""
    gpu, units = number // 2 % size.gpus, limits[GPU_MEM]
    if number % 2:
        return assumed_texts(Assumed(gpu, units, size.units, time.time_ns(), assigned=False))
    keys = {GPU_MEM: MEMORY_ANNOTATION, GPU_CORE: CORE_ANNOTATION}
    return {keys[name]: shares_text(Shares({0: {gpu: amount}})) for name, amount in limits.items()}


def _until_quick(agent: Server, request: bytes) -> None:
    """Repeat the call until the agent has seen the pod at the API server; until then it waits 0.1 s for the pod."""
    ask = agent.method("GetPreferredAllocation")
    for _ in range(50):
        began = time.monotonic()
        ask(request)
        if time.monotonic() - began < 0.05:
            return
    raise BenchError("the agent did not see the pending pods")


def _until_followed(node: Node, agent: Server, size: Size, limits: Mapping[str, int]) -> None:
    """Wait until the agent sees a pod of now: it gives it the last GPU then, which a scheduler chose for it."""
    name = f"follow-{time.monotonic_ns()}"
    node.receive(name, limits, _decided(2 * size.gpus - 1, size, limits))
    gpus = node.ids(GPU_MEM)
    ask, question = agent.method("GetPreferredAllocation"), prefer([i for ids in gpus for i in ids], limits[GPU_MEM])
    for _ in range(200):
        answer = pb.PreferredAllocationResponse.FromString(ask(question))
        if set(gpus[-1]).issuperset(answer.container_responses[0].deviceIDs):
            node.end(name)
            return
        time.sleep(0.05)
    raise node.fail("the agent did not follow a scheduler's decision")


def _read_book(node: Node) -> None:
    """Make the agent read kubelet's allocations: it does so when a pod ends."""
    node.pend("going", {GPU_MEM: 1})
    time.sleep(0.2)
    node.end("going")
    time.sleep(0.3)


def _held(node: Node, uid: str) -> list[str]:
    return sorted(i for i, uids in node.kubelet.holders(GPU_MEM).items() if uid in uids)
