"""Access by a kubeconfig file, read by Kubernetes' own library: clusters, contexts, login programs.

Import this module only where a kubeconfig was given: the import loads the library, which no pod needs. The module names
no API class and no model, which saves 20 MiB and half a second.
"""

import logging
import os
import sys
import threading
from pathlib import Path

# The library loads this package where it is installed, as development tools install it. Its grammars cost a second of
# processor time and 12 MiB.
sys.modules.setdefault("kubernetes_validate", None)  # type: ignore[arg-type]

from kubernetes.client.configuration import Configuration
from kubernetes.config import kube_config
from kubernetes.config.config_exception import ConfigException

from gpuagent.kube.api.access import Access, header_value, is_server
from gpuagent.kube.api.api_errors import ApiConfigError
from gpuagent.kube.api.certificates import Certificates
from gpuagent.kube.api.proxy import proxy_to
from gpuagent.system.printable import error_words, printable
from gpuagent.system.yaml_text import YAMLError


def kubeconfig_access(path: str, context: str | None = None) -> Access:
    """The access that a kubeconfig file gives. Raises ApiConfigError.

    ``path`` may be several files, joined as in KUBECONFIG; ``context`` is one of theirs, None for the current one.
    """
    configuration = _loaded(path, context)

    def authorization() -> str:
        try:
            value = configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
        except Exception as err:  # a program that a kubeconfig names can fail in any way
            raise ApiConfigError(f"kubeconfig {path} gives no credentials: {error_words(err)}") from err
        return header_value(str(value))

    server = str(configuration.host).rstrip("/")
    certificates = None
    if server.startswith("https:"):
        certificates = Certificates(
            authority=configuration.ssl_ca_cert,
            client=configuration.cert_file,
            key=configuration.key_file,
            verify=configuration.verify_ssl,
        )
        certificates.context()  # says now what is wrong with them
    return Access(
        server,
        certificates,
        authorization,
        server_name=configuration.tls_server_name or "",
        proxy=proxy_to(server, str(configuration.proxy or "")),
    )


def _loaded(path: str, context: str | None) -> Configuration:
    _check_readable(path)
    configuration = Configuration()
    errors = _LibraryErrors()
    logging.getLogger().addHandler(errors)
    try:
        kube_config.load_kube_config(path, context, client_configuration=configuration, persist_config=False)
    except Exception as err:  # invalid input can make the loader raise any exception
        names = [] if context is None else _contexts(path)
        if names and context not in names:
            known = ", ".join(names)
            raise ApiConfigError(f"kubeconfig {path} has no context {context!r}; it has {known}") from err
        raise ApiConfigError(f"kubeconfig {path} is malformed: {_loader_words(err)}") from err
    finally:
        logging.getLogger().removeHandler(errors)
    has_credentials = configuration.api_key or configuration.cert_file or configuration.username
    if errors.texts and not has_credentials:
        raise ApiConfigError(f"kubeconfig {path} gives no credentials: {'; '.join(errors.texts)}")
    server = str(configuration.host)
    if not is_server(server):
        raise ApiConfigError(f"kubeconfig {path} is malformed: its server is {server!r}, not a URL")
    return configuration


def _check_readable(path: str) -> None:
    """Raise ApiConfigError if a file cannot be read, or if all are empty."""
    has_text = False
    for file in filter(None, path.split(os.pathsep)):
        try:
            has_text |= bool(Path(file).read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as err:
            text = err.strerror if isinstance(err, OSError) else "it is not text"
            raise ApiConfigError(f"kubeconfig {file} cannot be read: {text}") from err
    if not has_text:
        raise ApiConfigError(f"kubeconfig {path} is empty")


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
        contexts = kube_config.KubeConfigMerger(path).config.value.get("contexts") or ()
        return [str(context["name"]) for context in contexts]
    except Exception:  # noqa: BLE001 - as above
        return []
