"""Proxies between a pod and its API server."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client.rest import should_bypass_proxies

from gpuagent.kube.api.api_errors import ApiConfigError, ApiUnreachable
from gpuagent.kube.api.client import Client, Timeouts
from gpuagent.kube.api.proxy import proxy_to
from standin.certificates import ServerCertificate, make_server_certificate
from standin.waiting import PATIENCE_S
from tests.unit.kube.api.in_pod import PROXY_VARIABLES, Pod
from tests.unit.kube.api.tunnel_proxy import Proxy

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")
LOGINS = [
    ("user:p%40ss", b"user:p@ss"),
    ("user:p€ss", "user:p€ss".encode()),
    ("user:p%E2%82%ACss", "user:p€ss".encode()),
    ("us%3Aer:a:b", b"us:er:a:b"),
    ("user:%FF", b"user:\xff"),
    ("user:\udcff", b"user:\xff"),
    ("user", b"user:"),
    (":pass", b":pass"),
    ("user@corp:p@ss", b"user@corp:p@ss"),
]
"""Logins in a URL, and the bytes that the proxy gets."""
NODE = "/api/v1/nodes/n1"
NAME, PORT = "kubernetes.default.svc", "443"
"""Where the pod finds its API server: a name that only the proxy can resolve."""
LOGIN = "user:p@ss"


@pytest.fixture
def pod(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> Pod:
    """A pod that only a proxy leads to its API server."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", NAME)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", PORT)
    return pod


@pytest.fixture
def proxy(pod: Pod) -> Iterator[Proxy]:
    with Proxy(pod.server_address) as proxy:
        yield proxy


@pytest.fixture
def client(pod: Pod) -> Iterator[Client]:
    client = Client(None, Timeouts(connect_s=PATIENCE_S, call_s=PATIENCE_S))
    yield client
    client.close()


def name_of(client: Client) -> str:
    return client.get(NODE)["metadata"]["name"]


# -- through a proxy -------------------------------------------------------------------------------------------------


@needs_openssl
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_calls_and_watches_go_through_a_tunnel_and_the_token_only_inside(
    pod: Pod, client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, proxy.url)
    assert name_of(client) == "n1"
    assert name_of(client) == "n1"
    assert proxy.tunnels == [f"{NAME}:{PORT}"], "one connection serves both"
    with client.watch("/api/v1/nodes") as watch:
        assert next(watch)["type"] == "ADDED"
    assert pod.authorizations == {"Bearer standin": 3}
    assert "standin" not in "".join(proxy.heads)


@needs_openssl
def test_the_server_behind_a_proxy_is_verified(
    pod: Pod, client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "kubernetes.invalid")
    with pytest.raises(ApiUnreachable, match="its certificate is not accepted: Hostname mismatch"):
        name_of(client)
    assert not pod.authorizations


@needs_openssl
def test_a_tunnel_is_opened_again_when_the_authority_changes(
    pod: Pod, client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    renewed = make_server_certificate(tmp_path / "renewed")
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    assert name_of(client) == "n1"
    pod.server.show(renewed)
    pod.trust(renewed)
    assert name_of(client) == "n1"
    assert len(proxy.tunnels) == 2


@needs_openssl
def test_a_proxy_with_tls_is_verified_by_the_same_authority(
    pod: Pod, client: Client, certificate: ServerCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(pod.server_address, certificate) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        assert name_of(client) == "n1"
        assert proxy.tunnels == [f"{NAME}:{PORT}"]


@needs_openssl
def test_a_proxy_gets_the_login_of_its_url(
    pod: Pod, client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.login = LOGIN
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//user:p%40ss@"))
    assert name_of(client) == "n1"
    assert pod.authorizations == {"Bearer standin": 1}


@needs_openssl
@pytest.mark.parametrize(("login", "sent"), LOGINS)
def test_a_proxy_gets_any_login(
    pod: Pod, client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, login: str, sent: bytes
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", f"//{login}@"))
    assert name_of(client) == "n1"
    assert proxy.credentials == [sent]


@needs_openssl
@pytest.mark.parametrize("answer", ["403 Forbidden", "407 Proxy Authentication Required", "502 Bad Gateway"])
def test_a_proxy_that_refuses_is_named(
    pod: Pod, client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    proxy.first_line = f"HTTP/1.1 {answer}"
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//user:secret@"))
    with pytest.raises(ApiUnreachable) as caught:
        name_of(client)
    assert str(caught.value) == f"the API server https://{NAME}:{PORT} cannot be reached: the proxy answers {answer}"


@needs_openssl
@pytest.mark.parametrize("first_line", ["", "SSH-2.0-OpenSSH_9.2"])
def test_a_proxy_that_speaks_no_http_breaks_off(
    pod: Pod, client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, first_line: str
) -> None:
    proxy.first_line = first_line
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    with pytest.raises(ApiUnreachable, match="cannot be reached: the connection broke off"):
        name_of(client)


@needs_openssl
def test_a_silent_proxy_surfaces(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(None, Timeouts(connect_s=0.3, call_s=0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ApiUnreachable, match="silent: nothing came within 0.3 s"):
            name_of(client)
    client.close()


# -- which proxy -----------------------------------------------------------------------------------------------------


@needs_openssl
@pytest.mark.parametrize("excepted", [NAME, ".default.svc", "svc", f"{NAME}:{PORT}", "a, *", NAME.upper()])
def test_no_proxy_excepts_the_server(
    pod: Pod, client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, excepted: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", excepted)
    with pytest.raises(ApiUnreachable, match="its name cannot be resolved"):
        name_of(client)
    assert not proxy.tunnels


@needs_openssl
def test_a_loopback_server_needs_no_proxy(
    pod: Pod, client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    for name, value in pod.server.pod_environment.items():
        monkeypatch.setenv(name, value)
    assert name_of(client) == "n1"
    assert not proxy.tunnels


@needs_openssl
@pytest.mark.parametrize("scheme", ["socks5", "socks4", "ftp"])
def test_a_proxy_of_another_kind_is_refused(
    pod: Pod, client: Client, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://user:secret@proxy.example.com:1080")
    with pytest.raises(ApiConfigError, match=f"a proxy with the scheme {scheme} is not supported") as caught:
        name_of(client)
    assert "secret" not in str(caught.value)
    assert not pod.authorizations


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("server", "excepted", "proxy"),
    [
        ("https://10.0.0.1:443", "", "http://proxy:1"),
        ("https://10.0.0.1:443", "10.0.0.0/8", ""),
        ("https://10.0.0.1:443", "192.168.0.0/16,10.0.0.1", ""),
        ("https://[fd00::1]:443", "", "http://proxy:1"),
        ("https://[fd00::1]:443", "fd00::/8", ""),
        ("https://[fd00::1]:443", "10.0.0.0/8,fe80::/10", "http://proxy:1"),
        ("https://[::1]:443", "", ""),
        ("https://localhost:443", "", ""),
        ("http://10.0.0.1:8080", "", ""),
    ],
)
def test_addresses_and_networks(
    no_variables: None, monkeypatch: pytest.MonkeyPatch, server: str, excepted: str, proxy: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy:1")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert proxy_to(server) == proxy


def test_the_proxy_of_a_kubeconfig_comes_first(no_variables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://general:1")
    assert proxy_to("https://10.0.0.1:443", "http://own:1") == "http://own:1"


hosts = st.sampled_from(["a.example.com", "example.com", "10.0.0.1", "[fd00::1]", "EXAMPLE.com"])
entries = st.sampled_from(
    ["", " ", "*", "example.com", ".example.com", "com", "ample.com", "EXAMPLE.COM", "a.example.com:443"]
    + ["10.0.0.1", "10.0.0.0/8", "10.0.0.7/8", "11.0.0.0/8", "fd00::1", "fd00::/8", "[fd00::1]:443", "10.0.0.0/99", "."]
)


@given(host=hosts, excepted=st.lists(entries, max_size=3))
def test_no_proxy_excepts_what_the_library_excepts(host: str, excepted: list[str]) -> None:
    """kubeconfig files are read by the library, and pods must see no other rule."""
    server = f"https://{host}:443"
    with pytest.MonkeyPatch.context() as patch:
        for name in PROXY_VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv("HTTPS_PROXY", "http://proxy:1")
        patch.setenv("NO_PROXY", ",".join(excepted))
        assert (proxy_to(server) == "") == should_bypass_proxies(server, ",".join(excepted))
