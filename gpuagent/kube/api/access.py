"""The way to the API server in plain values, for the agent's HTTP library and for the scheduler's."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from gpuagent.kube.api.api_errors import ApiConfigError
from gpuagent.kube.api.certificates import Certificates
from gpuagent.kube.api.host_and_port import ascii_address
from gpuagent.kube.api.overrides import AS_WRITTEN, Header, Overrides
from gpuagent.kube.api.proxy import proxy_to
from gpuagent.system.printable import error_words

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Access:
    """An API server and the credentials for it.

    Attributes:
        server: its URL, without a slash at the end.
        certificates: for TLS; None for plain HTTP. Files may be replaced, so compare `version` now and then.
        authorization: returns the header's value, empty for none. Tokens rotate, so ask again now and then; it may
            read files and run a program. Raises ApiConfigError.
        server_name: name in its certificate, if it is not that of the URL; else empty.
        proxy: URL of the proxy to it; empty for none.
        headers: of each request, beside the credentials; a name may come several times.
    """

    server: str
    certificates: Certificates | None
    authorization: Callable[[], str]
    server_name: str = ""
    proxy: str = ""
    headers: tuple[Header, ...] = ()


def access(kubeconfig: str | None, overrides: Overrides = AS_WRITTEN) -> Access:
    """The access that a kubeconfig file gives, or the pod's service account where None. Raises ApiConfigError.

    Only a kubeconfig loads the library `kubernetes`, which takes half a second and 20 MiB. For several files see
    `kubeconfig_access`. With a service account, only the impersonation of `overrides` counts.
    """
    if kubeconfig is None:
        own = _service_account(os.environ, SERVICE_ACCOUNT)
        return replace(own, headers=overrides.impersonation.headers())
    from gpuagent.kube.api.kubeconfig import kubeconfig_access  # noqa: PLC0415 - loads the library

    return kubeconfig_access(kubeconfig, overrides)


def _service_account(environment: Mapping[str, str], directory: Path) -> Access:
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT")
    if not (host and port):
        raise ApiConfigError("no kubeconfig given and not running in a pod with a service account")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not is_server(server):
        raise ApiConfigError(f"KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not an address: {server!r}")
    certificates = Certificates(str(directory / "ca.crt"))
    # Made and dropped, so that an operator reads at the start what is wrong with them.
    certificates.context()
    # Kubelet replaces the file before the token expires. To read it costs less than to notice that.
    return Access(
        server,
        certificates,
        lambda: header_value(f"Bearer {_token(directory / 'token')}"),
        proxy=proxy_to(server),
    )


def is_server(url: str) -> bool:
    """Whether this is the URL of an HTTP server."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets without an IPv6 address
        return False
    _, _, host_and_port = parts.netloc.rpartition("@")
    return parts.scheme in ("http", "https") and bool(ascii_address(host_and_port))


def header_value(value: str) -> str:
    """The value of an HTTP header. Raises ApiConfigError: it cannot be one."""
    if not value.isascii() or not value.isprintable():
        text = "the token has a line break, or characters that no HTTP header can have"
        raise ApiConfigError(f"the credentials for the API server cannot be used: {text}")
    return value


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        raise ApiConfigError(f"the token for the API server cannot be read: {error_words(err)}") from err
    if not token:
        raise ApiConfigError(f"the token for the API server cannot be read: {path} is empty")
    return token
