"""Who has no client certificate gets as far as the handshake; a file that does not serve is named."""

import http.client
import json
import shutil
import socket
import ssl
import subprocess
from contextlib import ExitStack, closing

import pytest
import uvloop

from gpuscheduler.cli import run
from gpuscheduler.extender.caller_tls import TlsFiles, caller_tls
from gpuscheduler.extender.server import MOST_WAITING
from standin.waiting import PATIENCE_S
from tests.documented_certificates import make_certificates
from tests.unit.gpuscheduler.extender.test_routes import FILTER
from tests.unit.gpuscheduler.extender.test_server import RunningServer, answer

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="the documented commands need openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture
def running(certificates):
    files = TlsFiles(certificates / "server.crt", certificates / "server.key", certificates / "ca.crt")
    made = RunningServer(uvloop.new_event_loop, caller_tls(files))
    yield made
    made.end()


def client_tls(certificates, shown=None):
    """As kube-scheduler verifies: Python 3.13 and later by themselves want a key usage in the CA's certificate."""
    tls = ssl.create_default_context(cafile=certificates / "ca.crt")
    tls.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN
    if shown:
        tls.load_cert_chain(shown.with_suffix(".crt"), shown.with_suffix(".key"))
    return tls


def call(running, tls):
    with closing(http.client.HTTPSConnection("127.0.0.1", running.port, timeout=PATIENCE_S, context=tls)) as connection:
        connection.request("POST", "/filter", json.dumps(FILTER))
        return answer(connection)["NodeNames"]


def test_the_documented_caller_is_answered(running, certificates):
    for _ in range(3):
        assert call(running, client_tls(certificates, certificates / "caller")) == ["n1"]


def test_others_are_not(running, certificates, tmp_path, caplog):
    strangers = make_certificates(tmp_path / "strangers")
    for shown in (None, strangers / "caller", certificates / "server"):
        with pytest.raises(OSError, match=r"alert|reset|closed|EOF|[Bb]roken"):
            call(running, client_tls(certificates, shown))
    with pytest.raises((OSError, http.client.HTTPException)), running.connect() as plain:
        plain.request("POST", "/filter", json.dumps(FILTER))
        answer(plain)
    assert [record.message for record in caplog.records if record.name.startswith("gpuscheduler")] == [
        "Refused a caller without a valid client certificate"
    ]
    assert call(running, client_tls(certificates, certificates / "caller")) == ["n1"]


def test_handshakes_that_do_not_end_keep_no_caller_out(running, certificates):
    with ExitStack() as ends:
        slow = [ends.enter_context(running.send(b"\x16\x03\x01\x02\x00\x01")) for _ in range(3 * MOST_WAITING)]
        assert call(running, client_tls(certificates, certificates / "caller")) == ["n1"]
        for client in slow[:-MOST_WAITING]:
            assert client.recv(1) == b"", "the oldest are closed"


def test_a_connection_that_has_called_is_not_replaced_by_handshakes(running, certificates):
    tls = client_tls(certificates, certificates / "caller")
    connection = http.client.HTTPSConnection("127.0.0.1", running.port, timeout=PATIENCE_S, context=tls)
    with ExitStack() as ends, closing(connection):
        for _ in range(2 * MOST_WAITING):
            connection.request("POST", "/filter", json.dumps(FILTER))
            assert answer(connection)["NodeNames"] == ["n1"]
            client = ends.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S))
            client.sendall(b"\x16\x03\x01\x02\x00\x01")


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(
    ("files", "error"),
    [
        (("server.crt",), "go together: also set --tls-private-key-file, --client-ca-file, or none of them"),
        (("server.crt", "server.key"), "go together: also set --client-ca-file, or none of them"),
        (("none", "server.key", "ca.crt"), "cannot read --tls-cert-file {folder}/none: No such file or directory"),
        (("server.crt", "none", "ca.crt"), "cannot read --tls-private-key-file {folder}/none: No such file"),
        (("server.crt", "server.key", "none"), "cannot read --client-ca-file {folder}/none: No such file"),
        (("server.crt", "caller.key", "ca.crt"), "{folder}/caller.key is not the key of --tls-cert-file"),
        (("caller.key", "server.key", "ca.crt"), "{folder}/caller.key has to be a certificate in PEM form"),
        (("server.crt", "locked.key", "ca.crt"), "{folder}/locked.key its key without a password"),
        (("server.crt", "server.key", "caller.key"), "{folder}/caller.key has no certificate in PEM form"),
    ],
)
def test_a_file_that_does_not_serve_is_named(certificates, cluster, capsys, files, error):
    locked = certificates / "locked.key"
    if not locked.exists():
        locked.write_bytes(with_a_password(certificates / "server.key"))
    kubeconfig = cluster.api.write_kubeconfig(cluster.directory / "kubeconfig")
    settings = zip(("--tls-cert-file", "--tls-private-key-file", "--client-ca-file"), files, strict=False)
    flags = [flag for name, file in settings for flag in (name, str(certificates / file))]
    listen = ["--listen", "127.0.0.1:0", "--http-address", "off"]
    assert run(["run", "--kubeconfig", str(kubeconfig), *listen, *flags]) == 2
    assert error.format(folder=certificates) in capsys.readouterr().err


def with_a_password(key):
    command = ("openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:secret")
    return subprocess.run(command, check=True, capture_output=True).stdout
