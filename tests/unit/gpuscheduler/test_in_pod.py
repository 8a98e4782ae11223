"""The scheduler's connection in a pod, over TLS: token and certificates that others replace, and proxies."""

import asyncio
import shutil

import pytest

from gpuagent.kube.api.access import access
from gpuagent.kube.api.api_errors import ApiConfigError, ApiError, ApiUnreachable
from gpuscheduler.cluster_api import connection as module
from gpuscheduler.cluster_api.connection import Connection, decoded
from standin.api.server import ApiServer
from tests.unit.kube.api.in_pod import pod_on
from tests.unit.kube.api.test_proxies import LOGINS
from tests.unit.kube.api.tunnel_proxy import Proxy

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")

NODE = "/api/v1/nodes/n1"


@pytest.fixture
def read_each_time(monkeypatch):
    """As if the time of a token had passed between calls."""
    monkeypatch.setattr(module, "TOKEN_S", 0.0)


@pytest.fixture(params=["read", "written"])
def name(request):
    """A step that reads or writes the node: each of them has its own connections. Its result is the node's name."""

    async def read(connection):
        return decoded(await connection.get(NODE))["metadata"]["name"]

    async def written(connection):
        await connection.patch(NODE, {"metadata": {"labels": {"written": "yes"}}})
        return "n1"

    return read if request.param == "read" else written


def in_pod(*steps):
    """Run steps that take the connection, one after the other, on one connection. Returns the results of coroutines."""

    async def run():
        results = []
        async with Connection(access(None), lambda _verb, _code: None) as connection:
            for step in steps:
                result = step(connection)
                results += [await result] if asyncio.iscoroutine(result) else []
        return results

    return asyncio.run(run())


def test_a_rotated_token_and_authority_are_used(pod, renewed, read_each_time, name):
    def rotate(_connection):
        pod.write_token("second")
        pod.server.show(renewed)
        pod.trust(renewed)

    pod.write_token("first")
    assert in_pod(name, rotate, name) == ["n1", "n1"]
    assert pod.authorizations == {"Bearer first": 1, "Bearer second": 1}


def test_a_connection_that_a_replaced_authority_vouched_for_is_not_used_again(pod, renewed, read_each_time, name):
    with pytest.raises(ApiUnreachable, match="its certificate is not accepted: .+"):
        in_pod(name, lambda _connection: pod.trust(renewed), name)
    assert pod.authorizations.total() == 1


def test_connections_are_kept_while_the_certificates_stay(pod, read_each_time, name):
    def one_connection(_connection):
        assert pod.connections() == 1

    in_pod(name, name, name, one_connection)


@pytest.mark.parametrize("file", ["token", "ca.crt"])
def test_the_former_credentials_serve_while_a_file_is_missing(pod, read_each_time, file, name):
    assert in_pod(name, lambda _connection: (pod.account / file).unlink(), name) == ["n1", "n1"]


def test_a_refused_token_is_read_again(pod, name):
    async def refused(connection):
        pod.server.token = "second"
        pod.write_token("second")
        with pytest.raises(ApiError, match="it does not accept the credentials"):
            await name(connection)

    assert in_pod(name, refused, name)[-1] == "n1"


@pytest.mark.parametrize("file", ["token", "ca.crt"])
def test_a_missing_file_is_explained_at_the_start(pod, file, name):
    (pod.account / file).unlink()
    with pytest.raises(ApiConfigError, match=f"cannot be read.*{file}.*: No such file or directory"):
        in_pod(name)


def test_the_proxy_of_the_environment_is_used(pod, monkeypatch, name):
    with Proxy(pod.server_address) as proxy:
        proxy.login = "user:p@ss"
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//user:p%40ss@"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        assert in_pod(name) == ["n1"]
        assert proxy.tunnels == ["kubernetes.default.svc:443"]
        assert "standin" not in "".join(proxy.heads)


@pytest.mark.parametrize(("login", "sent"), LOGINS)
def test_a_proxy_gets_any_login(pod, monkeypatch, login, sent, name):
    with Proxy(pod.server_address) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", f"//{login}@"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        assert in_pod(name) == ["n1"]
        assert proxy.credentials == [sent]


def test_no_proxy_excepts_the_server(pod, monkeypatch, name):
    with Proxy(pod.server_address) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", ".svc")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        with pytest.raises(ApiUnreachable, match="its name cannot be resolved"):
            in_pod(name)
        assert not proxy.tunnels


def test_an_api_server_with_an_ipv6_address(tmp_path, certificate, monkeypatch, name):
    try:
        server = ApiServer("n1", host="::1", certificate=certificate)
    except OSError:
        pytest.skip("this machine has no IPv6 on loopback")
    with server:
        pod_on(server, tmp_path / "account", monkeypatch)
        assert in_pod(name) == ["n1"]
