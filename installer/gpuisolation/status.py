"""The state of a node's isolation layer, as a page for programs and a table for people."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from gpuagent.host import cgpu_proc
from gpuisolation import layer
from gpuisolation.change import journal
from gpuisolation.errors import InstallerError
from gpuisolation.host import facts, mps_servers
from gpuisolation.host.files import Files
from gpuisolation.host.root import Host
from gpuisolation.show import align, known, mib


def page(host: Host, files: Files, pipe_dirs: Iterable[str]) -> dict[str, Any]:
    """The whole state. Sizes in bytes; None for an unknown value; `errors` lists failed reads."""
    errors: list[str] = []
    record, left = None, None
    try:
        record = layer.recorded(host)
        left = journal.pending(host)
    except InstallerError as err:
        errors.append(str(err))
    read = facts.read(host)
    state = read.state
    daemon = mps_servers.read(host, pipe_dirs, len(read.gpus))
    models = {gpu.minor: gpu.model for gpu in read.gpus}
    gpus = [
        {
            **asdict(gpu),
            "model": models.get(gpu.index, ""),
            "policy_name": cgpu_proc.POLICIES[gpu.policy].name if gpu.policy in cgpu_proc.POLICIES else None,
        }
        for gpu in (state.gpus if state else ())
    ]
    return {
        "layer": "cgpu" if state else "mps" if daemon else "none",
        "version": (state.version_text or None) if state else None,
        "problem": cgpu_proc.problem(state) if state or record else None,
        "caveats": list(cgpu_proc.caveats(state.version)) if state and state.version else [],
        "kernel": read.kernel,
        "driver": read.driver or None,
        "installed": {
            "version": record.version,
            "kernel": record.kernel,
            "package": record.package,
            "files": sorted(record.files),
            "changed_since": list(layer.drift(files, record)),
        }
        if record
        else None,
        "unfinished": {"what": left.what, "goes": "back" if left.failed else "on"} if left else None,
        "gpus": gpus,
        "mps": asdict(daemon) if daemon else None,
        "users": [asdict(user) for user in read.users],
        "errors": [*errors, *(state.unread if state else ())],
    }


def render(page: dict[str, Any]) -> str:
    """The page for people."""
    head = f"layer {page['layer']}   version {page['version'] or '-'}   driver {page['driver'] or '-'}   "
    lines = [f"{head}kernel {page['kernel'] or '-'}", _installed(page["installed"])]
    if page["unfinished"]:
        goes = page["unfinished"]["goes"]
        lines.append(f"! unfinished: {page['unfinished']['what']}, goes {goes}; run the command again")
    notes = [*filter(None, [page["problem"]]), *page["caveats"], *page["errors"]]
    lines += [f"! {note}" for note in notes]
    parts = ["\n".join(lines), _gpus(page["gpus"]), _mps(page["mps"])]
    return "\n\n".join(part for part in parts if part)


def _installed(installed: dict[str, Any] | None) -> str:
    if installed is None:
        return "installed by this program: nothing"
    changed = ", ".join(installed["changed_since"])
    since = f"; changed since: {changed}" if changed else ""
    return (
        f"installed by this program: cGPU {installed['version']} for kernel {installed['kernel']}, "
        f"package {installed['package'][:12]}, {len(installed['files'])} files{since}"
    )


def _gpus(gpus: list[dict[str, Any]]) -> str:
    if not gpus:
        return ""
    rows = [["GPU", "MODEL", "POLICY", "MAX_INST", "CONTAINER", "MEMORY CAP", "USED", "WEIGHT", "PIDS"]]
    for gpu in gpus:
        name = f"{known(gpu['policy'])} {gpu['policy_name'] or ''}".strip()
        head = [str(gpu["index"]), gpu["model"] or "?", name, known(gpu["max_inst"])]
        instances = gpu["instances"] or [None]
        for number, instance in enumerate(instances):
            first = head if number == 0 else [""] * len(head)
            rows.append([*first, *(_instance(instance) if instance else ["-"] * 5)])
    return align(rows)


def _instance(instance: dict[str, Any]) -> list[str]:
    pids = " ".join(map(str, instance["pids"])) or "-"
    sizes = [mib(instance["memsize_bytes"]), mib(instance["used_bytes"])]
    return [instance["name"], *sizes, known(instance["weight"]), pids]


def _mps(state: dict[str, Any] | None) -> str:
    if state is None:
        return ""
    limits = ", ".join(f"GPU {gpu}: {limit}" for gpu, limit in state["memory_limits"]) or "-"
    servers = " ".join(map(str, state["servers"])) or "none"
    head = f"MPS servers {servers}   threads {state['thread_percentage'] or '?'} %   default memory limit {limits}"
    if not state["clients"]:
        return head
    rows = [["SERVER", "CLIENT", "GPU", "USED"]]
    rows += [[str(c["server"]), str(c["pid"]), c["gpu_uuid"] or "?", mib(c["used_bytes"])] for c in state["clients"]]
    return f"{head}\n\n{align(rows)}"
