"""A node to measure: the agent as a process of its own, the stand-in kubelet and API server in this one."""

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.result import ROOT
from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, MODE_LABEL, Mode
from gpuagent.system.last_mode import LastMode
from standin.api.server import ApiServer
from standin.certificates import make_server_certificate
from standin.kubelet.kubelet import Kubelet
from standin.kubelet.pods import Admission, Container, Pod
from standin.kubelet.state import Received
from standin.ports import free_port

NODE = "bench-node"
AGENT_PYTHON = os.environ.get("AGENT_PYTHON", sys.executable)
"""The agent's Python. `make bench` installs only the libraries of requirements.lock for it, as the image does.

Some libraries import development tools where these are installed, which costs memory that no node pays.
"""
EXCLUSIVE = "nvidia.com/gpu"
RESOURCES = (GPU_MEM, GPU_CORE, GPU_WHOLE, EXCLUSIVE)
_COMPILED = ("gpuagent", "grpc", "google.protobuf", "kubernetes", "urllib3", "prometheus_client", "pynvml")


class BenchError(Exception):
    """The measured program did not start; the text has the agent's output."""


class Node:
    """Stand-ins in a folder of their own; `start_agent` and `stop_agent` may be repeated.

    The agent runs as in a pod: with TLS to the API server, and a service account.

    Args:
        box: the box that the agent simulates; empty for the machine's own driver.
        mode: value of the node label; None for no label.
        flags: further flags of the agent.
        api: whether the agent's environment names an API server.
        fresh: whether no agent has run on this node before; otherwise one has stored `mode`.
        claims: whether kubelet runs pods with ResourceClaims.
    """

    def __init__(  # noqa: PLR0913 (by name)
        self,
        box: str,
        mode: str | None = None,
        flags: Sequence[str] = (),
        *,
        api: bool = True,
        fresh: bool = False,
        claims: bool = False,
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="gb-"))
        (self.root / "s").mkdir()
        if mode and not fresh:
            LastMode(self.root / "s").keep(Mode(mode), schedulers=False)
        self._ended: list[str] = []
        self._received: dict[str, Pod] = {}
        certificate = make_server_certificate(self.root / "tls")
        self.authority = certificate.authority
        self.api = ApiServer(NODE, {} if mode is None else {MODE_LABEL: mode}, certificate=certificate)
        account = self.root / "account"
        account.mkdir()
        self.api.write_service_account(account)
        self._pod_environment = self.api.pod_environment if api else {}
        self.kubelet = Kubelet(self.root / "k", api=self.api if claims else None)
        self.log = self.root / "agent.log"
        self.http_port = free_port()
        self.started = 0.0
        self.agent: subprocess.Popen[bytes] | None = None
        self.kubelet.start()
        self._command = [
            *(AGENT_PYTHON, "-m", "bench.in_pod", str(account)),
            *("run", "--node-name", NODE, "--exclusive-resource", EXCLUSIVE),
            *("--kubelet-dir", str(self.root / "k"), "--state-dir", str(self.root / "s"), "--fence-file", "off"),
            *("--http-address", f"127.0.0.1:{self.http_port}", "--cdi-dir", str(self.root / "k" / "cdi")),
            *(("--simulate", box) if box else ()),
            *flags,
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_agent()
        self.kubelet.stop()
        self.api.resume()
        self.api.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    # -- the agent ---------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start the agent; `started` is the moment before its exec."""
        compile_all("gpuagent")
        env = {key: value for key, value in os.environ.items() if not key.startswith(("GPUAGENT_", "KUBERNETES_"))}
        env |= self._pod_environment
        with self.log.open("ab") as log:
            self.started = time.monotonic()
            self.agent = subprocess.Popen(self._command, stderr=log, cwd=ROOT, env=env)  # noqa: S603 (ourselves)

    def stop_agent(self) -> None:
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait(10)
            self.agent = None

    @property
    def pid(self) -> int:
        if self.agent is None:
            raise BenchError("no agent runs")
        return self.agent.pid

    @property
    def proc(self) -> Path:
        """The agent's folder in /proc."""
        return Path(f"/proc/{self.pid}")

    def fail(self, what: str) -> BenchError:
        said = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        return BenchError(f"{what}; the agent said:\n{said[-4000:]}")

    # -- kubelet's view ----------------------------------------------------------------------------------------

    def last(self, resource: str) -> Received | None:
        """The newest list of this agent."""
        lists = [one for one in self.kubelet.lists(resource) if one.time >= self.started]
        return lists[-1] if lists else None

    def count(self, resource: str, health: str | None = None) -> int | None:
        """Devices of the newest list, of one health; None before the first list."""
        last = self.last(resource)
        return None if last is None else sum(health in {None, d.health} for d in last.message.devices)

    def registered(self, timeout_s: float = 20.0) -> None:
        """Wait until every resource has a list stream."""
        if not self.kubelet.wait(lambda: all(self.last(resource) for resource in RESOURCES), timeout_s):
            raise self.fail("not every resource was registered in time")

    def offers(self, resource: str, count: int, timeout_s: float = 20.0) -> None:
        """Wait until the agent advertises `count` healthy devices of `resource`, and no unhealthy ones."""

        def met() -> bool:
            return self.count(resource) == self.count(resource, "Healthy") == count

        if not self.kubelet.wait(met, timeout_s):
            raise self.fail(f"{resource}: {self.count(resource)} devices instead of {count}")

    def ids(self, resource: str) -> list[list[str]]:
        """Device ids by GPU, in the order of the list."""
        by_gpu: dict[str, list[str]] = {}
        last = self.last(resource)
        for device in last.message.devices if last else ():
            by_gpu.setdefault(device.ID.rpartition("-")[0], []).append(device.ID)
        return list(by_gpu.values())

    def free(self, resource: str) -> list[str]:
        """Device ids that no pod holds."""
        held = self.kubelet.holders(resource)
        return [i for ids in self.ids(resource) for i in ids if i not in held]

    def plugin_socket(self, resource: str) -> Path:
        """The agent's socket for `resource`."""
        last = self.last(resource)
        if last is None:
            raise BenchError(f"{resource} is not registered")
        return self.kubelet.plugins_dir / last.endpoint

    # -- pods --------------------------------------------------------------------------------------------------

    def pend(self, name: str, limits: Mapping[str, int], annotations: Mapping[str, str] | None = None) -> Pod:
        """A pod bound to the node that kubelet has not seen yet."""
        amounts = {key: str(amount) for key, amount in limits.items()}
        made = self.api.create_pod(name, amounts, node=NODE, annotations=annotations)
        return Pod(name, uid=made["metadata"]["uid"], containers=(Container("main", limits),))

    def receive(self, name: str, limits: Mapping[str, int], annotations: Mapping[str, str] | None = None) -> None:
        """Make a pod on the node that kubelet is about to admit: the benchmark makes kubelet's calls for it."""
        self._received[name] = self.pend(name, limits, annotations)
        self.kubelet.receive(self._received[name])

    def book(self, name: str, resource: str, ids: Collection[str]) -> None:
        """Record in the stand-in kubelet the allocated ids of a pod that it has received."""
        self.kubelet.book(self._received[name], "main", resource, ids)

    def end(self, name: str) -> None:
        """End a pending pod, and delete the one that ended before it.

        If a pod were deleted at once, kubelet's next call could be for it, and the agent would query kubelet for it.
        """
        self.api.patch_pod(name, {"status": {"phase": "Succeeded"}}, subresource="status")
        for ended in self._ended:
            self.api.delete_pod(ended)
        self._ended = [name]
        if pod := self._received.pop(name, None):
            self.kubelet.remove(pod)

    def run_pod(self, name: str, limits: Mapping[str, int], annotations: Mapping[str, str] | None = None) -> Pod:
        """Make a pod, and let kubelet admit it and start its container."""
        return self.start_pod(self.pend(name, limits, annotations))

    def start_pod(self, pod: Pod) -> Pod:
        """Have kubelet admit a pod and start its container."""
        admission: Admission = self.kubelet.admit(pod)
        if not admission:
            raise self.fail(f"pod {pod.name} was not admitted: {admission.failed}")
        self.kubelet.start_container(pod, "main")
        return pod

    def page(self, path: str) -> bytes:
        """A page of the agent's HTTP port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{path}", timeout=5) as answer:
            body: bytes = answer.read()
            return body


def compile_all(*names: str) -> None:
    """Byte-compile packages as an installation does, even if this shell's settings prevent bytecode.

    Raises:
        BenchError: there is no bytecode afterwards, so that every start would compile again.
    """
    for name in names:
        spec = find_spec(name)
        origin = Path(spec.origin) if spec and spec.origin else None
        if origin is None:
            raise BenchError(f"{name} is not installed")
        if origin.name == "__init__.py":
            compileall.compile_dir(origin.parent, quiet=2)
        else:
            compileall.compile_file(origin, quiet=2)
        if not Path(cache_from_source(str(origin))).exists():
            raise BenchError(f"{name} has no bytecode: is {origin.parent} not writable? Every start would compile it")


def compile_everything() -> None:
    """Byte-compile all that the agent imports."""
    compile_all(*_COMPILED)


def allocate(ids: Sequence[str]) -> bytes:
    """An Allocate request of one container."""
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]).SerializeToString()


def prefer(available: Sequence[str], size: int) -> bytes:
    """A GetPreferredAllocation request of one container."""
    asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
    return pb.PreferredAllocationRequest(container_requests=[asked]).SerializeToString()


def prestart(ids: Sequence[str]) -> bytes:
    """A PreStartContainer request."""
    return pb.PreStartContainerRequest(devices_ids=ids).SerializeToString()
