"""Calls, their errors in words, and how the client is configured."""

import json
import ssl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from urllib3.connection import HTTPSConnection

from gpuagent.kube.api.api_errors import ApiConfigError, ApiError, ApiStarting, ApiUnreachable
from gpuagent.kube.api.client import ROLES_S, STRATEGIC_MERGE_PATCH, Client, Timeouts
from gpuagent.kube.api.error_answers import error_of, resource_of
from gpuagent.kube.api.transport import Request, Transport, connect
from standin.api.server import ApiServer
from standin.waiting import PATIENCE_S

NODE = "/api/v1/nodes/n1"
NO_URL = """
clusters: [{name: c, cluster: {server: nonsense}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def test_gets_lists_patches_and_creates(server: ApiServer, client: Client) -> None:
    assert client.get(NODE)["metadata"]["name"] == "n1"
    assert [node["metadata"]["name"] for node in client.page("/api/v1/nodes")[1]] == ["n1"]
    assert list(client.page("/api/v1/nodes", {"fieldSelector": "metadata.name=other"})[1]) == []
    assert client.patch(NODE, {"metadata": {"labels": {"a": "b"}}})["metadata"]["labels"]["a"] == "b"
    condition = {"type": "GpusReady", "status": "True"}
    client.patch(f"{NODE}/status", {"status": {"conditions": [condition]}}, STRATEGIC_MERGE_PATCH)
    assert [found["type"] for found in server.node()["status"]["conditions"]] == ["Ready", "GpusReady"]
    made = client.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "report"}})
    assert made["metadata"]["uid"]


def test_a_status_patch_does_not_reach_the_rest(server: ApiServer, client: Client) -> None:
    client.patch(f"{NODE}/status", {"spec": {"unschedulable": True}})
    client.patch(NODE, {"status": {"capacity": {"cpu": "1"}}})
    assert "unschedulable" not in server.node()["spec"]
    assert server.node()["status"]["capacity"]["cpu"] == "8"


def test_not_found_carries_the_servers_words(client: Client) -> None:
    with pytest.raises(ApiError, match='404 NotFound: nodes "n2" not found') as caught:
        client.get("/api/v1/nodes/n2")
    assert (caught.value.status, caught.value.reason, caught.value.passing) == (404, "NotFound", False)


def test_forbidden_names_what_rbac_must_allow(server: ApiServer, client: Client) -> None:
    server.deny("patch", "nodes/status")
    with pytest.raises(ApiError, match='allow verb "patch" on resource "nodes/status" in API group ""') as caught:
        client.patch(f"{NODE}/status", {})
    assert caught.value.status == 403
    server.deny("watch", "pods")
    with pytest.raises(ApiError, match='allow verb "watch" on resource "pods"'):
        client.watch("/api/v1/pods")


def test_a_refusal_that_is_not_by_rbac_asks_for_no_further_right():
    """A webhook, a policy, a quota and a namespace in deletion answer 403 too."""
    quota = 'pods "p" is forbidden: exceeded quota: gpus'
    webhook = 'admission webhook "w.example.com" denied the request: no'
    policy = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
    for message in (quota, webhook, policy):
        text = str(error_of("patch", f"{NODE}/status", 403, "Forbidden", json.dumps({"message": message}).encode()))
        assert text == f'an admission check refuses patch on "nodes/status": have it allow this client ({message})'
    for said in (b"", b"<html>", json.dumps({"message": 'User "u" cannot patch resource "nodes"'}).encode()):
        text = str(error_of("patch", f"{NODE}/status", 403, "Forbidden", said))
        assert 'RBAC refuses: allow verb "patch" on resource "nodes/status"' in text


def test_a_server_that_comes_back_may_forbid_until_it_has_read_its_roles(server: ApiServer, client: Client) -> None:
    now = 100.0
    client.clock = lambda: now
    server.deny("get", "nodes")
    with pytest.raises(ApiError, match="RBAC refuses"):
        client.get(NODE)
    server.stop()
    with pytest.raises(ApiUnreachable):
        client.get(NODE)
    server.start()
    for seconds in (0.0, ROLES_S - 0.1):
        now = 100.0 + seconds
        with pytest.raises(ApiStarting):
            client.get(NODE)
    now = 100.0 + ROLES_S
    with pytest.raises(ApiError, match="RBAC refuses"):
        client.get(NODE)


def test_a_silent_server_surfaces(server: ApiServer, client: Client) -> None:
    server.pause()
    client.timeouts = Timeouts(call_s=0.3)
    with pytest.raises(ApiUnreachable, match=r"silent: nothing came within 0\.3 s"):
        client.get(NODE)
    with pytest.raises(ApiUnreachable, match=r"silent: nothing came within"):
        client.watch("/api/v1/nodes")
    server.resume()
    client.timeouts = Timeouts(call_s=PATIENCE_S)
    assert client.get(NODE)


def test_a_silent_watch_surfaces(server: ApiServer, tmp_path: Path) -> None:
    client = Client(str(server.write_kubeconfig(tmp_path / "config")), Timeouts(watch_silence_s=0.2))
    server.silence()
    with (
        client.watch("/api/v1/nodes", {"resourceVersion": "2"}) as watch,
        pytest.raises(ApiUnreachable, match=r"within 0\.2 s"),
    ):
        next(watch)


def test_a_server_that_is_away(server: ApiServer, client: Client) -> None:
    server.stop()
    with pytest.raises(ApiUnreachable, match=f"{server.url} cannot be reached: Connection refused"):
        client.get(NODE)
    server.start()
    assert client.get(NODE)


def test_watch_ends_in_good_order_when_asked(server: ApiServer, tmp_path: Path) -> None:
    client = Client(str(server.write_kubeconfig(tmp_path / "config")), Timeouts(watch_s=0))
    with client.watch("/api/v1/nodes") as watch:
        assert [event["type"] for event in watch] == ["ADDED"]


def test_watch_can_be_closed_from_another_thread(client: Client) -> None:
    with client.watch("/api/v1/nodes") as watch:
        assert next(watch)["type"] == "ADDED"
        watch.close()
        assert list(watch) == []


def test_an_old_version_is_gone(server: ApiServer, client: Client) -> None:
    version = client.page("/api/v1/nodes")[0]["resourceVersion"]
    server.expire()
    with (
        client.watch("/api/v1/nodes", {"resourceVersion": version}) as watch,
        pytest.raises(ApiError, match="too old") as caught,
    ):
        next(watch)
    assert caught.value.status == 410


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/nodes", ("nodes", "")),
        ("/api/v1/nodes/n1", ("nodes", "")),
        ("/api/v1/nodes/n1/status", ("nodes/status", "")),
        ("/api/v1/namespaces/default/pods/p/binding", ("pods/binding", "")),
        ("/api/v1/namespaces/default", ("namespaces", "")),
        ("/apis/coordination.k8s.io/v1/namespaces/a/leases/b", ("leases", "coordination.k8s.io")),
    ],
)
def test_paths_name_resources(path: str, resource: tuple[str, str]) -> None:
    assert resource_of(path) == resource


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot be read: No such file"),
        ("", "is empty"),
        ("clusters: [", "is malformed"),
        ("[]", "is malformed"),
        ("just text", "is malformed"),
        ("apiVersion: v1\nkind: Config\n", "is malformed"),
        (NO_URL, "not a URL"),
    ],
)
def test_a_bad_kubeconfig_is_explained(tmp_path: Path, content: str | None, text: str) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ApiConfigError, match=text) as caught:
        Client(str(path)).get(NODE)
    assert str(path) in str(caught.value)


def test_outside_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ApiConfigError, match="not running in a pod"):
        Client().connect()


@pytest.mark.parametrize("verified", [True, False])
def test_certificates_without_key_identifiers_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: bool
) -> None:
    """Python 3.13 refuses them by default. Certificates that Kubernetes 1.18 made have none."""
    monkeypatch.setattr("urllib3.util.ssl_.sys", SimpleNamespace(version_info=(3, 13)))
    config = tmp_path / "config"
    skip = "" if verified else ", insecure-skip-tls-verify: true"
    config.write_text(NO_URL.replace("nonsense", f"https://127.0.0.1:1{skip}"))
    transport = connect(str(config))
    (context,) = contexts(transport, monkeypatch, 1)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode is ssl.CERT_REQUIRED, context.check_hostname) == (verified, verified)
    transport.close()


def contexts(transport: Transport, monkeypatch: pytest.MonkeyPatch, count: int) -> list[ssl.SSLContext]:
    """What that many connections use for TLS; nothing listens where they connect to."""
    used: list[ssl.SSLContext] = []
    connect = HTTPSConnection.connect

    def noted(connection: HTTPSConnection) -> None:
        assert connection.ssl_context
        used.append(connection.ssl_context)
        connect(connection)

    monkeypatch.setattr(HTTPSConnection, "connect", noted)
    for _ in range(count):
        with pytest.raises(ApiUnreachable, match="Connection refused"):
            transport.send(Request(method="GET", path=NODE, query={}, timeout_s=(1, 1)))
    assert len(used) == count
    return used


def test_connections_share_no_tls_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3 loads certificates into it at each connection; beside a handshake in another thread Python crashes."""
    config = tmp_path / "config"
    config.write_text(NO_URL.replace("nonsense", "https://127.0.0.1:1"))
    transport = connect(str(config))
    first, second = contexts(transport, monkeypatch, 2)
    assert first is not second
    transport.close()


def test_new_credentials_are_read_after_a_401(server: ApiServer, client: Client, tmp_path: Path) -> None:
    server.token = "first"
    with pytest.raises(ApiError, match="401 Unauthorized") as caught:
        client.get(NODE)
    assert caught.value.passing
    server.write_kubeconfig(tmp_path / "kubeconfig")
    assert client.get(NODE)


def test_what_is_no_api_server_is_reported(server: ApiServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standin.api.handler.json.dumps", lambda *_, **__: "<html>")
    with pytest.raises(ApiError, match="not JSON; is this an API server"):
        client.get(NODE)
    assert server.url


def test_importing_the_edge_does_not_load_the_library() -> None:
    code = (
        "import sys, gpuagent.kube.api.client, gpuagent.kube.watch.node_watch, gpuagent.kube.write.node_writer\n"
        "gpuagent.kube.api.client.Client('/nowhere')\n"
        "sys.exit(bool({'kubernetes', 'urllib3'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603 - our own code


def test_no_api_class_and_no_model_is_loaded(server: ApiServer, tmp_path: Path) -> None:
    config = server.write_kubeconfig(tmp_path / "config")
    code = (
        f"import sys; from gpuagent.kube.api.client import Client; Client({str(config)!r}).get({NODE!r})\n"
        "heavy = ('kubernetes.client.api.', 'kubernetes.client.models.v1_')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    assert result.stdout.strip() == "[]"


def test_the_agent_loads_nothing_that_only_development_has() -> None:
    code = "import sys, gpuagent.kube.api.kubeconfig; print('jsonschema' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    assert result.stdout.strip() == "False"


def test_when_to_ask_again_is_read_where_it_is_a_number_of_seconds() -> None:
    values = ["7", "Wed, 21 Oct 2015 07:28:00 GMT", "", None, "9" * 9]
    errors = [error_of("list", NODE, 429, "", b"too many", one) for one in values]
    assert [error.retry_after_s for error in errors] == [7, None, None, None, None]
    body = b'{"message": "too many", "details": {"retryAfterSeconds": 3}}'
    assert error_of("list", NODE, 429, "", body).retry_after_s == 3
