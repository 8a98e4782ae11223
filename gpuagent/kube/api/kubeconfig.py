"""Access by a kubeconfig file, read by Kubernetes' own library: clusters, contexts, login programs.

Import this module only where a kubeconfig was given: the import loads the library, which no pod needs. The module names
no API class and no model, which saves 20 MiB and half a second.
"""

import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The library loads this package where it is installed, as development tools install it. Its grammars cost a second of
# processor time and 12 MiB.
sys.modules.setdefault("kubernetes_validate", None)  # type: ignore[arg-type]

from kubernetes.client.configuration import Configuration
from kubernetes.config import kube_config
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.kube_config import ConfigNode

from gpuagent.kube.api.access import Access, header_value, is_server
from gpuagent.kube.api.api_errors import ApiConfigError
from gpuagent.kube.api.certificates import Certificates
from gpuagent.kube.api.overrides import AS_WRITTEN, Overrides, impersonation_of
from gpuagent.kube.api.proxy import proxy_to
from gpuagent.system.printable import error_words, printable
from gpuagent.system.yaml_text import YAMLError

_CHOSEN = "chosen"
"""Name of the cluster, the user and the context in the kubeconfig that the library gets."""


def kubeconfig_access(path: str, overrides: Overrides = AS_WRITTEN) -> Access:
    """The access that a kubeconfig file gives, with `overrides` in place of what it says. Raises ApiConfigError.

    ``path`` may be several files, joined as in KUBECONFIG. If it is empty, `overrides` must have the server.
    """
    configuration, user = _loaded(path, overrides)

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
        headers=overrides.impersonation.or_else(impersonation_of(user)).headers(),
    )


def _loaded(path: str, overrides: Overrides) -> tuple[Configuration, Mapping[str, Any]]:
    """What the library makes of it, and the fields of the user."""
    if path:
        _check_readable(path)
    configuration = Configuration()
    errors = _LibraryErrors()
    logging.getLogger().addHandler(errors)
    try:
        merged = _merged(path)
        chosen = _chosen(merged, overrides)
        loader = kube_config.KubeConfigLoader(chosen, config_base_path=None)
        loader.load_and_set(configuration)
    except ApiConfigError:
        raise
    except Exception as err:  # invalid input can make the loader raise any exception
        context = overrides.context
        names = _contexts(path) if context else []
        if names and context not in names:
            raise ApiConfigError(_no_such(path, "context", context, names)) from err
        raise ApiConfigError(f"kubeconfig {path} is malformed: {_loader_words(err)}") from err
    finally:
        logging.getLogger().removeHandler(errors)
    has_credentials = configuration.api_key or configuration.cert_file or configuration.username
    if errors.texts and not has_credentials:
        raise ApiConfigError(f"kubeconfig {path} gives no credentials: {'; '.join(errors.texts)}")
    server = str(configuration.host)
    if overrides.server and not is_server(server):
        raise ApiConfigError(f"--server {overrides.server!r} is not a URL such as https://10.0.0.1:6443")
    if not is_server(server):
        raise ApiConfigError(f"kubeconfig {path} is malformed: its server is {server!r}, not a URL")
    user: Mapping[str, Any] = chosen.value["users"][0].value["user"]
    return configuration, user


def _merged(path: str) -> ConfigNode:
    """The files as one kubeconfig; an empty one without files."""
    if not path:
        return ConfigNode("flags", {"clusters": [], "contexts": [], "users": []})
    merged = kube_config.KubeConfigMerger(path).config
    if merged is None:
        raise ConfigException("no configuration found")
    return merged


def _chosen(merged: ConfigNode, overrides: Overrides) -> ConfigNode:
    """A kubeconfig of one context: the wanted cluster and user, with `overrides`.

    Raises ApiConfigError for a name that there is not, and ConfigException for a malformed file.
    """
    context = _context(merged, overrides)
    cluster_name = overrides.cluster or context.get("cluster") or ""
    user_name = overrides.user or context.get("user") or ""
    if not (cluster_name or overrides.server):
        raise ConfigException("the context names no cluster")
    cluster = _entry(merged, "cluster", cluster_name, by_flag=bool(overrides.cluster or overrides.server))
    user = _entry(merged, "user", user_name, by_flag=bool(overrides.user))
    clusters = [_renamed(cluster, "cluster", overrides.cluster_fields(_fields(cluster, "cluster")))]
    users = [_renamed(user, "user", overrides.user_fields(_fields(user, "user")))]
    contexts = [{"name": _CHOSEN, "context": {"cluster": _CHOSEN, "user": _CHOSEN}}]
    value = {"current-context": _CHOSEN, "clusters": clusters, "users": users, "contexts": contexts}
    return ConfigNode(merged.name, value, merged.path)


def _context(merged: ConfigNode, overrides: Overrides) -> Mapping[str, Any]:
    """The fields of the wanted context; none if flags say all."""
    name = overrides.context or merged.safe_get("current-context")
    is_needed = not (overrides.cluster or overrides.server)
    if not name and not is_needed:
        return {}
    wanted = name or merged["current-context"]
    fields: Mapping[str, Any] = merged["contexts"].get_with_name(wanted)["context"].value
    return fields


def _entry(merged: ConfigNode, kind: str, name: str, *, by_flag: bool) -> ConfigNode | None:
    """The cluster or user of that name; None if there is none, and flags or anonymous access can do without.

    Raises ApiConfigError if a flag names one that there is not.
    """
    entries = merged[f"{kind}s"]
    entry = entries.get_with_name(name, safe=True) if name else None
    if entry is None and by_flag and name:
        names = [str(known["name"]) for known in entries.value]
        raise ApiConfigError(_no_such(merged.path or "", kind, name, names))
    if entry is None and kind == "cluster" and not by_flag:
        raise ConfigException(f"there is no cluster {name!r}")
    return entry


def _fields(entry: ConfigNode | None, kind: str) -> Mapping[str, Any]:
    if entry is None:
        return {}
    fields: Mapping[str, Any] = entry[kind].value
    return fields


def _renamed(entry: ConfigNode | None, kind: str, fields: Mapping[str, Any]) -> ConfigNode:
    """The entry as the only one; its path is that of its file, to which paths in it are relative."""
    path = None if entry is None else entry.path
    return ConfigNode(kind, {"name": _CHOSEN, kind: dict(fields)}, path)


def _no_such(path: str, kind: str, name: str, names: Sequence[str]) -> str:
    known = ", ".join(names) or "none"
    source = f"kubeconfig {path}" if path else "no kubeconfig was found, so it"
    return f"{source} has no {kind} {name!r}; it has {known}"


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
