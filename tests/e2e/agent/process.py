"""The agent as a process of its own, as an operator would run it, on a simulated box."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpuagent.nvml.simulated_socket import inject
from tests.e2e.cluster import NODE_NAME, Cluster

RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu")

RBAC: tuple[dict[str, Any], ...] = (
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "gpuagent"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "gpuagent"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpuagent"},
        "subjects": [{"kind": "User", "name": "gpuagent", "apiGroup": "rbac.authorization.k8s.io"}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "gpuagent", "namespace": "kube-system"},
        "rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch", "delete"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "gpuagent", "namespace": "kube-system"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gpuagent"},
        "subjects": [{"kind": "User", "name": "gpuagent", "apiGroup": "rbac.authorization.k8s.io"}],
    },
)


class AgentProcess:
    """Starts, kills and asks one agent. Its log is kept over restarts."""

    def __init__(self, cluster: Cluster, workdir: Path, box: str, flags: Iterable[str] = ()) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.state_dir = workdir / "state"
        self.log = workdir / "agent.log"
        workdir.mkdir(parents=True, exist_ok=True)
        self._command = [
            *(sys.executable, "-m", "gpuagent", "run", "--simulate", box, "--node-name", NODE_NAME),
            *("--kubeconfig", str(cluster.kubeconfig("gpuagent")), "--state-dir", str(self.state_dir)),
            *("--http-address", f"127.0.0.1:{self._port}", "--exclusive-resource", "nvidia.com/gpu"),
            *("--log-level", "debug", *flags),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer does."""
        self._end(signal.SIGKILL)

    def stop(self) -> float:
        """SIGTERM; the seconds until it ended."""
        began = time.monotonic()
        self._end(signal.SIGTERM)
        return time.monotonic() - began

    def _end(self, number: int) -> None:
        if self._process and self._process.poll() is None:
            os.kill(self._process.pid, number)
            self._process.wait(10)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def page(self, path: str) -> bytes | None:
        """A page of the agent's port; None while it says no or is not there."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}", timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            return None

    def status(self) -> dict[str, Any]:
        return self._json("status")

    def _json(self, path: str) -> dict[str, Any]:
        return dict(json.loads(self.page(path) or b"{}"))

    def wait(
        self, wanted: Callable[[dict[str, Any]], bool], timeout: float = 20, *, path: str = "status"
    ) -> dict[str, Any]:
        """The page once it is as wanted.

        Raises:
            TimeoutError: with the page and the end of the log.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            page = self._json(path)
            if page and wanted(page):
                return page
            time.sleep(0.05)
        tail = self.log.read_text()[-3000:]
        raise TimeoutError(f"not in {timeout:g} s; {path} says {json.dumps(self._json(path))[:3000]}\n{tail}")

    def wait_ready(self, timeout: float = 20) -> None:
        self.wait(lambda _: self.page("readyz") is not None, timeout)

    def inject(self, **fault: object) -> None:
        inject(self.state_dir / "simulator.sock", fault)
