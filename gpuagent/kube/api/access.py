"""The way to the API server in plain values, for a client with another HTTP library."""

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuagent.kube.api.api_errors import ApiConfigError
from gpuagent.system.printable import error_words

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Access:
    """An API server and the credentials for it.

    Attributes:
        server: its URL, without a slash at the end.
        tls: verifies it, and has the client's certificate; None for plain HTTP.
        authorization: returns the header's value, empty for none. Tokens rotate, so ask again now and then; it may
            read files and run a program. Raises ApiConfigError.
        server_name: name in its certificate, if it is not that of the URL; else empty.
        proxy: URL of the proxy to it; empty for none.
    """

    server: str
    tls: ssl.SSLContext | None
    authorization: Callable[[], str]
    server_name: str = ""
    proxy: str = ""


def access(kubeconfig: str | None) -> Access:
    """The access that a kubeconfig file gives, or the pod's service account where None. Raises ApiConfigError.

    Only a kubeconfig loads the library `kubernetes`, which takes half a second and 30 MiB.
    """
    return _service_account(os.environ, SERVICE_ACCOUNT) if kubeconfig is None else _kubeconfig(kubeconfig)


def _service_account(environment: Mapping[str, str], directory: Path) -> Access:
    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    if not (host and port):
        raise ApiConfigError("no kubeconfig given and not running in a pod with a service account")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not is_server(server):
        raise ApiConfigError(f"KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not an address: {server!r}")
    return Access(
        server,
        _tls(ca=str(directory / "ca.crt")),
        lambda: header_value(f"Bearer {_read(directory / 'token')}"),
    )


def is_server(url: str) -> bool:
    """Whether this is the URL of an HTTP server."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, or a port that is not a number up to 65535
        return False


def _kubeconfig(path: str) -> Access:
    from gpuagent.kube.api.transport import configured  # noqa: PLC0415 - loads the library

    found = configured(path)

    def authorization() -> str:
        try:
            value = found.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
        except Exception as err:  # a program that a kubeconfig names can fail in any way
            raise ApiConfigError(f"kubeconfig {path} gives no credentials: {error_words(err)}") from err
        return header_value(str(value))

    server = str(found.host).rstrip("/")
    tls = None
    if server.startswith("https:"):
        tls = _tls(found.ssl_ca_cert, found.cert_file, found.key_file, verify=found.verify_ssl)
    return Access(server, tls, authorization, found.tls_server_name or "", found.proxy or "")


def header_value(value: str) -> str:
    """The value of an HTTP header. Raises ApiConfigError: it cannot be one."""
    if not value.isascii() or not value.isprintable():
        text = "the token has a line break, or characters that no HTTP header can have"
        raise ApiConfigError(f"the credentials for the API server cannot be used: {text}")
    return value


def _tls(
    ca: str | None = None, certificate: str | None = None, key: str | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    """A context that verifies as Go clients do, see `transport`."""
    try:
        context = ssl.create_default_context(cafile=ca)
        context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            context.load_cert_chain(certificate, key)
    except ssl.SSLError as err:
        text = "they are not in PEM form, or a key does not belong to its certificate"
        raise ApiConfigError(f"the certificates for the API server cannot be read: {text}") from err
    except OSError as err:
        raise ApiConfigError(f"the certificates for the API server cannot be read: {error_words(err)}") from err
    return context


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        raise ApiConfigError(f"the token for the API server cannot be read: {error_words(err)}") from err
