"""The steps of a change, each idempotent, each with its undo. They are data: a journal holds them as JSON."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from gpuagent.host import cgpu_proc
from gpuagent.host.cgpu_proc import Version
from gpuisolation.errors import InstallerError
from gpuisolation.host.files import Files, PathState
from gpuisolation.host.root import Host
from gpuisolation.layer import Settings

log = logging.getLogger(__name__)


class Step(Protocol):
    """One change of the host. `do` and `undo` may be run again, also after a reboot; both raise InstallerError."""

    def do(self, host: Host, files: Files) -> None: ...

    def undo(self, host: Host, files: Files) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A path becomes `after`; undone, it is `before` again."""

    path: str
    after: PathState
    before: PathState

    def do(self, host: Host, files: Files) -> None:  # noqa: ARG002 (all steps are called alike)
        files.place(self.path, self.after)

    def undo(self, host: Host, files: Files) -> None:  # noqa: ARG002
        files.place(self.path, self.before)

    def __str__(self) -> str:
        if self.after.same(self.before):
            return f"leave {self.path} as it is"
        if self.after.kind == "absent":
            return f"remove {self.path}"
        if self.after.kind == "link":
            return f"link {self.path} to {self.after.target}"
        return f"put {self.path}"


@dataclass(frozen=True, slots=True)
class Load:
    """A kernel module is loaded; one that was before (`keep`) stays when this is undone."""

    module: str
    keep: bool = False

    def do(self, host: Host, files: Files) -> None:  # noqa: ARG002
        load(host, self.module)

    def undo(self, host: Host, files: Files) -> None:  # noqa: ARG002
        if not self.keep:
            unload(host, self.module)

    def __str__(self) -> str:
        return f"modprobe {self.module}"


@dataclass(frozen=True, slots=True)
class Unload:
    """A kernel module is unloaded, unless a container has started since the check of GPU users."""

    module: str

    def do(self, host: Host, files: Files) -> None:  # noqa: ARG002
        state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
        gpus = state.gpus if state else ()
        instances = [instance.name for gpu in gpus for instance in gpu.instances]
        if instances:
            raise InstallerError(f"container {instances[0]} began to use a GPU meanwhile: cordon the node first")
        unload(host, self.module)

    def undo(self, host: Host, files: Files) -> None:  # noqa: ARG002
        load(host, self.module)

    def __str__(self) -> str:
        return f"rmmod {self.module}"


@dataclass(frozen=True, slots=True)
class Index:
    """Rebuild the index of modules: forward, or (`back`) on the way back. A kernel may be gone by now."""

    kernel: str
    back: bool = False

    def do(self, host: Host, files: Files) -> None:  # noqa: ARG002
        if not self.back and host.exists(f"/lib/modules/{self.kernel}"):
            _must(host, "depmod", self.kernel)

    def undo(self, host: Host, files: Files) -> None:  # noqa: ARG002
        if self.back and host.exists(f"/lib/modules/{self.kernel}"):
            _must(host, "depmod", self.kernel)

    def __str__(self) -> str:
        return f"on the way back: depmod {self.kernel}" if self.back else f"depmod {self.kernel}"


@dataclass(frozen=True, slots=True)
class Devices:
    """The driver makes its device nodes, which the module needs: forward, or (`back`) before old modules are loaded."""

    back: bool = False

    def do(self, host: Host, files: Files) -> None:  # noqa: ARG002
        if not self.back:
            _must(host, "nvidia-smi")

    def undo(self, host: Host, files: Files) -> None:  # noqa: ARG002
        if self.back:
            _must(host, "nvidia-smi")

    def __str__(self) -> str:
        return "on the way back: nvidia-smi" if self.back else "nvidia-smi"


@dataclass(frozen=True, slots=True)
class Verify:
    """The modules are loaded and /proc/cgpu_km has the version: forward, or (`back`) when all is undone."""

    version: str
    modules: tuple[str, ...]
    back: bool = False

    def do(self, host: Host, files: Files) -> None:  # noqa: ARG002
        if self.back:
            return
        self._check(host)
        if problem := cgpu_proc.problem(cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))):
            raise InstallerError(problem)

    def undo(self, host: Host, files: Files) -> None:  # noqa: ARG002
        if self.back:
            self._check(host)

    def _check(self, host: Host) -> None:
        missing = [name for name in self.modules if name not in host.modules()]
        if missing:
            raise InstallerError(f"{', '.join(missing)} not among the loaded modules (lsmod): see dmesg")
        state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
        loaded = state.version_text if state else "nothing"
        if not self._is_version(loaded):
            raise InstallerError(
                f"{cgpu_proc.CGPU_PROC / 'version'} says {loaded!r}, wanted {self.version!r}: see dmesg"
            )

    def _is_version(self, text: str) -> bool:
        """Whether the module's text means the version, for example `v1.5.10` or `1.5.10-1`."""
        if text == self.version:
            return True
        version = Version.parse(text)
        return version is not None and version == Version.parse(self.version)

    def __str__(self) -> str:
        prefix = "on the way back: " if self.back else ""
        return f"{prefix}check lsmod and {cgpu_proc.CGPU_PROC / 'version'}: {self.version}"


@dataclass(frozen=True, slots=True)
class Configure:
    """Every GPU gets its policy and max_inst: forward, or (`back`) when the modules are back."""

    settings: Settings
    policy: int
    back: bool = False

    def do(self, host: Host, files: Files) -> None:
        if not self.back:
            self._set(host, files)

    def undo(self, host: Host, files: Files) -> None:
        if self.back:
            self._set(host, files)

    def _set(self, host: Host, files: Files) -> None:
        state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
        if state is None or state.version is None or state.version < cgpu_proc.POLICY_SINCE:
            log.info("Left the policy as the module has it", extra={"needs": str(cgpu_proc.POLICY_SINCE)})
            return
        for gpu in state.gpus:
            own_settings = self.settings.get(str(gpu.index), {})
            wanted = {"policy": self.policy} | own_settings
            for name, value in wanted.items():
                set_number(host, files, f"{gpu.index}/{name}", value)

    def __str__(self) -> str:
        prefix = "on the way back: " if self.back else ""
        settings = [f"set policy {self.policy}"]
        for gpu, values in sorted(self.settings.items()):
            named = ", ".join(f"{name} {value}" for name, value in values.items())
            settings.append(f"GPU {gpu}: {named}")
        return f"{prefix}{'; '.join(settings)}"


_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Place, Load, Unload, Index, Devices, Verify, Configure)
}


def to_json(step: Step) -> dict[str, Any]:
    return {"step": type(step).__name__, **asdict(step)}  # type: ignore[call-overload]


def from_json(data: Mapping[str, Any]) -> Step:
    """A step from what `to_json` made; KeyError or TypeError for anything else."""
    values = {key: value for key, value in data.items() if key != "step"}
    for key in ("after", "before"):
        if key in values:
            values[key] = PathState(**values[key])
    if "modules" in values:
        values["modules"] = tuple(values["modules"])
    step: Step = _KINDS[data["step"]](**values)
    return step


def load(host: Host, module: str) -> None:
    if module not in host.modules():
        _must(host, "modprobe", module)


def unload(host: Host, module: str) -> None:
    if module in host.modules():
        _must(host, "rmmod", module)


def set_number(host: Host, files: Files, name: str, value: int) -> None:
    """Write a number below /proc/cgpu_km and read it back.

    Raises:
        InstallerError: the module does not take it.
    """
    path = cgpu_proc.CGPU_PROC / name
    if (host.text(path) or "").strip() == str(value):
        return
    files.set_proc(host.at(path), str(value))
    written = (host.text(path) or "").strip()
    if written != str(value):
        raise InstallerError(f"{path} says {written!r} after {value} was written: the module did not take it")


def _must(host: Host, *argv: str) -> None:
    output = host.run(*argv)
    if output.code != 0:
        tail = " ".join(output.text.split())[-400:] or "it printed nothing"
        raise InstallerError(f"`{' '.join(argv)}` ended with {output.code}: {tail}")
