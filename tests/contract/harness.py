"""A node in a box: a stand-in kubelet, maybe a stand-in API server, simulated GPUs, and agents on top of them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import grpc

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent._pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from gpuagent.agent.agent import Agent
from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import NONE, Layer
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, MODE_LABEL, Isolates, Mode
from gpuagent.isolation.interface import IsolationError, Need, Report, Starting
from gpuagent.nvml.watch import NvmlWatch
from gpuagent.settings.settings import Settings
from gpuagent.simulation.boxes import Box
from gpuagent.simulation.simulator import Simulator, install
from standin.api.server import ApiServer
from standin.boxes import equal_gpus
from standin.kubelet.kubelet import Kubelet
from standin.kubelet.pods import Container, Pod
from standin.waiting import PATIENCE_S

MEM, CORE, WHOLE, EXCLUSIVE = GPU_MEM, GPU_CORE, GPU_WHOLE, "nvidia.com/gpu"
ALWAYS = (MEM, CORE, WHOLE)
VERSIONS = ("1.18", "1.36", "1.37")
NODE = "node-1"
REPOSITORY = Path(__file__).parents[2]
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def box(gpus: int = 2, gib: int = 80, *, name: str = "contract", numa: Sequence[int | None] = ()) -> Box:
    """So many equal GPUs. The same name and number give the same GPUs."""
    return equal_gpus(name, gpus, gib, numa)


def key(uuid: str) -> str:
    """What names a GPU in device ids."""
    return key_of(uuid)


def ids_on(uuid: str, ids: Sequence[str] | Mapping[str, object] | set[str] | frozenset[str]) -> list[str]:
    """The ids of one GPU, by number."""
    return sorted((i for i in ids if i.startswith(f"{key(uuid)}-")), key=lambda i: int(i.rpartition("-")[2]))


class Isolating:
    """An isolation driver that promises everything; tests put in what happens at Allocate and before a start."""

    name = "contract"
    layer = Layer(driver=name, installed=True, isolates=frozenset(Isolates), modes=frozenset(Mode))

    def __init__(self) -> None:
        self.prepared: list[Grant] = []
        self.verified: list[ContainerRef | None] = []
        self.on_prepare: Callable[[Grant], None] = lambda grant: None
        self.failures = 0
        """How many of the next verifications fail."""

    def start(self, report: Report) -> None:
        self.report = report
        report(self.layer)

    def desire(self, need: Need) -> None:
        self.need = need

    def stop(self) -> None:
        """Nothing to end."""

    def prepare(self, grant: Grant) -> Grant:
        self.prepared.append(grant)
        self.on_prepare(grant)
        return grant

    def verify(self, grant: Grant, starting: Starting) -> None:
        self.verified.append(starting.owner)
        if self.failures:
            self.failures -= 1
            raise IsolationError("the isolation layer is not ready")


def _answers_from(agent: Agent, pod: str) -> bool:
    """Whether the agent's answers go by this pod; not before it has published anything."""
    try:
        snap = agent.allocator.occupancy().snapshot
    except Refusal:
        return False
    return any(seen.name.name == pod for seen in snap.pods)


class Node:
    """The outside world of an agent, and the agents of this test. Everything ends with `close`."""

    def __init__(
        self,
        version: str = "1.36",
        gpus: Box | None = None,
        *,
        api: bool = False,
        labels: Mapping[str, str] | None = None,
        start: bool = True,
        **kubelet: Any,
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="ga-", dir="/tmp"))
        self.dev = self.root / "dev"
        self.dev.mkdir()
        self.box = gpus or box()
        for name in (*CONTROL_NODES, *(f"nvidia{gpu.minor}" for gpu in self.box.gpus)):
            (self.dev / name).touch()
        self.uuids = [gpu.uuid for gpu in self.box.gpus]
        self.simulator: Simulator = install(self.box)
        self.api: ApiServer | None = (
            ApiServer(NODE, labels, kubelet=f"v{version}.0") if api or labels is not None else None
        )
        if "periods" in kubelet:
            kubelet["api"] = self.api
        self.kubelet = Kubelet(self.root / "k", version, **kubelet)
        self.plugins = self.kubelet.plugins_dir
        self.fence_file = self.root / "etc" / "unhealthyDevices.json"
        self.agents: list[Agent] = []
        self.processes: list[subprocess.Popen[str]] = []
        if start:
            self.kubelet.start()

    # The agent.

    def settings(self, **given: Any) -> Settings:
        """Settings for this node: without API server mode `share` is forced."""
        if self.api is not None:
            given.setdefault("kubeconfig", self.api.write_kubeconfig(self.root / "kubeconfig"))
        else:
            given.setdefault("mode", Mode.SHARE)
        given.setdefault("http_address", None)
        given.setdefault("fence_file", self.fence_file)
        return Settings(
            node_name=NODE,
            kubelet_dir=self.root / "k",
            cdi_dir=self.root / "k" / "cdi",
            state_dir=self.root / "state",
            **{**given, "mode": Mode(given["mode"]) if given.get("mode") else None},
        )

    def run(self, *isolation: Isolating | None, **settings: Any) -> Agent:
        """Start an agent in this process. The first of the isolation drivers is the best one; None: the real ones."""
        drivers = {driver.name: driver for driver in isolation if driver} or None
        if drivers:
            drivers[NONE] = next(iter(drivers.values()))
        agent = Agent(self.settings(**settings), isolation=drivers)
        # Its device nodes are those of this node; the rest of the driver's edge is as it is.
        # But for its periods: tests are not to wait for them.
        quick = {"wait_s": 0.1, "healthy_s": 0.1, "unhealthy_s": 0.05}
        agent.nvml = NvmlWatch(agent.post, dev=self.dev, **quick)
        self.agents.append(agent)
        agent.start()
        return agent

    def stop(self, agent: Agent) -> None:
        """Stop an agent of this process."""
        self.agents.remove(agent)
        agent.stop()

    def spawn(self, *flags: str, wait: bool = True, env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start `gpuagent run` as a process on a box file like this node's."""
        with (self.root / f"stderr{len(self.processes)}").open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpuagent", "run", *self.flags(), *flags],
                env=self.environment(env),
                text=True,
                cwd=REPOSITORY,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        self.processes.append(process)
        if wait:
            assert self.kubelet.wait(lambda: all(self.kubelet.streams(r) for r in ALWAYS)), self.stderr(process)
        return process

    def flags(self) -> list[str]:
        """What every process of this node is started with."""
        return [
            "--simulate",
            str(write_box(self.box, self.root / "box.toml")),
            "--node-name",
            NODE,
            "--kubelet-dir",
            str(self.root / "k"),
            "--fence-file",
            str(self.fence_file),
        ]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUAGENT_", "NODE_NAME"))}
        off = {"GPUAGENT_STATE_DIR": str(self.root / "state"), "GPUAGENT_HTTP_ADDRESS": "off"}
        return {**kept, **off, **(more or {})}

    def stderr(self, process: "subprocess.Popen[str]") -> str:
        """What a process wrote to stderr so far."""
        return (self.root / f"stderr{self.processes.index(process)}").read_text()

    # What kubelet sees.

    def amounts(self) -> dict[str, int | None]:
        """Allocatable by resource."""
        return {resource: self.kubelet.allocatable(resource) for resource in ALWAYS}

    def offers(self, timeout: float = PATIENCE_S, **amounts: int) -> None:
        """Wait until exactly so much is allocatable: `mem`, `core`, `whole`; 0 where nothing is said."""
        wanted = {MEM: amounts.get("mem", 0), CORE: amounts.get("core", 0), WHOLE: amounts.get("whole", 0)}
        assert self.kubelet.wait(lambda: self.amounts() == wanted, timeout), f"{self.amounts()}, wanted {wanted}"

    def connected(self, agent: Agent) -> None:
        """Wait until the agent knows that every resource is registered: kubelet may have the lists earlier."""
        wait_for(lambda: len(agent.state.advertised.connected) == len(agent.state.advertised.lists))

    def ids(self, resource: str) -> dict[str, str]:
        """Health by device id, of the newest list."""
        return self.kubelet.lists(resource)[-1].health

    def sizes(self, resource: str) -> list[int]:
        """How many devices each list had, in order."""
        return [len(one.message.devices) for one in self.kubelet.lists(resource)]

    def sockets(self) -> set[str]:
        """Plugin sockets in kubelet's directory."""
        return {path.name for path in self.plugins.glob("*.sock")} - {"kubelet.sock"}

    def allocate(self, resource: str, *containers: Sequence[str]) -> dp.AllocateResponse:
        """A raw Allocate."""
        requests = [dp.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        return self.kubelet.call(resource).Allocate(dp.AllocateRequest(container_requests=requests), timeout=PATIENCE_S)

    def prefer(self, resource: str, available: Sequence[str], size: int, must: Sequence[str] = ()) -> list[str]:
        """A raw GetPreferredAllocation."""
        request = dp.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        answer = self.kubelet.call(resource).GetPreferredAllocation(
            dp.PreferredAllocationRequest(container_requests=[request]), timeout=PATIENCE_S
        )
        return list(answer.container_responses[0].deviceIDs)

    # Pods and the API server.

    @property
    def server(self) -> ApiServer:
        assert self.api is not None
        return self.api

    def label(self, mode: str | None, **more: str | None) -> None:
        """Set (or remove) the node's mode label."""
        self.server.label_node({MODE_LABEL: mode, **more})

    def caught_up(self, agent: Agent, timeout: float = PATIENCE_S) -> None:
        """Wait until the agent has taken the Node as it is now, has ended the switch, and its feeds have the new lists.

        Amounts alone do not tell: while labels come faster than they are taken, an older list may show the same ones.
        During a switch the new lists are empty until kubelet's allocations are read.
        """
        version = int(self.server.node()["metadata"]["resourceVersion"])

        def caught_up() -> bool:
            state = agent.state
            lists = state.advertised
            return (
                state.node.object is not None
                and int(state.node.object["metadata"]["resourceVersion"]) >= version
                and not (lists.unaudited or lists.draining)
                and all(agent.feeds[name].ranges == blocks for name, blocks in lists.lists.items())
            )

        wait_for(caught_up, timeout, "the agent has not taken the node's last label")

    def bind(
        self,
        pod: Pod,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        *,
        is_answered_from: bool = True,
    ) -> Pod:
        """Make the pod known to the API server, bound to this node, and wait until the agents know it.

        With `is_answered_from`, also until their answers to kubelet go by it, which is a moment later.
        """
        spec: dict[str, Any] = {"nodeName": NODE}
        for field, containers in (("initContainers", pod.init_containers), ("containers", pod.containers)):
            spec[field] = [
                {
                    "name": c.name,
                    "image": "work",
                    **({"restartPolicy": "Always"} if c.restartable else {}),
                    "resources": {"limits": {name: str(n) for name, n in c.limits.items()}},
                }
                for c in containers
            ]
        body = {
            "metadata": {"name": pod.name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
            "spec": spec,
            "status": {"phase": "Pending"},
        }
        created = self.server.objects.create("pods", pod.namespace, body)
        for agent in self.agents:
            wait_for(lambda a=agent: any(p.name.name == pod.name for p in a.state.pods.seen))  # type: ignore[misc]
            if is_answered_from:
                wait_for(lambda a=agent: _answers_from(a, pod.name))  # type: ignore[misc]
        return replace(pod, uid=created["metadata"]["uid"])

    def end(self, pod: Pod) -> None:
        """The pod ends and is deleted, for kubelet and the API server."""
        self.kubelet.remove(pod)
        if self.api is not None and any(p["metadata"]["name"] == pod.name for p in self.api.pods()):
            self.api.delete_pod(pod.name, namespace=pod.namespace)

    def event(self, reason: str, text: str = "", timeout: float = PATIENCE_S) -> dict[str, Any]:
        """The Event of that reason; waited for."""

        def found() -> list[dict[str, Any]]:
            return [e for e in self.server.events() if e["reason"] == reason and text in e["message"]]

        seen = [(e["reason"], e["message"]) for e in self.server.events()]
        assert self.server.wait(found, timeout), f"no event {reason} with {text!r}; there were {seen}"
        return found()[0]

    # End.

    def close(self) -> None:
        """End everything; what is there is ended even if something else fails."""
        with contextlib.ExitStack() as ends:
            ends.callback(shutil.rmtree, self.root, ignore_errors=True)
            ends.callback(self.simulator.close)
            if self.api is not None:
                ends.callback(self.api.stop)
                ends.callback(self.api.resume)
            ends.callback(self.kubelet.stop)
            for process in self.processes:
                ends.callback(_end, process)
            for agent in self.agents:
                ends.callback(agent.stop)
            ends.callback(self.simulator.unhang)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait(PATIENCE_S)


def write_box(box_: Box, path: Path) -> Path:
    """A box as a file, for processes."""
    lists = {
        "uuids": [gpu.uuid for gpu in box_.gpus],
        "minors": [gpu.minor for gpu in box_.gpus],
        "pci_bus_ids": [gpu.pci_bus_id for gpu in box_.gpus],
        "numa_nodes": [-1 if gpu.numa_node is None else gpu.numa_node for gpu in box_.gpus],
    }
    first = box_.gpus[0]
    lines = [
        "[[gpus]]",
        f'model = "{first.model}"',
        f"memory_mib = {first.memory_mib}",
        f"reserved_mib = {first.reserved_mib}",
        'compute_capability = "8.0"',
        "mig = false",
        *(f"{name} = {json.dumps(values)}" for name, values in lists.items()),
    ]
    path.write_text("\n".join(lines))
    return path


def pod(name: str, *containers: Mapping[str, int], init: Sequence[Container] = ()) -> Pod:
    """A pod whose containers have these limits."""
    return Pod(
        name,
        containers=tuple(Container(f"c{i}", limits) for i, limits in enumerate(containers)),
        init_containers=tuple(init),
    )


def wait_for(
    condition: Callable[[], object], timeout: float = PATIENCE_S, what: str | Callable[[], object] = ""
) -> None:
    """Wait for what nobody announces.

    Args:
        condition: has to become true.
        timeout: in seconds.
        what: the message if it does not. A function is called at the end of the wait, to say what is there then.
    """
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= end:
            problem = what() if callable(what) else what
            raise AssertionError(problem or "it did not come to be")
        time.sleep(0.01)


def observe(seconds: float, *, during: Callable[[], object] = lambda: None) -> None:
    """Let time pass in which something must not happen; `during` is called now and then."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        during()
        time.sleep(min(left, 0.1))


def terminate(process: "subprocess.Popen[str]", number: int = signal.SIGTERM) -> None:
    """Send a signal and wait for the end."""
    process.send_signal(number)
    process.wait(PATIENCE_S)


def fetch(port: int | None, path: str) -> tuple[int, str]:
    """HTTP GET: status and body."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Connection": "close"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def command(
    *arguments: str, env: Mapping[str, str] | None = None, timeout: float = PATIENCE_S
) -> "subprocess.CompletedProcess[str]":
    """Run `gpuagent` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gpuagent", *arguments],
        env=dict(env or os.environ),
        text=True,
        capture_output=True,
        timeout=timeout,
        cwd=REPOSITORY,
        check=False,
    )


def open_sockets() -> set[str]:
    """The sockets this process has open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.startswith("socket:"):
                found.add(target)
    return found


class SlowReader:
    """One more ListAndWatch, whose reader does not read until told to.

    Its window does not grow with the free memory of the machine, as grpc-go's does not: 64 KiB are under way at most.
    """

    def __init__(self, path: Path) -> None:
        options = (
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 65535),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        )
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)
        self._call = pb_grpc.DevicePluginStub(self._channel).ListAndWatch(dp.Empty(), wait_for_ready=True)
        next(self._call.initial_metadata().__iter__(), None)
        self.messages: list[dp.ListAndWatchResponse] = []

    def read(
        self, quiet_s: float, *, is_last: Callable[[dp.ListAndWatchResponse], bool]
    ) -> list[dp.ListAndWatchResponse]:
        """Everything that is under way: until `quiet_s` after a message that may be the last. Ends the stream."""
        timer = threading.Timer(PATIENCE_S, self._call.cancel)
        timer.start()
        with contextlib.suppress(grpc.RpcError):
            for message in self._call:
                self.messages.append(message)
                timer.cancel()
                timer = threading.Timer(quiet_s if is_last(message) else PATIENCE_S, self._call.cancel)
                timer.start()
        timer.join()
        self._channel.close()
        return self.messages


@contextlib.contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run `work` beside; calling what is given waits for its result."""
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(work()), name="beside", daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(PATIENCE_S)
        return outcome[0]

    yield result
    thread.join(PATIENCE_S)
