"""The client in a pod, over TLS: credentials that others replace, many threads, IPv6, redirects."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuagent.kube.api.api_errors import ApiConfigError, ApiError, ApiUnreachable
from gpuagent.kube.api.client import Client, Timeouts
from standin.api.handler import Handler
from standin.api.server import ApiServer
from standin.certificates import ServerCertificate
from standin.waiting import PATIENCE_S
from tests.unit.kube.api.in_pod import Pod, pod_on

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")

NODE = "/api/v1/nodes/n1"
THREADS, CALLS = 16, 10


@pytest.fixture
def client(pod: Pod) -> Iterator[Client]:
    client = Client(None, Timeouts(connect_s=PATIENCE_S, call_s=PATIENCE_S))
    yield client
    client.close()


def name_of(client: Client) -> str:
    return client.get(NODE)["metadata"]["name"]


# -- the token -------------------------------------------------------------------------------------------------------


def test_a_rotated_token_is_sent_with_the_next_call(pod: Pod, client: Client) -> None:
    pod.write_token("first")
    assert name_of(client) == "n1"
    pod.write_token("second")
    pod.server.token = "second"
    assert name_of(client) == "n1"
    assert pod.authorizations == {"Bearer first": 1, "Bearer second": 1}


@pytest.mark.parametrize("broken", ["missing", "empty", "binary", "two lines"])
def test_the_former_token_serves_while_the_file_is_broken(pod: Pod, client: Client, broken: str) -> None:
    pod.write_token("first")
    assert name_of(client) == "n1"
    spoil(pod.account / "token", broken)
    assert name_of(client) == "n1"
    pod.write_token("second")
    assert name_of(client) == "n1"
    assert pod.authorizations == {"Bearer first": 2, "Bearer second": 1}


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("missing", "the token for the API server cannot be read: .*/token: No such file or directory"),
        ("empty", "the token for the API server cannot be read: .*/token is empty"),
        ("binary", "the token for the API server cannot be read: it is not text"),
        ("two lines", "the token has a line break"),
    ],
)
def test_a_broken_token_file_is_explained_once_the_former_is_refused(
    pod: Pod, client: Client, broken: str, text: str
) -> None:
    assert name_of(client) == "n1"
    spoil(pod.account / "token", broken)
    pod.server.token = "second"
    with pytest.raises(ApiError, match="it does not accept the credentials"):
        name_of(client)
    with pytest.raises(ApiConfigError, match=text):
        name_of(client)
    pod.write_token("second")
    assert name_of(client) == "n1"


def spoil(path: Path, how: str) -> None:
    match how:
        case "missing":
            path.unlink()
        case "empty":
            path.write_text("\n")
        case "binary":
            path.write_bytes(b"\xff\xfe")
        case _:
            path.write_text("one\ntwo")


# -- certificates ----------------------------------------------------------------------------------------------------


def test_a_renewed_authority_is_used_without_a_restart(pod: Pod, client: Client, renewed: ServerCertificate) -> None:
    assert name_of(client) == "n1"
    pod.server.show(renewed)
    pod.trust(renewed)
    assert name_of(client) == "n1"


def test_a_connection_that_a_replaced_authority_vouched_for_is_not_used_again(
    pod: Pod, client: Client, renewed: ServerCertificate
) -> None:
    """The server goes on with its old certificate: the former connection still works, but nothing vouches for it."""
    assert name_of(client) == "n1"
    sent = pod.authorizations.total()
    pod.trust(renewed)
    with pytest.raises(ApiUnreachable, match="its certificate is not accepted: .+"):
        name_of(client)
    assert pod.authorizations.total() == sent
    assert pod.server.wait(lambda: pod.connections() == 0)


def test_connections_are_kept_while_the_certificates_stay(pod: Pod, client: Client) -> None:
    for _ in range(3):
        assert name_of(client) == "n1"
    pod.write_token("second")
    assert name_of(client) == "n1"
    assert pod.connections() == 1


@pytest.mark.parametrize(
    ("content", "text"), [(None, "ca.crt.*: No such file"), ("", "not in PEM form"), ("x", "not in PEM form")]
)
def test_a_broken_certificate_is_explained_and_a_good_one_used(
    pod: Pod, client: Client, certificate: ServerCertificate, content: str | None, text: str
) -> None:
    assert name_of(client) == "n1"
    path = pod.account / "ca.crt"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(ApiConfigError, match=f"the certificates for the API server cannot be read .*{text}"):
        name_of(client)
    pod.trust(certificate)
    assert name_of(client) == "n1"


def test_a_watch_goes_on_under_replaced_certificates(pod: Pod, client: Client, renewed: ServerCertificate) -> None:
    """It ends when its time is up. Its next connection is verified by the new authority."""
    with client.watch("/api/v1/nodes") as watch:
        assert next(watch)["type"] == "ADDED"
        pod.server.show(renewed)
        pod.trust(renewed)
        pod.server.label_node({"a": "b"})
        assert next(watch)["type"] == "MODIFIED"
    with client.watch("/api/v1/nodes") as watch:
        assert next(watch)["object"]["metadata"]["labels"]["a"] == "b"


def test_the_name_in_the_certificate_is_checked(pod: Pod, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.2")
    monkeypatch.setattr(pod.server, "_host", "127.0.0.2")
    pod.server.stop()
    pod.server.start()
    with pytest.raises(ApiUnreachable, match="its certificate is not accepted: .*127.0.0.2"):
        name_of(client)


# -- everything else -------------------------------------------------------------------------------------------------


def test_many_threads_call_while_token_and_certificate_are_replaced(
    pod: Pod, client: Client, certificate: ServerCertificate
) -> None:
    together = threading.Barrier(THREADS)

    def calls(thread: int) -> list[str]:
        together.wait(PATIENCE_S)
        names = []
        for n in range(CALLS):
            if thread == 0:
                pod.write_token(f"token-{n}")
                pod.trust(certificate)
            names.append(name_of(client))
        return names

    with ThreadPoolExecutor(THREADS) as threads:
        answers = list(threads.map(calls, range(THREADS)))
    assert answers == [["n1"] * CALLS] * THREADS
    assert pod.authorizations.total() == THREADS * CALLS


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_with_the_token(
    pod: Pod, client: Client, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ApiServer("elsewhere") as elsewhere:

        def redirect(handler: Handler) -> None:
            handler.send_response(code)
            handler.send_header("Location", f"{elsewhere.url}{NODE}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        answer = Handler.do_GET

        def do_get(handler: Handler) -> None:
            (redirect if handler.api is pod.server else answer)(handler)

        monkeypatch.setattr(Handler, "do_GET", do_get)
        with pytest.raises(ApiError, match=f"the API server answers {code}"):
            name_of(client)
        assert not elsewhere.requests


def test_an_api_server_with_an_ipv6_address(
    tmp_path: Path, certificate: ServerCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        server = ApiServer("n1", host="::1", certificate=certificate)
    except OSError:
        pytest.skip("this machine has no IPv6 on loopback")
    with server:
        pod = pod_on(server, tmp_path / "account", monkeypatch)
        client = Client(None, Timeouts(connect_s=PATIENCE_S, call_s=PATIENCE_S))
        assert name_of(client) == "n1"
        server.stop()
        with pytest.raises(ApiUnreachable, match=r"the API server https://\[::1\]:\d+ cannot be reached"):
            name_of(client)
        client.close()
        assert pod.authorizations == {"Bearer standin": 1}


def test_a_pod_loads_no_library_for_kubeconfigs(pod: Pod) -> None:
    code = (
        "import sys; from pathlib import Path; from gpuagent.kube.api import access, client\n"
        f"access.SERVICE_ACCOUNT = Path({str(pod.account)!r})\n"
        f"assert client.Client().get({NODE!r})['metadata']['name'] == 'n1'\n"
        "sys.exit(bool({'kubernetes', 'yaml'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
