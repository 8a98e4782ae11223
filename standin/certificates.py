"""Certificates of the stand-in API server, made by `openssl` 3."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

_NAMES = ("IP:127.0.0.1", "IP:::1", "DNS:localhost", "DNS:kubernetes.default.svc")
_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-x509", "-days", "30")


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A certificate for loopback addresses, and of the authority that signed it. Files in PEM form."""

    authority: Path
    certificate: Path
    key: Path

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a server's context use it."""
        context.load_cert_chain(self.certificate, self.key)


def make_server_certificate(folder: Path) -> ServerCertificate:
    """Make a certificate, signed by an authority of its own, in a new folder."""
    folder.mkdir()
    _openssl(folder, "req", *_NEW, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=standin-ca")
    _openssl(
        folder,
        *("req", *_NEW, "-CA", "ca.crt", "-CAkey", "ca.key", "-keyout", "server.key", "-out", "server.crt"),
        *("-subj", "/CN=kube-apiserver", "-addext", f"subjectAltName={','.join(_NAMES)}"),
        *("-addext", "basicConstraints=critical,CA:false", "-addext", "extendedKeyUsage=serverAuth"),
    )
    return ServerCertificate(folder / "ca.crt", folder / "server.crt", folder / "server.key")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(("openssl", *arguments), cwd=folder, capture_output=True, check=True)
