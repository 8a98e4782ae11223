"""The state of a node's isolation layer, as a page for programs and a table for people."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from gpuagent.host import cgpu_proc
from gpuagent.host.cgpu_proc import CgpuState
from gpuisolation import layer
from gpuisolation.change import journal
from gpuisolation.change.journal import Journal
from gpuisolation.errors import InstallerError
from gpuisolation.host import facts, mps_servers
from gpuisolation.host.facts import HostFacts
from gpuisolation.host.files import Files
from gpuisolation.host.root import Host
from gpuisolation.layer import Installed
from gpuisolation.show import align, known, mib


def page(host: Host, files: Files, pipe_dirs: Iterable[str]) -> dict[str, Any]:
    """The whole state. Sizes in bytes; None for an unknown value; `errors` lists failed reads."""
    errors: list[str] = []
    record = None
    unfinished = None
    try:
        record = layer.recorded(host)
        unfinished = journal.pending(host)
    except InstallerError as err:
        errors.append(str(err))
    host_facts = facts.read(host)
    state = host_facts.state
    if state:
        errors += state.unread
    daemon = mps_servers.read(host, pipe_dirs, len(host_facts.gpus))
    return {
        "layer": "cgpu" if state else "mps" if daemon else "none",
        "version": (state.version_text or None) if state else None,
        "problem": cgpu_proc.problem(state) if state or record else None,
        "caveats": list(cgpu_proc.caveats(state.version)) if state and state.version else [],
        "kernel": host_facts.kernel,
        "driver": host_facts.driver or None,
        "installed": _installed_page(files, record) if record else None,
        "unfinished": _unfinished_page(unfinished) if unfinished else None,
        "gpus": _gpu_pages(host_facts, state) if state else [],
        "mps": asdict(daemon) if daemon else None,
        "users": [asdict(user) for user in host_facts.users],
        "errors": errors,
    }


def _installed_page(files: Files, record: Installed) -> dict[str, Any]:
    return {
        "version": record.version,
        "kernel": record.kernel,
        "package": record.package,
        "files": sorted(record.files),
        "changed_since": list(layer.drift(files, record)),
    }


def _unfinished_page(change: Journal) -> dict[str, Any]:
    return {"what": change.what, "goes": "back" if change.failed else "on"}


def _gpu_pages(host_facts: HostFacts, state: CgpuState) -> list[dict[str, Any]]:
    """The GPUs of cGPU, each with its model and the name of its policy."""
    models = {gpu.minor: gpu.model for gpu in host_facts.gpus}
    pages = []
    for gpu in state.gpus:
        policy = None if gpu.policy is None else cgpu_proc.POLICIES.get(gpu.policy)
        names = {"model": models.get(gpu.index, ""), "policy_name": policy.name if policy else None}
        pages.append(asdict(gpu) | names)
    return pages


def render(page: dict[str, Any]) -> str:
    """The page for people."""
    summary = (
        f"layer {page['layer']}",
        f"version {page['version'] or '-'}",
        f"driver {page['driver'] or '-'}",
        f"kernel {page['kernel'] or '-'}",
    )
    lines = ["   ".join(summary), _installed(page["installed"])]
    unfinished = page["unfinished"]
    if unfinished:
        lines.append(f"! unfinished: {unfinished['what']}, goes {unfinished['goes']}; run the command again")
    if page["problem"]:
        lines.append(f"! {page['problem']}")
    lines += [f"! {note}" for note in (*page["caveats"], *page["errors"])]
    paragraphs = ["\n".join(lines), _gpus(page["gpus"]), _mps(page["mps"])]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


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
        rows += _gpu_rows(gpu)
    return align(rows)


def _gpu_rows(gpu: dict[str, Any]) -> list[list[str]]:
    """A row for each container on the GPU, or one for an unused GPU. Only the first row names the GPU."""
    policy = f"{known(gpu['policy'])} {gpu['policy_name'] or ''}".strip()
    gpu_cells = [str(gpu["index"]), gpu["model"] or "?", policy, known(gpu["max_inst"])]
    instances = [_instance(instance) for instance in gpu["instances"]]
    first, *others = instances or [["-"] * 5]
    rows = [gpu_cells + first]
    rows += [[""] * len(gpu_cells) + cells for cells in others]
    return rows


def _instance(instance: dict[str, Any]) -> list[str]:
    pids = " ".join(map(str, instance["pids"])) or "-"
    sizes = [mib(instance["memsize_bytes"]), mib(instance["used_bytes"])]
    return [instance["name"], *sizes, known(instance["weight"]), pids]


def _mps(state: dict[str, Any] | None) -> str:
    if state is None:
        return ""
    limits = [f"GPU {gpu}: {limit}" for gpu, limit in state["memory_limits"]]
    servers = " ".join(map(str, state["servers"])) or "none"
    summary = (
        f"MPS servers {servers}",
        f"threads {state['thread_percentage'] or '?'} %",
        f"default memory limit {', '.join(limits) or '-'}",
    )
    text = "   ".join(summary)
    if not state["clients"]:
        return text
    rows = [["SERVER", "CLIENT", "GPU", "USED"], *map(_client, state["clients"])]
    return f"{text}\n\n{align(rows)}"


def _client(client: dict[str, Any]) -> list[str]:
    used = mib(client["used_bytes"])
    return [str(client["server"]), str(client["pid"]), client["gpu_uuid"] or "?", used]
