"""The agent as a process of its own, as an operator would run it, on a simulated box."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuagent.simulation.fault_socket import inject
from standin.ports import free_port
from tests.e2e.agent.agent_pages import AgentPages
from tests.e2e.cluster import NODE_NAME, WAIT_S, Cluster
from tests.e2e.cluster.part_logs import register_log

AGENT_PYTHON = os.environ.get("AGENT_PYTHON", sys.executable)
"""What the agent runs on, as for `bench`: with the libraries of requirements.lock alone it takes 3 MiB less."""
RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu")

RBAC: tuple[dict[str, Any], ...] = (
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "gpuagent"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "delete"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
            {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["resourceslices"],
                "verbs": ["get", "list", "watch", "create", "patch", "delete"],
            },
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


class AgentProcess(AgentPages):
    """Starts, kills and asks one agent. Its log is kept over restarts; `flags` count from the next start on."""

    def __init__(self, cluster: Cluster, workdir: Path, box: str, flags: Iterable[str] = ()) -> None:
        super().__init__(free_port())
        self.state_dir = workdir / "state"
        self.log = workdir / "agent.log"
        workdir.mkdir(parents=True, exist_ok=True)
        register_log("agent", self.log)
        self._command = [
            *(AGENT_PYTHON, "-m", "gpuagent", "run", "--simulate", box, "--node-name", NODE_NAME),
            *("--kubeconfig", str(cluster.kubeconfig("gpuagent")), "--state-dir", str(self.state_dir)),
            *("--http-address", f":{self.port}", "--exclusive-resource", "nvidia.com/gpu"),
            *("--log-level", "debug"),
        ]
        self.flags = tuple(flags)
        self.made_for: tuple[object, ...] = ()
        """What tests ask for that get it, see `kept_agent`."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *self.flags], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, as kubelet does; wait for the end."""
        self._end(signal.SIGTERM)

    @property
    def exit_code(self) -> int | None:
        """Of its last run; None while it runs."""
        return self._process.poll() if self._process else None

    def _end(self, number: int) -> None:
        self.disturbed = True
        if self._process and self._process.poll() is None:
            os.kill(self._process.pid, number)
            self._process.wait(WAIT_S)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def memory_mib(self) -> tuple[float, float]:
        """Resident now, and the most since it was started."""
        assert self._process
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        found = {
            name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if "kB" in rest
        }
        return found["VmRSS"] / 1024, found["VmHWM"] / 1024

    def log_text(self) -> str:
        return self.log.read_text()

    def inject(self, **fault: object) -> None:
        self.disturbed = True
        inject(self.state_dir / "simulator.sock", fault, timeout_s=WAIT_S)
