"""Which cluster: the kubeconfig files as kubectl finds them, and the context in them."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.kube.api.client import Client, Timeouts
from gpuagent.kube.api.overrides import AS_WRITTEN, Impersonation, Overrides
from gpuagent.system import yaml_text
from inspectcgpu.usage_error import UsageError

TIMEOUTS = Timeouts(connect_s=5.0, call_s=30.0)
DEFAULT_NAMESPACE = "default"
"""As in kubectl, where no file names another one."""


def connect(
    kubeconfig: str | None,
    overrides: Overrides,
    environ: Mapping[str, str],
    request_timeout_s: float | None = None,
) -> Client:
    """A client for the cluster; sends nothing yet. Raises UsageError, ApiConfigError.

    Files: `kubeconfig`, else those of KUBECONFIG that exist, else ~/.kube/config, else the pod's service account.
    Without any, `overrides` may name the server, as for kubectl.
    """
    files = [kubeconfig] if kubeconfig else _files(environ, is_needed=not overrides.server)
    timeouts = TIMEOUTS if request_timeout_s is None else _timeouts(request_timeout_s)
    if len(files) > 1 and not overrides.context:
        # The library takes the last file's current context, and kubectl the first's.
        overrides = replace(overrides, context=_current(files) or "")
    if files or overrides.server:
        client = Client(os.pathsep.join(files), timeouts, overrides=overrides, compressed=True)
    else:
        _refuse_what_needs_a_kubeconfig(overrides)
        client = Client(None, timeouts, overrides=overrides, compressed=True)
    client.connect()
    return client


def _timeouts(request_s: float) -> Timeouts:
    return Timeouts(connect_s=min(TIMEOUTS.connect_s, request_s), call_s=request_s)


def _refuse_what_needs_a_kubeconfig(overrides: Overrides) -> None:
    """Raise UsageError for a flag that means nothing with a pod's service account."""
    named = {"--context": overrides.context, "--cluster": overrides.cluster, "--user": overrides.user}
    for flag, name in named.items():
        if name:
            raise UsageError(f"{flag} {name}: a pod's service account has no {flag[2:]}s; give --kubeconfig")
    if replace(overrides, impersonation=Impersonation()) != AS_WRITTEN:
        text_of_error = "credentials and certificates in flags need a server: give --server or --kubeconfig"
        raise UsageError(text_of_error)


def own_namespace(kubeconfig: str | None, context: str | None, environ: Mapping[str, str]) -> str:
    """The namespace that the context names. `connect` has read the same files."""
    files = [kubeconfig] if kubeconfig else _files(environ, is_needed=False)
    wanted = context or _current(files)
    for file in files:
        for named in mappings(_loaded(file).get("contexts")):
            if named.get("name") == wanted:
                return text(mapping(named.get("context")).get("namespace")) or DEFAULT_NAMESPACE
    return DEFAULT_NAMESPACE


def named(kubeconfig: str | None, kind: str, environ: Mapping[str, str]) -> list[str]:
    """Names of the ``contexts``, ``clusters`` or ``users`` (`kind`) of the kubeconfig files."""
    files = [kubeconfig] if kubeconfig else _files(environ, is_needed=False)
    names = [text(entry.get("name")) for file in files for entry in mappings(_loaded(file).get(kind))]
    return [*dict.fromkeys(filter(None, names))]


def _files(environ: Mapping[str, str], *, is_needed: bool) -> list[str]:
    named = [path for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    if named:
        existing = [path for path in named if os.path.exists(path)]  # noqa: PTH110 (a path of any length)
        if not existing and is_needed:
            raise UsageError(f"KUBECONFIG names no file that exists: {os.pathsep.join(named)}")
        return existing
    default = Path(environ.get("HOME") or "/") / ".kube" / "config"
    if os.path.exists(default):  # noqa: PTH110 (a home of any length)
        return [str(default)]
    if environ.get("KUBERNETES_SERVICE_HOST") or not is_needed:
        return []
    raise UsageError(f"no way to a cluster: give --kubeconfig FILE, set KUBECONFIG, or put a kubeconfig at {default}")


def _current(files: list[str]) -> str | None:
    """The first current context; a file that cannot be read is reported later."""
    for file in files:
        if name := text(_loaded(file).get("current-context")):
            return name
    return None


def _loaded(file: str) -> Mapping[str, Any]:
    """What a kubeconfig file has; nothing if it cannot be read."""
    try:
        return mapping(yaml_text.load(Path(file).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
