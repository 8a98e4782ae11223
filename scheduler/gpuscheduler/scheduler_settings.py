"""The settings of `gpuscheduler run`."""

import re
from dataclasses import dataclass
from pathlib import Path

from gpuagent.settings import values
from gpuagent.settings.table import Table, setting
from gpuscheduler.core.policy.named import NAMES

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_WEB_ADDRESS = re.compile(r"https?://[^\s#\"'<>]{1,2000}")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LEASE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def listen(text: str) -> tuple[str, int]:
    """An address that is not off. Raises ValueError."""
    address = values.address(text)
    if address is None:
        raise ValueError(f"{text!r} is not HOST:PORT or :PORT")
    return address


def lease(text: str) -> str:
    """Namespace and name of a lease; empty for ``off``. Raises ValueError."""
    if text in {"", "off"}:
        return ""
    if not _LEASE.fullmatch(text):
        raise ValueError(f"{text!r} is not NAMESPACE/NAME or off")
    return text


def names(text: str) -> frozenset[str]:
    """Names with commas between them; none for empty text. Raises ValueError."""
    given = frozenset(name.strip() for name in text.split(",")) - {""}
    for name in given:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a scheduler")
    return given


def namespace(text: str) -> str:
    """Name of a namespace; empty for ``off``. Raises ValueError."""
    if text in {"", "off"}:
        return ""
    if not _NAMESPACE.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a namespace, or off")
    return text


def web_address(text: str) -> str:
    """An address of http or https; empty for ``off``. Raises ValueError."""
    if text in {"", "off"}:
        return ""
    if not _WEB_ADDRESS.fullmatch(text):
        raise ValueError(f"{text!r} is not an address that begins with http:// or https://, or off")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Every setting of `gpuscheduler run`."""

    kubeconfig: Path | None = setting(
        None, values.path, "kubeconfig file for the API server (default: the pod's service account)"
    )
    listen: tuple[str, int] = setting(
        ("127.0.0.1", 9446),
        listen,
        "address of kube-scheduler's calls; without --client-ca-file, any program that reaches it can bind pods and "
        "reserve GPUs",
        metavar="HOST:PORT",
    )
    tls_cert_file: Path | None = setting(
        None, values.path_or_off, "PEM file with the certificate for HTTPS on --listen (default: plain HTTP)"
    )
    tls_private_key_file: Path | None = setting(
        None, values.path_or_off, "PEM file with the key of --tls-cert-file, without a password"
    )
    client_ca_file: Path | None = setting(
        None,
        values.path_or_off,
        "PEM file with the CA of the callers: --listen answers only those with a client certificate of it",
    )
    http_address: tuple[str, int] | None = setting(
        ("", 9447),
        values.address,
        "address of the page of the cluster, of /metrics, /healthz, /readyz and /usage; off for none",
        metavar="HOST:PORT",
    )
    problems_url: str = setting(
        "",
        web_address,
        "address of docs/problems.md, to which the page of the cluster links the problems of nodes (default: no links)",
        metavar="URL",
    )
    agent_namespace: str = setting(
        "kube-system",
        namespace,
        "namespace of the agents' pods, which are asked what namespaces use while the page of the cluster shows it; "
        "off: none is asked",
        metavar="NAME",
    )
    policy: str = setting(
        "strand",
        values.one_of(*NAMES),
        "how to choose among nodes and GPUs with room (docs/placement.md): strand, fgd, binpack, spread",
        metavar="NAME",
    )
    scheduler_name: frozenset[str] = setting(
        frozenset(),
        names,
        "spec.schedulerName of the pods that the kube-scheduler beside this process places (default: any)",
        metavar="NAME,...",
    )
    job_patience: float | None = setting(
        None,
        values.seconds_or_off,
        "seconds that a job waits for room before nodes are kept free for it from later pods of the same priority; "
        "off: from pods of lower priority only",
        metavar="SECONDS",
    )
    job_evict_broken: float | None = setting(
        None,
        values.seconds_or_off,
        "seconds that a job which has started may lack pods before its other pods are evicted, within the bounds of "
        "PodDisruptionBudgets; off: they are left alone",
        metavar="SECONDS",
    )
    defragment_moves: int | None = setting(
        None,
        values.count_or_off,
        "the most running pods that are evicted so that one that waits has room on a GPU (docs/defragmentation.md); "
        "off for none",
        metavar="N",
    )
    defragment_after: float = setting(
        30.0,
        values.seconds,
        "seconds that a pod waits before others are moved for it",
        metavar="SECONDS",
    )
    defragment_pause: float = setting(
        60.0,
        values.seconds,
        "seconds between two plans that move pods; each plan that fails doubles it, up to an hour",
        metavar="SECONDS",
    )
    placeholder_namespace: str = setting(
        "",
        namespace,
        "namespace of pods that have a cluster autoscaler add a node for pods that wait only because free units are "
        "scattered over GPUs (docs/autoscaling.md); off: none",
        metavar="NAME",
    )
    lease: str = setting(
        "kube-system/gpu-scheduler",
        lease,
        "the lease by which kube-schedulers elect their leader; off: the kube-scheduler beside this process is alone",
        metavar="NAMESPACE/NAME",
    )
    log_format: str = setting("text", values.one_of("text", "json"), "log lines for people (text) or machines (json)")
    log_level: str = setting(
        "info",
        values.one_of("debug", "info", "warning", "error"),
        "lowest severity that is logged: debug, info, warning, error",
        metavar="LEVEL",
    )


TABLE = Table(SchedulerSettings, "gpuscheduler")
