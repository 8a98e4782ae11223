"""HTTP to the API server through the library's ``ApiClient``, raw: bytes in, bytes out, errors of this package.

Import this module only from a thread that may wait: the import loads ``kubernetes``. The module names no API class and
no model, which saves the agent 20 MiB and half a second.
"""

import ipaddress
import logging
import os
import ssl
import sys
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# The library loads this package where it is installed, as development tools install it. Its grammars cost a second of
# processor time and 12 MiB.
sys.modules.setdefault("kubernetes_validate", None)  # type: ignore[arg-type]

import urllib3
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import should_bypass_proxies
from kubernetes.config import incluster_config, kube_config
from kubernetes.config.config_exception import ConfigException
from kubernetes.utils.keepalive import tcp_keepalive_socket_options
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.util import create_urllib3_context

from gpuagent import __version__
from gpuagent.kube.api.access import header_value, is_server
from gpuagent.kube.api.api_errors import ApiConfigError, ApiUnreachable, connection_words
from gpuagent.kube.api.proxy import proxy_url
from gpuagent.system.printable import printable
from gpuagent.system.yaml_text import YAMLError

# The kernel detects a dead host after 10 + 3 * 5 s, even while the watch is quiet.
_KEEPALIVE = {"idle": 10, "interval": 5, "count": 3}
PIECE = 65_536
"""Bytes of a body that are read at a time. Go writes a large answer as one HTTP chunk of any length."""
POOL = 16
"""Connections that are kept; more threads than this at a time would open new ones repeatedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. ``timeout_s`` is (connect, longest silence while reading); ``accept`` is a content type.

    ``compressed`` lets the server compress a large answer.
    """

    method: str
    path: str
    query: Mapping[str, str | int | bool]
    timeout_s: tuple[float, float]
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    compressed: bool = False


class Transport:
    """A configured way to one API server; safe to use from several threads."""

    def __init__(self, configuration: Configuration) -> None:
        self._server = str(configuration.host)
        self._api = ApiClient(configuration)
        self._api.user_agent = f"gpuagent/{__version__}"
        if urlsplit(self._server).scheme == "https":
            pools = self._api.rest_client.pool_manager
            pools.pool_classes_by_scheme = {**pools.pool_classes_by_scheme, "https": _tls_pool(configuration)}

    def send(self, request: Request) -> urllib3.HTTPResponse:
        """Send and return the response, its body unread, whatever its status. Raises ApiUnreachable, ApiConfigError."""
        headers = {"Accept": request.accept}
        if request.compressed:
            headers["Accept-Encoding"] = "gzip"
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            # Auth settings make the library's hook re-read a rotated token file.
            method, url, header, body, _ = self._api.param_serialize(
                request.method,
                request.path,
                query_params=list(request.query.items()),
                header_params=headers,
                body=request.body,
                auth_settings=["BearerToken"],
            )
            answer = self._api.call_api(method, url, header, body, _request_timeout=request.timeout_s)
        except (ApiException, urllib3.exceptions.HTTPError) as err:
            raise self.unreachable(err, request.timeout_s[1]) from err
        except (ConfigException, OSError) as err:
            text = connection_words(err) or printable(str(err))
            raise ApiConfigError(f"the credentials for the API server cannot be read: {text}") from err
        except ValueError as err:  # http.client takes only characters that a header can have
            text = "the token has a line break, or characters that no HTTP header can have"
            raise ApiConfigError(f"the credentials for the API server cannot be used: {text}") from err
        response: urllib3.HTTPResponse = answer.response
        return response

    def stream(self, request: Request, silence_s: float) -> urllib3.HTTPResponse:
        """Send as ``send`` does, then let the body be silent for up to ``silence_s`` at a time."""
        response = self.send(request)
        sock = getattr(response.connection, "sock", None)
        if sock is not None:
            sock.settimeout(silence_s)
        return response

    def body(self, response: urllib3.HTTPResponse, silence_s: float) -> bytes:
        """Return the whole body and give the connection back. Raises ApiUnreachable."""
        return b"".join(self.pieces(response, silence_s))

    def pieces(self, response: urllib3.HTTPResponse, silence_s: float) -> Generator[bytes, None, None]:
        """Yield the body as it arrives, then give the connection back; closed where it is not read to its end.

        Raises ApiUnreachable.
        """
        ended = False
        try:
            yield from response.stream(PIECE)
            ended = True
        except urllib3.exceptions.HTTPError as err:
            raise self.unreachable(err, silence_s) from err
        finally:
            if not ended:
                response.close()
            response.release_conn()

    def unreachable(self, err: Exception, silence_s: float) -> ApiUnreachable:
        """Return the error for people; equal causes give equal texts, so it has no addresses of objects."""
        match err:
            case urllib3.exceptions.NameResolutionError():
                text = "its name cannot be resolved"
            case urllib3.exceptions.NewConnectionError():
                text = connection_words(err) or "no connection"
            case urllib3.exceptions.ConnectTimeoutError():
                text = "no connection in time"
            case urllib3.exceptions.ReadTimeoutError():
                text = f"it is silent: nothing came within {silence_s:g} s"
            case ApiException():
                text = connection_words(err) or "TLS failed"
            case urllib3.exceptions.ProtocolError():
                text = "the connection broke off"
            case _:
                text = connection_words(err) or type(err).__name__
        return ApiUnreachable(f"the API server {self._server} cannot be reached: {text}")

    def close(self) -> None:
        """Close idle connections; those in use end with their requests."""
        self._api.close()


def connect(kubeconfig: str | None, context: str | None = None) -> Transport:
    """Return a transport for `configured`'s configuration. Nothing is sent yet. Raises ApiConfigError."""
    configuration = configured(kubeconfig, context)
    try:
        return Transport(configuration)
    except Exception as err:  # the library takes any value, and fails on some when it uses them
        source = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's environment"
        text = f"{source} is malformed: the API server's address or a certificate has a value that cannot be used"
        raise ApiConfigError(text) from err


def configured(kubeconfig: str | None, context: str | None = None) -> Configuration:
    """Return the configuration of a kubeconfig file, or of the pod's service account where None. Raises ApiConfigError.

    ``kubeconfig`` may be several files, joined as in KUBECONFIG; ``context`` is one of theirs, None for the current
    one.
    """
    configuration = Configuration()
    if kubeconfig is None:
        _load_service_account(configuration)
    else:
        _load_kubeconfig(configuration, kubeconfig, context)
    # The agent's loops retry; urllib3's three silent tries would triple every timeout.
    configuration.retries = False
    configuration.connection_pool_maxsize = POOL
    configuration.socket_options = tcp_keepalive_socket_options(**_KEEPALIVE)
    configuration.proxy = _proxy(configuration)
    for token in (configuration.api_key or {}).values():
        header_value(str(token))
    return configuration


def _proxy(configuration: Configuration) -> str | None:
    """The proxy's URL; None if there is none for this server. Raises ApiConfigError."""
    server = str(configuration.host)
    if not configuration.proxy:
        return None
    # Go clients do not ask the proxy for a loopback address either.
    if _is_loopback(server) or should_bypass_proxies(server, configuration.no_proxy or ""):
        return None
    return proxy_url(str(configuration.proxy))


def _tls_pool(configuration: Configuration) -> type[HTTPSConnectionPool]:
    """Connections to the API server, each with a context of its own.

    urllib3 loads the certificates into the context whenever it connects. If another thread connects with the same
    context at that moment, the handshake fails or the process crashes.
    """

    class Connection(HTTPSConnection):
        def connect(self) -> None:
            self.ssl_context = _tls(configuration)
            super().connect()

    class Pool(HTTPSConnectionPool):
        ConnectionCls = Connection

    return Pool


def _tls(configuration: Configuration) -> ssl.SSLContext:
    """A context that verifies as Go clients do.

    Python 3.13 and later would refuse certificates without key identifiers. Those of a cluster that Kubernetes 1.18 or
    older made have none.
    """
    required = ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE
    context = create_urllib3_context(cert_reqs=required, verify_flags=ssl.VERIFY_X509_PARTIAL_CHAIN)
    if not (configuration.ssl_ca_cert or configuration.ca_cert_data):
        context.load_default_certs()
    return context


def _load_service_account(configuration: Configuration) -> None:
    try:
        incluster_config.load_incluster_config(configuration)
    except (ConfigException, OSError) as err:
        text = printable(str(err).rstrip("."))
        raise ApiConfigError(f"no kubeconfig given and not running in a pod with a service account: {text}") from err
    except UnicodeDecodeError as err:
        raise ApiConfigError("the token of the pod's service account cannot be read: it is not text") from err
    except ValueError as err:
        raise ApiConfigError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not an address") from err
    if not is_server(str(configuration.host)):
        text = f"KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not an address: {str(configuration.host)!r}"
        raise ApiConfigError(text)


def _load_kubeconfig(configuration: Configuration, path: str, context: str | None) -> None:
    readable = False
    for file in filter(None, path.split(os.pathsep)):
        try:
            readable |= bool(Path(file).read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as err:
            text = err.strerror if isinstance(err, OSError) else "it is not text"
            raise ApiConfigError(f"kubeconfig {file} cannot be read: {text}") from err
    if not readable:
        raise ApiConfigError(f"kubeconfig {path} is empty")
    errors = _LibraryErrors()
    logging.getLogger().addHandler(errors)
    try:
        kube_config.load_kube_config(path, context, client_configuration=configuration, persist_config=False)
    except Exception as err:  # invalid input can make the loader raise any exception
        if context is not None and (names := _contexts(path)) and context not in names:
            raise ApiConfigError(f"kubeconfig {path} has no context {context!r}; it has {', '.join(names)}") from err
        raise ApiConfigError(f"kubeconfig {path} is malformed: {_loader_words(err)}") from err
    finally:
        logging.getLogger().removeHandler(errors)
    if errors.texts and not (configuration.api_key or configuration.cert_file or configuration.username):
        raise ApiConfigError(f"kubeconfig {path} gives no credentials: {'; '.join(errors.texts)}")
    if not is_server(str(configuration.host)):
        raise ApiConfigError(f"kubeconfig {path} is malformed: its server is {str(configuration.host)!r}, not a URL")


def _loader_words(error: Exception) -> str:
    """What is wrong with a kubeconfig. Only errors that the loader raises on purpose have a text for people."""
    text = printable(" ".join(str(error).split()))
    if isinstance(error, ConfigException | YAMLError) and " object at 0x" not in text:
        return text
    return "a field is missing or has a value of the wrong type; compare it with another cluster's, field by field"


class _LibraryErrors(logging.Handler):
    """Keeps this thread's log lines of the library, which alone show why a credential plugin (``exec``) failed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._thread = threading.get_ident()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.texts.append(" ".join(record.getMessage().split()))


def _contexts(path: str) -> list[str]:
    """Names of its contexts; none where they cannot be read."""
    try:
        found = kube_config.KubeConfigMerger(path).config.value.get("contexts") or ()
        return [str(context["name"]) for context in found]
    except Exception:  # noqa: BLE001 - as above
        return []


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
