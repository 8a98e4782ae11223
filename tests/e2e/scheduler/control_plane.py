"""A control plane without kubelets: etcd, the API server, and kwok, which plays the nodes."""

import http.client
import time
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuscheduler.core.gangs.kinds import SERVED_AS
from standin.ports import free_port
from tests.e2e.build import bin_dir
from tests.e2e.cluster import WAIT_S, pki
from tests.e2e.cluster.api_client import ApiClient
from tests.e2e.cluster.manifests import Json
from tests.e2e.cluster.processes import Process
from tests.e2e.scheduler.pod_watch import PodWatch

BINARIES = ("etcd", "kube-apiserver", "kube-scheduler", "kwok")
LEASE = "gpu-scheduler"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
_STAGES = Path(__file__).with_name("stages.yaml")


class ControlPlane:
    """All of it in one directory, on free ports of the loopback, so that several can run beside each other.

    Attributes:
        client: acts as the administrator.
        address: of the API server.
        certificates: of the API server, and the tokens of its users.
        pods: the pods of all namespaces as they are now.
        kwok: plays the nodes.
    """

    def __init__(self, workdir: Path, apiserver_flags: Iterable[str] = ()) -> None:
        self.workdir = workdir
        self.bin = bin_dir()
        self._stack = ExitStack()
        for name in ("logs", "pids"):
            (workdir / name).mkdir(parents=True)
        port = free_port()
        self.certificates = pki.create(workdir / "pki", "127.0.0.1", port)
        self.address = "127.0.0.1", port
        self.client = ApiClient(self.certificates.server, self.certificates.ca, self.certificates.tokens[pki.ADMIN])
        self.pods = PodWatch(self.client)
        etcd_port = free_port()
        self._etcd = self.process("etcd", self._etcd_command(etcd_port, free_port()))
        self._apiserver = self.process("kube-apiserver", (*self._apiserver_command(port, etcd_port), *apiserver_flags))
        kubeconfig = f"--kubeconfig={self.kubeconfig(pki.ADMIN)}"
        stages = ("--config", str(_STAGES), "--manage-all-nodes=true", "--node-lease-duration-seconds=0")
        self.kwok = self.process("kwok", (str(self.bin / "kwok"), kubeconfig, *stages))

    def process(self, name: str, command: Iterable[str]) -> Process:
        """A component that ends with the tests, however these end. It must be started by the main thread."""
        bound = ("setpriv", "--pdeathsig", "KILL", *command)
        return Process(name, bound, self.workdir / "logs" / f"{name}.log", self.workdir / "pids")

    @property
    def servers(self) -> tuple[Process, Process]:
        """The API server and etcd."""
        return self._apiserver, self._etcd

    def kubeconfig(self, user: str) -> Path:
        return self.certificates.kubeconfig(user)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for process in (self._etcd, self._apiserver):
                stack.callback(process.kill)
                process.start()
            self._apiserver.wait_for(self._ready)
            for manifest in RIGHTS:
                self.client.apply(manifest)
            stack.callback(self.kwok.kill)
            self.kwok.start()
            stack.callback(self.pods.stop)
            self.pods.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def restart_apiserver(self) -> None:
        """Kill it, as the out-of-memory killer does, and wait until it answers again."""
        self._apiserver.kill()
        self._apiserver.start()
        self._apiserver.wait_for(self._ready)

    def add_nodes(self, nodes: Iterable[Json], timeout: float = WAIT_S) -> None:
        """Create nodes, and wait until all are Ready."""
        names = {node["metadata"]["name"] for node in self.client.create_all(NODES, nodes)}
        deadline = time.monotonic() + timeout
        while waiting := names.difference(map(_name, filter(_is_ready, self.nodes()))):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(waiting)} nodes are not Ready after {timeout:g} s, such as {min(waiting)}")
            time.sleep(0.1)

    def add_priority_class(self, name: str, value: int, **fields: str) -> None:
        """Create it, and wait until pods may name it: the API server checks pods against classes that it watches."""
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        self.client.apply(kind | {"value": value} | fields)
        container = {"name": "main", "image": "none"}
        spec = {"priorityClassName": name, "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
        deadline = time.monotonic() + WAIT_S
        while self.client.request("POST", f"{PODS}?dryRun=All", pod)[0] != http.client.CREATED:
            assert time.monotonic() < deadline, f"the API server does not find PriorityClass {name}"
            time.sleep(0.05)

    def add_pods(self, pods: Iterable[Json]) -> list[str]:
        """Create pods in the namespace `default`; returns their names."""
        return [_name(pod) for pod in self.client.create_all(PODS, pods)]

    def delete_pods(self, names: Iterable[str]) -> None:
        for name in names:
            self.client.expect("DELETE", f"{PODS}/{name}")

    def change_pod(self, name: str, merged: Json) -> None:
        self.client.expect("PATCH", f"{PODS}/{name}", merged, "application/merge-patch+json")

    def nodes(self) -> list[Json]:
        items: list[Json] = self.client.expect("GET", NODES)["items"]
        return items

    def clear(self) -> None:
        """Remove all pods and nodes, the lease of the scheduler, and what Events told about them."""
        self.client.request("DELETE", NODES)
        self.client.request("DELETE", f"{LEASES}/{LEASE}")
        self.clear_pods()
        self.client.request("DELETE", EVENTS)

    def clear_pods(self) -> None:
        """Remove all pods."""
        self.client.request("DELETE", PODS, {"gracePeriodSeconds": 0})
        self.pods.wait(lambda pods: not pods)

    def leader(self, *, other_than: str = "", since: datetime | None = None, timeout: float = WAIT_S) -> str:
        """The host name of the scheduler that leads, once it is another than this one.

        Args:
            other_than: that of a former leader.
            since: when it led at the earliest. A lease also names a scheduler that has ended, for some seconds.
            timeout: in seconds.
        """

        def leads(lease: Json | None) -> bool:
            return _holder(lease) not in ("", other_than) and (since is None or _renewed_at(lease) > since)

        return _holder(self.client.wait(LEASES, LEASE, leads, timeout))

    def _ready(self) -> bool:
        try:
            return self.client.request("GET", "/readyz", timeout=2)[0] == http.client.OK
        except OSError:
            return False

    def _etcd_command(self, port: int, peer_port: int) -> list[str]:
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        return [
            str(self.bin / "etcd"),
            f"--data-dir={self.workdir / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # The data is thrown away anyway.
            "--unsafe-no-fsync",
        ]

    def _apiserver_command(self, port: int, etcd_port: int) -> list[str]:
        directory = self.certificates.directory
        return [
            str(self.bin / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            "--bind-address=127.0.0.1",
            # It would take the address of the default route, and a machine without a network has none.
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            # Refuses loopback addresses otherwise; there is no second server to find.
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={directory / 'server.crt'}",
            f"--tls-private-key-file={directory / 'server.key'}",
            f"--token-auth-file={self.certificates.token_file}",
            "--authorization-mode=RBAC",
            # No controller manager makes service accounts here, or takes the taint off a node that is ready.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.certificates.service_account_key}",
            f"--service-account-signing-key-file={self.certificates.service_account_key}",
            # The tests remove thousands of objects at a time; one worker would take a minute for them.
            "--delete-collection-workers=16",
            # A stopped server has nothing to drain here.
            "--shutdown-delay-duration=0s",
        ]


def _name(item: Json) -> str:
    name: str = item["metadata"]["name"]
    return name


def _holder(lease: Json | None) -> str:
    """kube-scheduler's identity is its host name, an underscore and a random part; empty when it gave the lease back."""
    identity: str = (lease or {"spec": {}})["spec"].get("holderIdentity") or ""
    return identity.partition("_")[0]


def _renewed_at(lease: Json | None) -> datetime:
    renewed: str | None = (lease or {"spec": {}})["spec"].get("renewTime")
    return datetime.fromisoformat(renewed) if renewed else datetime.min.replace(tzinfo=UTC)


def _is_ready(node: Json) -> bool:
    conditions = node["status"].get("conditions", ())
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


_RBAC = "rbac.authorization.k8s.io"


def _grant(name: str, user: str, rules: list[Json], namespace: str | None = None) -> tuple[Json, Json]:
    scope, metadata = (
        ("", {"name": name}) if namespace is None else ("Namespaced", {"name": name, "namespace": namespace})
    )
    kind = "Role" if scope else "ClusterRole"
    role = {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
    }
    return role, binding


RIGHTS = (
    *_grant(
        "gpuscheduler",
        pki.GPU_SCHEDULER,
        [
            {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["pods/binding", "pods/eviction"], "verbs": ["create"]},
            {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["get", "list", "watch"]},
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["resourceslices", "resourceclaims"],
                "verbs": ["list", "watch"],
            },
            # Why pods with claims wait.
            {"apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses"], "verbs": ["list"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
            *(
                {"apiGroups": [served_as.group], "resources": [served_as.resource], "verbs": ["list", "watch"]}
                for served_as in SERVED_AS.values()
            ),
        ],
    ),
    *_grant(
        "gpuscheduler",
        pki.GPU_SCHEDULER,
        [
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch"]},
            # Placeholders.
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]},
        ],
        namespace="kube-system",
    ),
    # The role that Kubernetes gives kube-scheduler names the lease `kube-scheduler` only.
    *_grant(
        "second-kube-scheduler",
        "system:kube-scheduler",
        [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update", "create"]}],
        namespace="kube-system",
    ),
)
