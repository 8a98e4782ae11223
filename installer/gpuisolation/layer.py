"""The layer that is on a node: installed by this program, or by another."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuagent.host import cgpu_proc
from gpuisolation.errors import InstallerError
from gpuisolation.host.facts import HOOK, TOOLKIT
from gpuisolation.host.files import Files, PathState
from gpuisolation.host.root import Host

STATE = "/var/lib/gpu-isolation"
RECORD = f"{STATE}/installed.json"
CONF = "/etc/cgpu.conf"

_WRAPPER_WORDS = (b"ALIYUN_COM_GPU_MEM", b"cgpu_km", b"cgpu-ctl")
"""Words in the wrapper's binary that the toolkit's own hook lacks."""

Settings = dict[str, dict[str, int]]
"""GPU index, as text, to its settings `policy` and `max_inst`. Keys of JSON objects cannot be numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A layer on the node.

    Attributes:
        kernel: the modules are for.
        package: SHA-256 of the package; empty for a layer that another program installed.
        files: path to the file that the install put there.
        originals: path to the former file, with a copy.
        modules: names in the order in which they are loaded.
        policy: for GPUs that `settings` does not name.
    """

    version: str
    kernel: str
    package: str = ""
    files: Mapping[str, PathState] = field(default_factory=dict)
    originals: Mapping[str, PathState] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    policy: int = cgpu_proc.DEFAULT_POLICY
    settings: Settings = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=2, sort_keys=True).encode()


def modules_folder(kernel: str) -> str:
    return f"/lib/modules/{kernel}/kernel/virt/lib"


def load_order(names: list[str]) -> tuple[str, ...]:
    """Modules as they are loaded: the main one, `cgpu_km…`, needs the others."""
    return tuple(sorted(names, key=lambda name: (name.startswith("cgpu_km"), name)))


def recorded(host: Host) -> Installed | None:
    """The layer that this program put on the node; None if there is none.

    Raises:
        InstallerError: the record cannot be understood.
    """
    text = host.text(RECORD)
    if text is None:
        return None
    try:
        data: dict[str, Any] = json.loads(text)
        for key in ("files", "originals"):
            data[key] = {path: PathState(**state) for path, state in data[key].items()}
        data["modules"] = tuple(data["modules"])
        return Installed(**data)
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        raise InstallerError(
            f"{RECORD} below {host.root} cannot be understood ({err}): move it away; "
            "the layer then counts as another program's"
        ) from err


def foreign(host: Host, files: Files) -> Installed | None:
    """A layer that others installed, from its modules and its place in /proc; None if there is none."""
    kernel = host.kernel()
    module_files = _module_files(host, files, kernel)
    state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
    if not module_files and state is None:
        return None
    modules = {path.rpartition("/")[2].removesuffix(".ko") for path in module_files}
    modules |= {name for name in host.modules() if name.startswith("cgpu")}
    own_files = dict(module_files)
    conf = files.look(CONF)
    if conf.kind == "file":
        own_files[CONF] = conf
    originals = {}
    hook = files.look(HOOK)
    if _is_wrapper(host, hook):
        own_files[HOOK] = hook
        # Restore the same file as Alibaba's own removal: their installer keeps no copy of the former one.
        has_toolkit = host.exists(TOOLKIT) and host.at(TOOLKIT) != host.at(HOOK, follow=False)
        originals[HOOK] = PathState("link", target=TOOLKIT) if has_toolkit else PathState()
    return Installed(
        version=state.version_text if state else "",
        kernel=kernel,
        files=own_files,
        originals=originals,
        modules=load_order(sorted(modules)),
    )


def _module_files(host: Host, files: Files, kernel: str) -> dict[str, PathState]:
    """The modules of cGPU for the kernel, in the folders where installers put them."""
    modules = {}
    for folder in (modules_folder(kernel), f"/lib/modules/{kernel}/extra"):
        for name in host.names(folder):
            if name.startswith("cgpu") and name.endswith(".ko"):
                path = f"{folder}/{name}"
                modules[path] = files.look(path)
    return modules


def _is_wrapper(host: Host, hook: PathState) -> bool:
    content = host.at(HOOK).read_bytes() if hook.kind == "file" else b""
    return any(word in content for word in _WRAPPER_WORDS)


def present(host: Host, files: Files) -> Installed | None:
    """The layer on the node, installed by this program or another."""
    return recorded(host) or foreign(host, files)


def drift(files: Files, installed: Installed) -> tuple[str, ...]:
    """Paths of the layer whose content has changed since the install."""
    return tuple(path for path, state in installed.files.items() if not files.look(path).same(state))


def loaded(host: Host, installed: Installed) -> tuple[str, ...]:
    """The layer's modules that are loaded now, in load order."""
    in_kernel = set(host.modules())
    return tuple(name for name in installed.modules if name in in_kernel)
