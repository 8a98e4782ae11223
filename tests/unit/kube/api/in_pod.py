"""A pod on a stand-in API server with TLS: the files of its service account, and what the server was sent."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.kube.api import access as access_module
from standin.api.handler import Handler
from standin.api.server import ApiServer
from standin.certificates import ServerCertificate, make_server_certificate

PROXY_VARIABLES = (
    *("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"),
    *("ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"),
)


class Pod:
    """Attributes:
    account: the directory of its service account.
    server: the API server.
    authorizations: headers of all requests, by what they say.
    """

    def __init__(self, account: Path, server: ApiServer) -> None:
        self.account = account
        self.server = server
        self.authorizations: Counter[str] = Counter()

    def write_token(self, token: str) -> None:
        """Replace the token as kubelet does: with a new file, at once."""
        new = self.account / "token.new"
        new.write_text(token)
        new.rename(self.account / "token")

    def trust(self, certificate: ServerCertificate) -> None:
        """Replace the certificate by which the pod verifies its server."""
        new = self.account / "ca.crt.new"
        new.write_bytes(certificate.authority.read_bytes())
        new.rename(self.account / "ca.crt")

    @property
    def server_address(self) -> tuple[str, int]:
        """Where the API server listens."""
        environment = self.server.pod_environment
        return environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"])

    def connections(self) -> int:
        """How many are open now, as the server has it."""
        assert self.server.server is not None
        return len(self.server.server.connections)


def pod_on(server: ApiServer, account: Path, patch: pytest.MonkeyPatch) -> Pod:
    """Have this process be in a pod, until the end of the test, whose own patches end before."""
    account.mkdir()
    server.write_service_account(account)
    pod = Pod(account, server)
    answer = Handler.do_GET

    def noted(handler: Handler) -> None:
        pod.authorizations[handler.headers.get("Authorization", "")] += 1
        answer(handler)

    patch.setattr(access_module, "SERVICE_ACCOUNT", account)
    for name, value in server.pod_environment.items():
        patch.setenv(name, value)
    for name in PROXY_VARIABLES:
        patch.delenv(name, raising=False)
    for verb in ("GET", "PATCH"):
        patch.setattr(Handler, f"do_{verb}", noted)
    return pod


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ServerCertificate:
    """The server's."""
    return make_server_certificate(tmp_path_factory.mktemp("tls") / "first")


@pytest.fixture(scope="module")
def renewed(tmp_path_factory: pytest.TempPathFactory) -> ServerCertificate:
    """Signed by another authority."""
    return make_server_certificate(tmp_path_factory.mktemp("tls") / "second")


@pytest.fixture
def pod(tmp_path: Path, certificate: ServerCertificate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    """This process, in a pod for the time of a test."""
    with ApiServer("n1", certificate=certificate) as server:
        yield pod_on(server, tmp_path / "account", monkeypatch)
