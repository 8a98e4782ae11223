"""TLS on the port of calls: who has no client certificate of the caller's CA does not get as far as a call."""

import ssl
from dataclasses import dataclass
from pathlib import Path

WITHOUT_PASSWORD = ""


class TlsError(ValueError):
    """A file does not serve its purpose; the text says which and why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM form.

    Attributes:
        certificate: that the server shows, with its chain.
        key: of that certificate.
        client_ca: whose client certificates are accepted.
    """

    certificate: Path
    key: Path
    client_ca: Path


def caller_tls(files: TlsFiles) -> ssl.SSLContext:
    """A server's context that asks each client for a certificate. Raises TlsError."""
    settings = {
        "--tls-cert-file": files.certificate,
        "--tls-private-key-file": files.key,
        "--client-ca-file": files.client_ca,
    }
    for setting, path in settings.items():
        _check_readable(setting, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        # OpenSSL would ask the terminal for the password of a key.
        context.load_cert_chain(files.certificate, files.key, lambda: WITHOUT_PASSWORD)
    except ssl.SSLError as err:
        raise TlsError(_about_the_pair(files, err)) from err
    try:
        context.load_verify_locations(files.client_ca)
    except ssl.SSLError as err:
        raise TlsError(f"--client-ca-file {files.client_ca} has no certificate in PEM form") from err
    return context


def _check_readable(setting: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as err:
        raise TlsError(f"cannot read {setting} {path}: {err.strerror}") from err


def _about_the_pair(files: TlsFiles, err: ssl.SSLError) -> str:
    if err.reason == "KEY_VALUES_MISMATCH":
        return f"--tls-private-key-file {files.key} is not the key of --tls-cert-file {files.certificate}"
    return (
        f"--tls-cert-file {files.certificate} has to be a certificate in PEM form, "
        f"and --tls-private-key-file {files.key} its key without a password"
    )
