"""A release of the chart, as an operator handles it with Helm, and the agent's pod that comes of it."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from gpuagent.simulation.fault_socket import inject
from manifests.render import CHART
from standin.ports import free_port
from tests.e2e.agent.agent_pages import AgentPages
from tests.e2e.build import AGENT_IMAGE, bin_dir
from tests.e2e.cluster import WAIT_S, Cluster

HELM = bin_dir() / "helm"
NAME = "gpuagent"
REPOSITORY, _, TAG = AGENT_IMAGE.rpartition(":")

Values = dict[str, Any]


def merged(one: Values, other: Values) -> Values:
    """Both, as Helm merges values: what is in the other counts."""
    both = dict(one)
    for key, value in other.items():
        both[key] = merged(one[key], value) if isinstance(value, dict) and isinstance(one.get(key), dict) else value
    return both


class Release(AgentPages):
    """Installs, upgrades, rolls back; finds the agent's pod and asks it."""

    def __init__(self, cluster: Cluster, workdir: Path, box: str = "dgx-a100", namespace: str = "kube-system") -> None:
        super().__init__(free_port())
        self.cluster, self.namespace, self.workdir = cluster, namespace, workdir
        self.state_dir = workdir / "state"
        self.revision = 0
        self.removable = False
        """Whether it is this release's objects that an uninstalling would take."""
        self._values_of: dict[int, Values] = {}
        self.values: Values = {
            "image": {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"},
            # The cluster has no pod network.
            "hostNetwork": True,
            "http": {"port": self.port},
            "paths": {"state": str(self.state_dir)},
            "settings": {
                "simulate": box,
                "exclusive-resource": "nvidia.com/gpu",
                "fence-file": str(workdir / "fence" / "unhealthyDevices.json"),
                "log-level": "debug",
            },
        }

    def install(self, **values: Any) -> "Release":
        """Wait until its pod is ready."""
        self.removable = True
        return self._helm("install", values, "--create-namespace")

    def upgrade(self, **values: Any) -> "Release":
        return self._helm("upgrade", values)

    def _helm(self, verb: str, values: Values, *more: str) -> "Release":
        self.values = merged(self.values, values)
        file = self.workdir / f"values-{self.revision}.json"
        file.write_text(json.dumps(self.values))
        self.helm(verb, NAME, str(CHART), "--values", str(file), *more)
        return self._revised()

    def rollback(self, revision: int) -> "Release":
        self.helm("rollback", NAME, str(revision))
        self.values = self._values_of[revision]
        return self._revised()

    def _revised(self) -> "Release":
        self.revision += 1
        self._values_of[self.revision] = self.values
        return self.wait_rolled_out()

    def uninstall(self) -> None:
        self.helm("uninstall", NAME, "--ignore-not-found", "--wait", f"--timeout={WAIT_S:.0f}s")

    def helm(self, *arguments: str) -> str:
        """Run Helm on the cluster; what it says. Raises CalledProcessError with its words."""
        command = [str(HELM), "--kubeconfig", str(self.cluster.kubeconfig()), "--namespace", self.namespace, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * WAIT_S)
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, ["helm", *arguments], done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done.stdout

    def wait_rolled_out(self) -> "Release":
        """Until the DaemonSet's newest pods are all there and ready.

        The node has its label, but the controller may not have seen that yet when it reports on the DaemonSet first.
        """
        path = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets"
        fewest_nodes = 0 if "nodeLabels" in self.values else 1

        def rolled_out(found: Values | None) -> bool:
            status = (found or {}).get("status", {})
            return (
                found is not None
                and status.get("observedGeneration") == found["metadata"]["generation"]
                and status.get("desiredNumberScheduled", 0) >= fewest_nodes
                and status.get("numberReady") == status.get("desiredNumberScheduled")
                and status.get("updatedNumberScheduled", 0) == status.get("desiredNumberScheduled")
            )

        try:
            self.cluster.client.wait(path, "gpuagent", rolled_out)
        except TimeoutError as err:
            err.add_note(f"{json.dumps([pod['status'] for pod in self.pods()])[:3000]}\n{self.log_text()[-2000:]}")
            raise
        return self

    def give_host_network(self, component: str, kind: str = "daemonsets", name: str = "") -> None:
        """For pods that have none of the chart: the cluster has no network for pods."""
        client, patch = self.cluster.client, {"spec": {"template": {"spec": {"hostNetwork": True}}}}
        path = f"/apis/apps/v1/namespaces/{self.namespace}/{kind}"
        client.expect("PATCH", f"{path}/{name or component}", patch, "application/merge-patch+json")
        # Until the controller has seen the change, it may make further pods without.
        client.wait(path, name or component, _is_observed)
        for pod in self.pods(component):  # where the DaemonSet replaces none by itself
            # The controller may have deleted it meanwhile.
            status, answer = client.request(
                "DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
            )
            assert status in {200, 202, 404}, answer

    def pods(self, component: str = "agent") -> list[dict[str, Any]]:
        selector = f"labelSelector=app.kubernetes.io%2Fcomponent%3D{component}"
        items = self.cluster.client.expect("GET", f"/api/v1/namespaces/{self.namespace}/pods?{selector}")["items"]
        return list(items)

    def pod(self) -> dict[str, Any]:
        """The agent's pod that is not on its way out."""
        (pod,) = (pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"])
        return pod

    def wait_no_pod(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.pods():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    @property
    def running(self) -> bool:
        return bool(self.pods())

    def log_text(self) -> str:
        return "".join(self.cluster.pod_log(pod["metadata"]["name"], "gpuagent", self.namespace) for pod in self.pods())

    def inject(self, **fault: object) -> None:
        inject(self.state_dir / "simulator.sock", fault, timeout_s=WAIT_S)


def _is_observed(found: Values | None) -> bool:
    """Whether the controller has seen the newest change of a DaemonSet or Deployment."""
    if found is None:
        return False
    generation: int = found["metadata"]["generation"]
    return bool(found.get("status", {}).get("observedGeneration") == generation)
