"""Environments, kubeconfigs and files of a service account that somebody else wrote: an error for people, or none."""

import json
import socket
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuagent.kube.api import access as access_module
from gpuagent.kube.api.access import access
from gpuagent.kube.api.api_errors import ApiConfigError, ApiUnreachable, KubeError
from gpuagent.kube.api.client import Client, Timeouts
from tests.unit.kube.api.test_access import CERTIFICATE

LIBRARIES_OWN = (
    *("Traceback", "object at 0x", "_ssl.c", "urllib3", "Pool", "NoneType", "Proxy", "Exception", "Error:", "codec"),
    *("kubernetes.client", "argument", "expected str", "subscriptable", "attribute", "HTTPS", "Errno", "unhashable"),
)
VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy")
"""Of proxies. Tests set those that they need, and no other is set."""
AWAY = "https://kubernetes.invalid:6443"
"""Only a proxy could reach it."""
CLOSED = "127.0.0.1:1"
"""Nobody listens there."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


def kubeconfig(server: str, **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def written(directory: Path, content: dict[str, Any]) -> str:
    path = directory / "kubeconfig"
    path.write_text(json.dumps(content))
    return str(path)


def for_people(error: KubeError) -> str:
    text = str(error)
    assert text.isprintable(), text
    # The file's own text may stand in the error. It is no word of a library.
    own_words = [word for word in LIBRARIES_OWN if word in text.replace("HTTPS_PROXY", "")]
    assert not own_words, text
    return text


def called(path: str | None) -> str:
    """The error of a call; empty where there is none."""
    client = Client(path, Timeouts(connect_s=5, call_s=5))
    try:
        client.get("/api/v1/nodes/n")
    except KubeError as err:
        return for_people(err)
    finally:
        client.close()
    return ""


# -- proxies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proxy", [CLOSED, f"http://{CLOSED}", f" {CLOSED}\n", f"HTTP://{CLOSED}/", f"u:p@{CLOSED}"])
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_proxy_of_the_environment_is_taken_as_go_takes_it(tmp_path, monkeypatch, name, proxy):
    monkeypatch.setenv(name, proxy)
    text = called(written(tmp_path, kubeconfig(AWAY)))
    assert text == f"the API server {AWAY} cannot be reached: Connection refused"


def test_a_proxy_of_a_kubeconfig_is_taken_as_go_takes_it(tmp_path):
    path = written(tmp_path, kubeconfig(AWAY, **{"proxy-url": CLOSED}))
    assert "Connection refused" in called(path)
    assert access(path).proxy == f"http://{CLOSED}"


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "socks4", "SOCKS5", "ftp", "x"])
def test_a_proxy_that_is_not_supported_is_refused_by_its_scheme(tmp_path, monkeypatch, scheme):
    monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://user:secret@{CLOSED}")
    path = written(tmp_path, kubeconfig(AWAY))
    text = called(path)
    assert f"a proxy with the scheme {scheme.lower()} is not supported" in text
    assert "http://proxy.example.com:3128" in text
    assert "secret" not in text
    with pytest.raises(ApiConfigError, match="not supported"):
        access(path)


@pytest.mark.parametrize(
    "proxy", ["http://", "http://:3128", "http://[::1", "proxy:port", "proxy:99999", "http://a b", ":", "://"]
)
def test_a_proxy_without_host_or_port_is_refused(tmp_path, monkeypatch, proxy):
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert "the proxy has no valid host and port" in called(written(tmp_path, kubeconfig(AWAY)))


@pytest.mark.parametrize(
    "proxy",
    [
        *("http://a..b:1", "http://.:1", f"http://{'a' * 64}:1", f"http://b.{'a' * 70}.c:1"),
        *("http://[::1]]:1", "http://[[::1]:1", "http://[v1.x]:1", "http://[a]:1", "http://[::1]x:1", "http://::1:1"),
        *("http://h\n:1", "http://h\x7f:1", "http://%zz:1", "http://%41:1", "http://a\\b:1", "http://\udce9:1"),
        *("http://h:0", "http://h:+1", "http://h:1:2", "http://h:\u0661", "http://u:p@", "http://u:p@@:1"),
        *(
            f"http://h:{'1' * 5000}",
            "http://[::1%a b]:1",
            "http://[::1%]:1",
            "http://[fe80::1%\x1b]:1",
            "http://[::1%é]",
        ),
    ],
)
@pytest.mark.parametrize("in_kubeconfig", [False, True])
def test_a_host_or_port_that_cannot_exist_is_refused(tmp_path, monkeypatch, proxy, in_kubeconfig):
    monkeypatch.setenv("HTTPS_PROXY", "" if in_kubeconfig else proxy)
    path = written(tmp_path, kubeconfig(AWAY, **{"proxy-url": proxy} if in_kubeconfig else {}))
    if "\udce9" not in proxy:
        assert "the proxy has no valid host and port" in called(path)
    with pytest.raises(ApiConfigError):
        access(path)


@pytest.mark.parametrize(
    "host",
    ["a.b.", "a_b", "-a", "1", "127.1", "é.example", "[::1]", "[fe80::1%lo]", "a" * 63, "例え。テスト", "☃.example"],
)
def test_other_hosts_are_looked_up_or_called(tmp_path, monkeypatch, host):
    """Nothing but the network or the names decides on them: no error of a library, and none about the kubeconfig."""
    looked_up = []

    def refuse(host, *_, **__):
        looked_up.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HTTPS_PROXY", f"http://u:p@{host}:1")
    text = called(written(tmp_path, kubeconfig(AWAY)))
    assert text == f"the API server {AWAY} cannot be reached: Name or service not known"
    assert looked_up[0].isascii()


@pytest.mark.parametrize("no_proxy", ["kubernetes.invalid", ".invalid", "*", "a,kubernetes.invalid:6443"])
def test_no_proxy_holds_for_both_clients(tmp_path, monkeypatch, no_proxy):
    monkeypatch.setenv("HTTPS_PROXY", "socks5://proxy:1")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    path = written(tmp_path, kubeconfig(AWAY))
    assert access(path).proxy == ""
    Client(path).connect()


def test_a_loopback_server_needs_no_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "socks5://proxy:1")
    assert called(written(tmp_path, kubeconfig(f"https://{CLOSED}"))).endswith("Connection refused")


@pytest.mark.parametrize("token", ["t\u20ac", "a\nb", "\x7f", "a\0b"])
def test_a_token_that_no_header_can_have(tmp_path, token):
    content = kubeconfig(f"https://{CLOSED}")
    content["users"][0]["user"]["token"] = token
    path = written(tmp_path, content)
    assert "the token has a line break, or characters that no HTTP header can have" in called(path)
    with pytest.raises(ApiConfigError, match="no HTTP header can have"):
        access(path).authorization()


# -- everything else -------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    texts,
    st.lists(texts, max_size=2),
    st.dictionaries(texts, texts),
)
proxies = st.one_of(
    texts,
    st.sampled_from(
        ["socks5://p:1", "proxy.corp:3128", "http://[", "://", "//p", "http://p:-1", "https://p:x", "*", "[::1]:1"]
    ),
)


def fields(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where a document has a value: each key, each item, and the document itself."""
    yield path
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from fields(inner, (*path, key))


FULL = kubeconfig(
    f"https://{CLOSED}",
    **{
        "certificate-authority-data": "LS0=",
        "certificate-authority": "/absent",
        "tls-server-name": "kubernetes",
        "insecure-skip-tls-verify": False,
        "proxy-url": "http://127.0.0.1:1",
    },
)
FULL["users"][0]["user"] |= {
    "client-certificate-data": "LS0=",
    "client-key-data": "LS0=",
    "username": "u",
    "password": "p",
    "tokenFile": "/absent",
    "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false", "args": [], "env": []},
    "auth-provider": {"name": "oidc", "config": {}},
}


def changed(content: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    result = deepcopy(content)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return result


few = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few
@given(where=st.sampled_from(list(fields(FULL))), value=odd_values, proxy=proxies)
def test_a_kubeconfig_with_an_odd_value(tmp_path, where, value, proxy):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTPS_PROXY", proxy)
        path = written(tmp_path, changed(FULL, where, value))
        try:
            Client(path).connect()
            access(path).authorization()
        except KubeError as err:
            for_people(err)


@few
@given(content=st.binary(max_size=200))
def test_a_kubeconfig_that_is_none(tmp_path, content):
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    with pytest.raises(ApiConfigError) as raised:
        Client(str(path)).connect()
    for_people(raised.value)


@few
@given(
    host=st.one_of(texts, st.sampled_from(["[::1", "::1", "127.0.0.1", "a/b", "a b", "fd00::1%eth0"])),
    port=st.one_of(texts, st.sampled_from(["443", "0", "-1", "99999", "tcp://10.0.0.1:443"])),
    ca=st.sampled_from([CERTIFICATE, "", "-----BEGIN CERTIFICATE-----\n", "x"]),
    token=st.binary(max_size=20),
    proxy=proxies,
)
def test_a_pod_with_an_odd_environment(tmp_path, host, port, ca, token, proxy):
    (tmp_path / "ca.crt").write_text(ca)
    (tmp_path / "token").write_bytes(token)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTPS_PROXY", proxy)
        patch.setenv("KUBERNETES_SERVICE_HOST", host)
        patch.setenv("KUBERNETES_SERVICE_PORT", port)
        patch.setattr(access_module, "SERVICE_ACCOUNT", tmp_path)
        for use in (lambda: Client().connect(), lambda: access(None).authorization()):
            try:
                use()
            except (ApiConfigError, ApiUnreachable) as err:
                for_people(err)
