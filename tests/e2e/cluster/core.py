"""The cluster: its components, its one node, and what tests do with pods on it."""

import json
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from http.client import OK, HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from tests.e2e.build import KUBERNETES, bin_dir

from . import pki
from .api_client import ApiClient, ApiError
from .audit_log import AuditLog
from .cgroups import pods_hierarchy
from .component_settings import API_ADDRESS, API_PORT, NO_POLICY, ComponentSettings, KubeletKind
from .components import Components
from .host import Host
from .kubelet_files import Checkpoint, read_checkpoint
from .manifests import NODE_NAME, Json
from .part_logs import newest, present, register_container_logs, register_description
from .processes import Process, start_time, unread_by
from .runtime import Container, containers
from .waiting import WAIT_S

_NODES = "/api/v1/nodes"
_HAS_LISTED_PODS = '"SyncLoop ADD" source="api"'
"""What kubelet logs when it has read its pods from the API server, also if there are none."""
_COMES_LAST = 200_000
"""Bytes of an annotation: more than all that happens to the pods of a test while kubelet is paused."""
_ASKED_S = 10.0
"""For the description of a cluster that is broken, and may not answer."""


class Cluster:
    """etcd, control plane, containerd and kubelet of one node, in a work directory of its own."""

    def __init__(self, workdir: Path, kubelet_version: str = KUBERNETES) -> None:
        self.workdir = workdir
        self.kubelet_version = kubelet_version
        self.topology_policy = NO_POLICY
        self.pod_cgroups = False
        self.feature_gates: tuple[str, ...] = ()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # The whole cluster

    def start(self) -> None:
        """Everything, up to a node that is ready for pods."""
        with ExitStack() as stack:
            self._cgroups = stack.enter_context(Host(self.workdir)).cgroups
            self._pki = pki.create(self.workdir / "pki", API_ADDRESS, API_PORT)
            root = self._cgroups.kubelet_root
            self._settings = ComponentSettings.choose(bin_dir(), self.workdir, self._pki, root)
            self.client = ApiClient(self._pki.server, self._pki.ca, self._pki.tokens[pki.ADMIN])
            self._components = Components.create(self._settings, self.client)
            register_container_logs(self._settings.pod_logs)
            register_description("objects of the cluster", self._describe)
            stack.callback(self._components.stop_all)
            self._components.start_all_but_kubelet()
            self.start_kubelet()
            self.wait_node(lambda node: not node["spec"].get("taints"))
            # Pods are refused before the controller manager has made it.
            accounts = "/api/v1/namespaces/default/serviceaccounts"
            self.client.wait(accounts, "default", lambda account: account is not None)
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """End everything and leave the machine as it was; the work directory keeps the logs."""
        self._stack.close()

    # API server

    @property
    def server(self) -> str:
        return self._pki.server

    @property
    def ca_file(self) -> Path:
        return self._pki.ca

    def token(self, user: str = pki.ADMIN) -> str:
        """Of `admin` (may do everything) or `gpuagent` (nothing but what is granted)."""
        return self._pki.tokens[user]

    def kubeconfig(self, user: str = pki.ADMIN) -> Path:
        return self._pki.kubeconfig(user)

    def api(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
        token: str | None = None,
    ) -> tuple[int, Json]:
        """One request, as admin unless a token says otherwise: status and answer, whatever they are."""
        return self.client.request(method, path, body, content_type, token)

    def apply(self, manifest: Json) -> Json:
        """Create or update any object."""
        return self.client.apply(manifest)

    def apply_rbac(self, manifests: Iterable[Json]) -> None:
        for manifest in manifests:
            self.apply(manifest)

    def apply_yaml(self, path: Path) -> list[Json]:
        """Every document of a file."""
        return [self.apply(manifest) for manifest in yaml.safe_load_all(path.read_text()) if manifest]

    def pause_apiserver(self) -> None:
        """It hangs: connections are accepted and never answered."""
        self._components.apiserver.pause()

    def resume_apiserver(self) -> None:
        self._components.apiserver.resume()

    def stop_apiserver(self) -> None:
        """It is down: connections are refused. Killed, as it would first wait for watches to end."""
        self._components.apiserver.kill()

    def silence_apiserver(self) -> None:
        """It answers no more, and keeps its connections. To be stopped afterwards."""
        self._components.apiserver.pause()

    def start_apiserver(self, timeout: float = WAIT_S, *, settle: bool = True) -> None:
        """Up again, and all of its clients are back.

        kubelet comes back with a delay that doubles with each outage up to 30 s, and forgets so after two minutes.
        With ``settle=False`` the server only answers.
        """
        before = self.audit.position()
        self._components.start_apiserver(timeout)
        self._components.restart_apiserver_clients()
        if settle and self._kubelet.running:
            self._kubelet.wait_for(lambda: self.audit.kubelet_watches(before), timeout)

    def restart_scheduler(self) -> None:
        """Start it again. It places no pod before it has read everything again.

        One that stood still takes up what has happened meanwhile in any order: it may place a new pod by objects that
        were changed before the pod was created.
        """
        self._components.scheduler.kill()
        self._components.scheduler.start()

    @contextmanager
    def control_plane_flags(self, *flags: str) -> Iterator[None]:
        """The control plane restarts with further flags, such as `--emulated-version`; without them afterwards."""
        self._restart_control_plane(flags)
        try:
            yield
        finally:
            self._restart_control_plane(())

    def _restart_control_plane(self, flags: Iterable[str]) -> None:
        self.stop_apiserver()
        self._components.set_control_plane_flags(tuple(flags))
        self.start_apiserver()

    @property
    def audit(self) -> AuditLog:
        """Requests of the user `gpuagent` and of service accounts."""
        return AuditLog(self._settings.audit_log)

    # kubelet

    @property
    def _kubelet(self) -> Process:
        kind = KubeletKind(self.kubelet_version, self.topology_policy, self.pod_cgroups, self.feature_gates)
        return self._components.kubelet(kind)

    def start_kubelet(
        self,
        version: str | None = None,
        *,
        topology_policy: str | None = None,
        pod_cgroups: bool | None = None,
        feature_gates: tuple[str, ...] | None = None,
        wait: bool = True,
    ) -> None:
        """Start it, in another version or with another policy if wished; then wait until its own report says Ready.

        It has read its pods by then: one that is paused before would get all later ones in one list.
        A change of version restarts the containers of running pods: the versions hash container specs differently.
        Policies of the Topology Manager other than `none` see two NUMA nodes, whatever the machine has.
        With `pod_cgroups`, each pod has a control group, as on every ordinary node; no pod may run at the change.
        `feature_gates` are turned on, in addition to those that are on by default.
        """
        self.kubelet_version = version or self.kubelet_version
        self.topology_policy = topology_policy or self.topology_policy
        if feature_gates is not None:
            self.feature_gates = feature_gates
        if pod_cgroups is not None:
            self.pod_cgroups = pod_cgroups
        if self.pod_cgroups:
            self._cgroups.make_kubelet_root()
        # Heartbeats have a resolution of one second.
        started = datetime.now(UTC).replace(microsecond=0)
        self._kubelet.start()
        if not wait:
            return
        prefix = f"v{self.kubelet_version}."

        def reported(node: Json) -> bool:
            ready = {condition["type"]: condition for condition in node["status"].get("conditions", ())}.get("Ready")
            return (
                ready is not None
                and ready["status"] == "True"
                and datetime.fromisoformat(ready["lastHeartbeatTime"]) > started
                and node["status"]["nodeInfo"]["kubeletVersion"].startswith(prefix)
            )

        self._kubelet.wait_for(lambda: self._node_is(reported))
        self._kubelet.wait_for(lambda: _HAS_LISTED_PODS in self._kubelet.log_since_start())

    def _node_is(self, wanted: Callable[[Json], bool]) -> bool:
        try:
            status, node = self.api("GET", f"{_NODES}/{NODE_NAME}")
        except OSError:
            return False
        return status == OK and wanted(node)

    @property
    def kubelet_pid(self) -> int:
        return self._kubelet.pid

    @contextmanager
    def paused_kubelet(self) -> Iterator[None]:
        """It does nothing. What the API server tells it waits in its sockets, and comes to it all at once."""
        self._kubelet.pause()
        try:
            yield
        finally:
            self._kubelet.resume()

    def wait_kubelet_backlog(self, pod: str) -> None:
        """Until the API server has sent the paused kubelet all that has happened to its pods so far.

        A running pod gets an annotation that is larger than all of that, which comes last. An API server that is killed
        earlier takes along what it has not sent yet.
        """
        before = self._unread_by_kubelet()
        metadata = {"annotations": {"e2e/comes-last": "x" * _COMES_LAST}}
        self.client.expect("PATCH", f"{_pods('default')}/{pod}", {"metadata": metadata}, "application/merge-patch+json")
        end = time.monotonic() + WAIT_S
        while self._unread_by_kubelet() < before + _COMES_LAST:
            assert time.monotonic() < end, "the API server does not send what happens to kubelet's pods"
            time.sleep(0.05)

    def _unread_by_kubelet(self) -> int:
        return unread_by(self._kubelet.pid, API_ADDRESS, API_PORT)

    def wait_kubelet_read(self) -> None:
        """Until kubelet, running again, has read what the API server has sent.

        Kubelet drops a connection with all that it has not read of it if it writes to a server that has gone.
        """
        end = time.monotonic() + WAIT_S
        while self._unread_by_kubelet():
            assert time.monotonic() < end, "kubelet does not read from its connections"
            time.sleep(0.05)

    def stop_kubelet(self) -> None:
        self._kubelet.stop()

    def kill_kubelet(self) -> None:
        self._kubelet.kill()

    def restart_kubelet(
        self,
        version: str | None = None,
        *,
        topology_policy: str | None = None,
        pod_cgroups: bool | None = None,
        feature_gates: tuple[str, ...] | None = None,
    ) -> None:
        self.stop_kubelet()
        self.start_kubelet(
            version, topology_policy=topology_policy, pod_cgroups=pod_cgroups, feature_gates=feature_gates
        )

    @property
    def cgroup_root(self) -> Path:
        """The folder in which kubelet with `pod_cgroups` makes `kubepods`; on cgroup v1, that of the memory controller."""
        return pods_hierarchy() / self._cgroups.kubelet_root.removeprefix("/")

    def remove_containers(self) -> None:
        """End every container, as a reboot does; kubelet has to be stopped."""
        self._components.restart_runtime_without_containers()

    def kubelet_get(self, path: str) -> str:
        """A page of kubelet's own server, such as /metrics. The server may begin later than kubelet's reports."""
        self._kubelet.wait_for(self._kubelet_listens)
        with closing(self._kubelet_connection()) as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def _kubelet_listens(self) -> bool:
        try:
            with closing(self._kubelet_connection()) as connection:
                connection.connect()
        except OSError:
            return False
        return True

    def _kubelet_connection(self) -> HTTPSConnection:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # kubelet signed its certificate itself
        return HTTPSConnection("127.0.0.1", self._settings.kubelet_port, timeout=WAIT_S, context=tls)

    def checkpoint(self) -> Checkpoint:
        """kubelet's record of who holds which device ids."""
        return read_checkpoint()

    def import_images(self, archive: Path) -> None:
        """Put the images of a docker-archive on the node."""
        self._components.ctr.import_images(archive)

    def name_image(self, name: str, other: str) -> None:
        """Give an image of the node another name, in full: docker.io/library/busybox:1.36."""
        self._components.ctr.name_image(name, other)

    # Node

    def node(self) -> Json:
        return self.client.expect("GET", f"{_NODES}/{NODE_NAME}")

    def label_node(self, labels: Mapping[str, str | None]) -> None:
        """Set labels; None removes one."""
        patch: Json = {"metadata": {"labels": dict(labels)}}
        self.client.expect("PATCH", f"{_NODES}/{NODE_NAME}", patch, "application/merge-patch+json")

    def wait_node(self, wanted: Callable[[Json], bool]) -> Json:
        return self._wait(_NODES, NODE_NAME, wanted, WAIT_S)

    # Pods

    def create_pod(self, manifest: Json) -> Json:
        namespace = manifest["metadata"].get("namespace", "default")
        return self.client.expect("POST", _pods(namespace), manifest)

    def pod(self, name: str, namespace: str = "default") -> Json:
        return self.client.expect("GET", f"{_pods(namespace)}/{name}")

    def wait_pod(
        self, name: str, wanted: Callable[[Json], bool], timeout: float = WAIT_S, namespace: str = "default"
    ) -> Json:
        """Watch until the pod exists and is as wanted."""
        return self._wait(_pods(namespace), name, wanted, timeout)

    def wait_phase(self, name: str, *phases: str, timeout: float = WAIT_S, namespace: str = "default") -> Json:
        return self.wait_pod(name, lambda pod: pod["status"].get("phase") in phases, timeout, namespace)

    def run_pod(self, manifest: Json, timeout: float = WAIT_S) -> Json:
        """Create it and wait until it runs, or fails: the caller looks at the phase."""
        created = self.create_pod(manifest)["metadata"]
        return self.wait_phase(
            created["name"], "Running", "Succeeded", "Failed", timeout=timeout, namespace=created["namespace"]
        )

    def delete_pod(self, name: str, grace: int = 0, timeout: float = WAIT_S, namespace: str = "default") -> None:
        """Delete it, if it exists, and wait until neither the API nor the node has it (``timeout=0``: do not wait).

        Grace 0 takes it out of the API at once, while kubelet still ends its containers.
        """
        path = f"{_pods(namespace)}/{name}"
        status, answer = self.api("DELETE", path, {"gracePeriodSeconds": grace})
        if status == 404:
            return
        if status >= 400:
            raise ApiError("DELETE", path, status, answer)
        if timeout > 0:
            self.wait_pod_gone(name, timeout, namespace)

    def wait_pod_gone(self, name: str, timeout: float = WAIT_S, namespace: str = "default") -> None:
        """Until neither the API nor the node has it."""
        deadline = time.monotonic() + timeout
        self.client.wait(_pods(namespace), name, lambda pod: pod is None, timeout)
        while any((found.namespace, found.pod) == (namespace, name) for found in containers()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"containers of pod {name} are still there after {timeout:g} s")
            time.sleep(0.02)

    def container(self, pod: str, name: str = "main", namespace: str = "default") -> Container:
        """A running container, found on the node and not through the API.

        The one that was started last: of a pod that was deleted by force, containers run on beside those of the next
        pod of that name.
        """
        running: dict[int, Container] = {}
        for found in containers():
            if (found.namespace, found.pod, found.name) == (namespace, pod, name) and found.alive:
                # It may end in between.
                running[int(start_time(found.pid) or 0)] = found
        if not running:
            raise LookupError(f"container {name} of pod {pod} does not run")
        return running[max(running)]

    def exec_env(self, pod: str, container: str = "main", namespace: str = "default") -> dict[str, str]:
        """The environment that the image's program has."""
        return self._begun(pod, container, namespace)[1]

    def container_devices(self, pod: str, container: str = "main", namespace: str = "default") -> list[str]:
        """The names in /dev inside the running container."""
        return self._begun(pod, container, namespace)[0].devices()

    def _begun(self, pod: str, name: str, namespace: str) -> tuple[Container, dict[str, str]]:
        """A running container whose first process is the image's program, and no longer the runtime's own.

        Its environment was read once: while a shell gives way to its last command, there is none.

        Raises:
            LookupError: it does not run, or has ended before it began.
        """
        deadline = time.monotonic() + WAIT_S
        while True:
            container = self.container(pod, name, namespace)
            try:
                environment = container.environment()
            except OSError:
                environment = {}  # it has just ended
            if "KUBERNETES_SERVICE_HOST" in environment:
                return container, environment
            if time.monotonic() > deadline:
                raise TimeoutError(f"container {name} of pod {pod}: its program did not begin within {WAIT_S:g} s")
            time.sleep(0.02)

    def execute(
        self, pod: str, *command: str, container: str = "main", namespace: str = "default"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside the running container."""
        return self._components.ctr.execute(self.container(pod, container, namespace), *command)

    def pod_log(self, pod: str, container: str = "main", namespace: str = "default") -> str:
        """What the newest run of a container has printed; also of pods that have ended."""
        text = newest(present(self._settings.pod_logs, f"{namespace}_{pod}_*/{container}/*.log"))
        # Each line begins with time, stream and a flag.
        return "".join(line.split(" ", 3)[3] for line in text.splitlines(keepends=True))

    def _describe(self) -> str:
        """What an operator would look at first."""
        lines = []
        node = self.client.expect("GET", f"{_NODES}/{NODE_NAME}", timeout=_ASKED_S)
        lines.append(f"node: {json.dumps(node['status'].get('allocatable'))}")
        for condition in node["status"].get("conditions", ()):
            lines.append(f"  {condition['type']}={condition['status']}: {condition.get('message', '')}")
        for pod in self.client.expect("GET", "/api/v1/pods", timeout=_ASKED_S)["items"]:
            lines.append(f"pod {pod['metadata']['name']}: {json.dumps(pod['status'])[:600]}")
        events = self.client.expect("GET", "/api/v1/events", timeout=_ASKED_S)["items"]
        for event in sorted(events, key=_seen_at)[-40:]:
            about = event["involvedObject"].get("name")
            lines.append(f"{_seen_at(event)} {event['reason']} on {about}: {event['message'][:300]}")
        return "\n".join(lines)

    def _wait(self, path: str, name: str, wanted: Callable[[Json], bool], timeout: float) -> Json:
        try:
            found = self.client.wait(path, name, lambda item: item is not None and wanted(item), timeout)
        except TimeoutError as error:
            for note in self._components.ended():
                error.add_note(note)
            raise
        assert found is not None
        return found


def _seen_at(event: Json) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or ""


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"
