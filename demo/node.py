"""A node that needs nothing but Python: the real agent, a stand-in kubelet, a stand-in API server, a simulated box."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from demo.limited_pods import LimitedPods
from gpuagent.pages.status_table import render
from gpuagent.simulation import boxes
from standin.api.server import ApiServer
from standin.kubelet.kubelet import Kubelet
from standin.kubelet.pods import Admission, Container, Granted, Pod
from standin.kubelet.reporting import StatusReporter
from standin.mps.host import MpsHost
from standin.scheduler.device_classes import create_classes
from standin.scheduler.scheduler import ClaimScheduler
from standin.waiting import PATIENCE_S

NODE = "demo-node"


class DemoNode:
    """Starts everything in a temporary folder and ends it again. Raises RuntimeError if the agent does not come up."""

    def __init__(self, box: str, port: int) -> None:
        _check_free(port)
        self._root = Path(tempfile.mkdtemp(prefix="gpuagent-"))
        self._box = box
        self.url = f"http://127.0.0.1:{port}"
        self.api = ApiServer(NODE)
        create_classes(self.api.objects)
        self._scheduler = ClaimScheduler(self.api.objects)
        self.kubelet = Kubelet(self._root / "kubelet", api=self.api)
        self._amounts = StatusReporter(self.kubelet, self.api.patch_node_status)
        self.kubeconfig = self._root / "kubeconfig"
        self.log = self._root / "agent.log"
        self.mps = MpsHost()
        self.mps.write_smi({"modes": dict.fromkeys((gpu.uuid for gpu in boxes.load(box).gpus), "Default")})
        self._mps_program = self.mps.control.read_bytes()
        self.mps.control.unlink()
        self.limited = LimitedPods(self._root, box)
        self._agent: subprocess.Popen[bytes] | None = None
        self._pods: dict[str, Pod] = {}
        self._granted: dict[str, Granted] = {}

    def __enter__(self) -> Self:
        self.api.start()
        self.kubelet.start()
        self._amounts.start()
        self._scheduler.start()
        self.api.write_kubeconfig(self.kubeconfig)
        command = [
            *(sys.executable, "-m", "gpuagent", "run", "--simulate", self._box, "--node-name", NODE),
            *("--kubeconfig", str(self.kubeconfig), "--kubelet-dir", str(self._root / "kubelet")),
            *("--state-dir", str(self._root / "state"), "--http-address", self.url.removeprefix("http://")),
            *("--settle", "1", "--exclusive-resource", "nvidia.com/gpu", "--mps-control", str(self.mps.control)),
            *("--mps-pipe-dir", str(self.mps.own), "--fence-file", str(self._root / "unhealthyDevices.json")),
            *("--cdi-dir", str(self.kubelet.claims.cdi_dir), "--limits-socket", str(self.limited.socket)),
        ]
        path = f"{self.mps.control.parent}:{os.environ['PATH']}"  # nvidia-smi's stand-in
        with self.log.open("wb") as log:
            self._agent = subprocess.Popen(command, stderr=log, env={**os.environ, "NODE_NAME": NODE, "PATH": path})  # noqa: S603
        if not self.wait(lambda: self.page("readyz") is not None):
            output = self.log.read_text(encoding="utf-8")
            self.__exit__(None, None, None)
            raise RuntimeError(f"the agent did not get ready:\n{output}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._agent:
            self._agent.terminate()
            self._agent.wait(PATIENCE_S)
        self._amounts.stop()
        self._scheduler.stop()
        self.kubelet.stop()
        self.api.stop()
        self.mps.close()
        self.limited.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def wait(self, ready: Any, timeout_s: float = PATIENCE_S) -> bool:  # noqa: ANN401
        """Look four times a second until `ready()`; False if the time is over."""
        pause = threading.Event()
        for _ in range(int(timeout_s * 4)):
            if self._agent and self._agent.poll() is not None:
                return False
            if ready():
                return True
            pause.wait(0.25)
        return False

    def page(self, path: str) -> bytes | None:
        """A page of the agent's HTTP port; None while it says no."""
        try:
            with urllib.request.urlopen(f"{self.url}/{path}", timeout=5) as answer:  # noqa: S310 (loopback)
                body: bytes = answer.read()
                return body
        except OSError:
            return None

    def status(self) -> dict[str, Any]:
        """What `gpuagent status -o json` prints."""
        return self._json_page("status")

    def table(self) -> str:
        """What `gpuagent status` prints."""
        return render(self.status())

    def topology(self) -> dict[str, Any]:
        """What `gpuagent topology -o json` prints."""
        return self._json_page("topology")

    def _json_page(self, path: str) -> dict[str, Any]:
        """A page of the agent. On a busy machine one request may get no answer in time. Raises RuntimeError."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            body = self.page(path)
            if body is not None:
                page: dict[str, Any] = json.loads(body)
                return page
        raise RuntimeError(f"the agent does not answer at {self.url}/{path}:\n{self.log.read_text(encoding='utf-8')}")

    def run_pod(self, name: str, labels: Mapping[str, str] | None = None, **limits: int) -> Admission:
        """Bind a pod to the node, let kubelet admit it and start its container.

        A scheduler would bind it only when the node has the amounts. One of two resources may get there earlier.
        """
        named = {_RESOURCES[short]: amount for short, amount in limits.items()}
        if not self.wait(lambda: all(self._offered(resource) >= amount for resource, amount in named.items())):
            raise RuntimeError(f"the node does not have {named} for pod {name}; it shows:\n{self.table()}")
        created = self.api.create_pod(
            name, {key: str(amount) for key, amount in named.items()}, node=NODE, labels=labels
        )
        pod = Pod(name, uid=created["metadata"]["uid"], containers=(Container("main", named),))
        admission = self.kubelet.admit(pod)
        if admission:
            self._pods[name] = pod
            self.limited.begin(pod.uid)
            self._granted[name] = self.kubelet.start_container(pod, "main")
            self.limited.start_container(pod.uid)
        else:
            self.api.delete_pod(name)
        return admission

    def take_all(self, name: str) -> str:
        """Have a program in a pod take all GPU memory that it can get; what it says."""
        uuid = self._granted[name].env["NVIDIA_VISIBLE_DEVICES"]
        return self.limited.take_all(self._pods[name], uuid)

    def _offered(self, resource: str) -> int:
        return self.kubelet.allocatable(resource) or 0

    def end_pod(self, name: str) -> None:
        """The pod ends and is deleted."""
        pod = self._pods.pop(name)
        self.kubelet.remove(pod)
        self.limited.end(pod.uid)
        self.api.delete_pod(name)

    def run_claim(self, name: str, example: Path) -> tuple[str, Granted]:
        """Create a pod with a claim, from the template of an example; its text, and what the running container has."""
        template_text = example.read_text(encoding="utf-8").partition("---\n")[0]
        template = yaml.safe_load(template_text)
        self.api.objects.create("resourceclaimtemplates", "default", template)
        claim = {"name": "gpu", "resourceClaimTemplateName": template["metadata"]["name"]}
        container = {"name": "main", "image": "work", "resources": {"claims": [{"name": "gpu"}]}}
        body = {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": [claim]}}
        uid = self.api.objects.create("pods", "default", {**body, "status": {"phase": "Pending"}})["metadata"]["uid"]
        self.limited.begin(uid)
        self.wait(lambda: self.kubelet.claims.container(uid, "main"))
        granted = self.kubelet.claims.container(uid, "main")
        if granted is None:
            events = [event["message"] for event in self.api.events()]
            raise RuntimeError(f"pod {name} does not run: {events}")
        return template_text, granted

    def devices(self) -> list[dict[str, Any]]:
        """The devices of the node's ResourceSlice."""
        return [one for found in self.api.objects.all("resourceslices")[0] for one in found["spec"]["devices"]]

    def install_mps(self) -> None:
        """NVIDIA MPS comes onto the node: the stand-in of its control program."""
        self.mps.control.write_bytes(self._mps_program)
        self.mps.control.chmod(0o755)

    def remove_mps(self) -> None:
        """The control program goes, as while a driver is replaced, and the daemon dies."""
        self.mps.control.unlink()
        self.mps.kill_all()

    def inspect(self) -> None:
        """Run `kubectl inspect cgpu`, which fits its table to the terminal."""
        command = [sys.executable, "-m", "inspectcgpu", "--kubeconfig", str(self.kubeconfig)]
        paths = os.pathsep.join(("kubectl", os.environ.get("PYTHONPATH", "")))
        sys.stdout.flush()
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})  # noqa: S603

    def inject(self, **fault: object) -> None:
        """Let the simulated box have a fault, from another process, as `gpuagent simulate` does."""
        command = [
            sys.executable,
            "-m",
            "gpuagent",
            "simulate",
            json.dumps(fault),
            "--state-dir",
            str(self._root / "state"),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def _check_free(port: int) -> None:
    """Raise RuntimeError if a program listens there: the walk would take it for its own agent."""
    with socket.socket() as client:
        if client.connect_ex(("127.0.0.1", port)) == 0:
            raise RuntimeError(
                f"another program has port {port}. End it, or take another port: make demo PORT={port + 1}"
            )


_RESOURCES = {
    "mem": "aliyun.com/gpu-mem",
    "core": "aliyun.com/gpu-core.percentage",
    "gpus": "aliyun.com/gpu",
    "exclusive": "nvidia.com/gpu",
}
