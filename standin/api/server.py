"""A small faithful API server on loopback: nodes, pods, events, config maps and leases, with faults at run time.

``write_kubeconfig`` makes the file for clients (kubectl get, label, describe work too), and ``write_service_account``
those of a pod. It speaks plain HTTP unless it has a certificate. It behaves as kube-apiserver 1.36, but authenticates
only a token, and has no admission, no json-patch and no server-side apply.
"""

import copy
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from standin.api.handler import Handler
from standin.api.objects import Json, Objects
from standin.api.paging import OpenLists
from standin.certificates import ServerCertificate
from standin.waiting import PATIENCE_S


class _Server(ThreadingHTTPServer):
    """Keeps its connections, so that stopping ends them."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], owner: "ApiServer") -> None:
        self.owner = owner
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.connections: set[socket.socket] = set()
        self.ended = False
        super().__init__(address, Handler)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        if self.owner.tls is not None:
            # The handshake waits for the client, so it is left to the connection's own thread.
            connection = self.owner.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as the base class
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class
        """Clients that hang up are no news."""

    def end(self) -> None:
        self.ended = True
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            hang_up(connection)


class ApiServer:
    """Starts listening when made; holds one Node from the start. Also a context manager, which stops it.

    Args:
        node_name: name of that Node.
        labels: its labels.
        kubelet: version of its kubelet in the Node's status; empty for none.
        host: the loopback address to listen on.
        certificate: for TLS; None for plain HTTP.
    """

    def __init__(
        self,
        node_name: str = "node-1",
        labels: Mapping[str, str] | None = None,
        *,
        kubelet: str = "",
        host: str = "127.0.0.1",
        certificate: ServerCertificate | None = None,
    ) -> None:
        self.objects = Objects()
        self.node_name = node_name
        self.requests: Counter[str] = Counter()  # by "verb resource": "patch nodes/status"
        self.parameters: set[str] = set()  # names of all query parameters so far
        self.denied: set[tuple[str, str]] = set()
        self.installed: set[str] = set()  # custom resources that it serves, and others that discovery shows
        self.discovery_code = 0  # the error of discovery calls about groups; 0 for none
        self.failing: dict[tuple[str, str], list[int]] = {}  # codes of the next answers; 0: it breaks the connection
        self.token = ""  # what requests must carry, unless empty
        self.impersonated: list[
            tuple[str, list[str]]
        ] = []  # name of a header, and its values, in the order of requests
        self.answering = threading.Event()
        self.answering.set()
        self.silent = False
        self.watches_ended_at = float("-inf")
        self.held: set[tuple[str, bool]] = set()  # resources whose lists wait: of one namespace, or of all
        # In the order in which they were opened: a set's order of connections differs from run to run.
        self.watches: list[socket.socket] = []
        self.lists = OpenLists()
        self.tls: ssl.SSLContext | None = None
        self._authority: Path | None = None
        if certificate is not None:
            self.show(certificate)
        self._host = host
        self._port = 0
        self.server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.objects.create("nodes", "", node_body(node_name, labels or {}, kubelet))
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port``; stays the same over ``stop`` and ``start``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self._port}"

    @property
    def pod_environment(self) -> dict[str, str]:
        """The variables by which a pod finds the API server."""
        return {"KUBERNETES_SERVICE_HOST": self._host, "KUBERNETES_SERVICE_PORT": str(self._port)}

    def show(self, certificate: ServerCertificate) -> None:
        """Use this certificate for new connections."""
        if self.tls is None:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.load_into(self.tls)
        self._authority = certificate.authority

    def write_service_account(self, directory: Path) -> None:
        """Write token and certificate as kubelet mounts them into a pod."""
        (directory / "token").write_text(self.token or "standin", encoding="utf-8")
        if self._authority is not None:
            (directory / "ca.crt").write_bytes(self._authority.read_bytes())

    def write_kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server (JSON, which is YAML too) and return its path."""
        cluster = {"server": self.url}
        if self._authority is not None:
            cluster["certificate-authority"] = str(self._authority)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "standin", "cluster": cluster}],
            "users": [{"name": "standin", "user": {"token": self.token} if self.token else {}}],
            "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "standin"}}],
            "current-context": "standin",
        }
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")
        return path

    # Life and faults

    def start(self) -> None:
        """Listen (again), on the port of before, with all objects kept."""
        if self.server is None:
            self.server = _Server((self._host, self._port), self)
            self._port = self.server.server_address[1]
            self._thread = threading.Thread(
                target=self.server.serve_forever, args=(0.02,), name="standin-api", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Close the port and break every connection."""
        server, self.server = self.server, None
        if server is not None and self._thread is not None:
            server.end()
            self._thread.join()

    def pause(self) -> None:
        """Accept connections but answer nothing, and hold back every watch, until ``resume``."""
        self.answering.clear()

    def silence(self) -> None:
        """Keep watches open and say nothing on them, not even their end, until ``resume``; other calls work."""
        self.silent = True

    def end_watches(self) -> None:
        """End every open watch without an error, as when its time is over."""
        self.watches_ended_at = time.monotonic()
        with self.objects.updated:
            self.objects.updated.notify_all()

    def hold_lists(self, resource: str, *, namespaced: bool = False) -> None:
        """Hold back lists of all objects of ``resource``, and with ``namespaced`` also those of a namespace."""
        self.held |= {(resource, False), (resource, namespaced)}

    def resume(self) -> None:
        """End ``pause``, ``silence`` and ``hold_lists``."""
        self.silent = False
        self.held = set()
        self.answering.set()

    def deny(self, verb: str, resource: str) -> None:
        """Answer 403 to ``verb`` (get, list, watch, create, patch, update, delete) on, say, ``nodes/status``."""
        self.denied.add((verb, resource))

    def allow(self, verb: str, resource: str) -> None:
        """Take a ``deny`` back."""
        self.denied.discard((verb, resource))

    def fail(self, verb: str, resource: str, *codes: int) -> None:
        """Refuse the next ``verb`` on ``resource`` with these codes, one each; with 0 do it, and give no answer."""
        self.failing.setdefault((verb, resource), []).extend(codes)

    def expire(self) -> None:
        """Answer 410 to the next watch from, or page of, any version so far; open watches continue."""
        self.objects.forget()

    def drop_watches(self) -> None:
        """Break the connection of every open watch."""
        for connection in list(self.watches):
            hang_up(connection)

    # What tests and the demo look at and do

    def node(self) -> Json:
        """Return the Node."""
        return self.objects.get(("nodes", "", self.node_name))

    def pods(self) -> list[Json]:
        """Return all pods."""
        return self.objects.all("pods")[0]

    def events(self) -> list[Json]:
        """Return all core/v1 Events."""
        return self.objects.all("events")[0]

    def config_map(self, name: str, namespace: str = "kube-system") -> Json | None:
        """Return a ConfigMap, or None."""
        found = self.objects.all("configmaps", namespace)[0]
        return next((one for one in found if one["metadata"]["name"] == name), None)

    def label_node(self, labels: Mapping[str, str | None]) -> Json:
        """Set labels of the Node; None removes one."""
        patch: Json = {"metadata": {"labels": dict(labels)}}
        return self.objects.patch(("nodes", "", self.node_name), "", patch, strategic=False)

    def patch_node_status(self, status: Json) -> Json:
        """Merge into the Node's status as kubelet does; None removes a key."""
        return self.objects.patch(("nodes", "", self.node_name), "status", {"status": status}, strategic=True)

    def create_pod(
        self,
        name: str,
        resources: Mapping[str, str] | None = None,
        *,
        namespace: str = "default",
        node: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Json:
        """Create a pod of one container ``main`` with these limits; on the Node at once unless ``node`` is ""."""
        limits = dict(resources or {})
        container = {"name": "main", "image": "work", "resources": {"limits": limits, "requests": dict(limits)}}
        body: Json = {
            "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
            "spec": {"containers": [container]},
            "status": {"phase": "Pending"},
        }
        if bound := self.node_name if node is None else node:
            body["spec"]["nodeName"] = bound
        return self.objects.create("pods", namespace, body)

    def patch_pod(self, name: str, patch: Json, *, namespace: str = "default", subresource: str = "") -> Json:
        """Strategic merge patch of a pod, or of its status."""
        return self.objects.patch(("pods", namespace, name), subresource, copy.deepcopy(patch), strategic=True)

    def delete_pod(self, name: str, *, namespace: str = "default", grace_s: int | None = 0) -> Json:
        """Delete a pod; with a grace it only gets its deletionTimestamp."""
        return self.objects.delete(("pods", namespace, name), grace_s=grace_s)

    def wait(self, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> bool:
        """Wait until ``condition`` holds, asked after every change of an object; return whether it came to hold."""
        deadline = time.monotonic() + timeout_s
        with self.objects.updated:
            while not condition():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self.objects.updated.wait(min(left_s, 0.05))  # a look now and then also at what is no object
            return True


def hang_up(connection: socket.socket) -> None:
    """Break a connection, also under a thread that reads or writes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is gone already


def node_body(name: str, labels: Mapping[str, str], kubelet: str) -> Json:
    """Return a Node as a kubelet without device plugins registers it."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {},
        "status": {
            "capacity": dict(amounts),
            "allocatable": dict(amounts),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
            "nodeInfo": {"kubeletVersion": kubelet},
        },
    }
