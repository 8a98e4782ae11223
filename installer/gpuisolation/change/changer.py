"""Installing, upgrading and removing: the present state, the desired state, and the change between them."""

import logging
import secrets
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.host import cgpu_proc
from gpuagent.host.cgpu_proc import CgpuGpu
from gpuisolation import layer
from gpuisolation.change import change_plan, journal, package, steps
from gpuisolation.change.change_lock import ORIGINALS, ChangeLock
from gpuisolation.change.change_plan import NodeBefore
from gpuisolation.change.journal import BACKUP, STAGED, Journal
from gpuisolation.change.package import Package
from gpuisolation.change.steps import Step
from gpuisolation.errors import InstallerError, RefusedError, UsageError
from gpuisolation.host.facts import HOOK, TOOLKIT
from gpuisolation.host.files import Files, PathState, digest
from gpuisolation.host.root import Host
from gpuisolation.layer import CONF, RECORD, Installed, Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Changer:
    """Changes one host, under its lock. Every method returns what it did, for people."""

    lock: ChangeLock

    @property
    def host(self) -> Host:
        return self.lock.host

    @property
    def files(self) -> Files:
        return self.lock.files

    @contextmanager
    def unpacked(self, source: Path, sha256: str | None, *, dry_run: bool) -> Iterator[Package]:
        """The package, unpacked and built for the running kernel; a dry run unpacks it elsewhere and builds nothing."""
        if dry_run:
            with tempfile.TemporaryDirectory() as folder:
                yield package.unpack(source, sha256, Path(folder) / "package")
            return
        folder = f"{STAGED}/package"
        supplied = package.unpack(source, sha256, self.host.at(folder))
        package.build(self.host, supplied, folder, self.host.kernel())
        try:
            yield supplied
        finally:
            # An unfinished change still needs the files: the next command finishes it, and then removes them.
            if journal.pending(self.host) is None:
                journal.clean(self.files)

    def put(self, supplied: Package, *, policy: int | None, dry_run: bool, upgrade: bool) -> str:
        """Make the package's layer the node's.

        Raises:
            RefusedError: containers use the GPUs, or the version is known to be bad.
            InstallerError: it failed; the text says how the node is now.
        """
        bad = cgpu_proc.known_bad(supplied.version)
        if bad:
            raise RefusedError(f"{bad}; take another package")
        old = layer.present(self.host, self.files)
        if upgrade and old is None:
            raise RefusedError("there is no layer to upgrade on this node: run install")
        if old and not upgrade:
            report = self._left_alone(old, supplied, dry_run=dry_run)
            if report:
                return report
        new = self._target(supplied, old, policy)
        toolkit = self._toolkit(old, keep=not dry_run)
        if toolkit:
            new = replace(new, files={**new.files, TOOLKIT: toolkit})
        if old and self._complete(old, new):
            return f"cGPU {new.version} is installed from this package: nothing to do"
        what = f"{'upgrade' if upgrade else 'install'} of cGPU {new.version}"
        if not dry_run:
            self.lock.idle(f"for the {what}")
        paths = set(new.files)
        if old:
            paths.update(old.files)
        node = self._node(old, paths, keep=not dry_run)
        new = replace(new, originals=change_plan.originals(node, old, frozenset(new.files)))
        if upgrade and node.loaded and policy is None:
            # The GPUs keep the settings that are in force, even if they were not set by this program.
            new = replace(new, settings=node.settings)
        record = self._record(new, write=not dry_run)
        return self._run(what, change_plan.put(node, old, new, record), dry_run=dry_run)

    def _record(self, new: Installed, *, write: bool) -> PathState:
        """The file that the change puts in the record's place; with `write`, its copy is on the host."""
        record = PathState("file", sha256="", mode=0o600, source=f"{STAGED}/installed.json")
        if not write:
            return record
        self.files.write(record.source, new.to_json())
        return replace(record, sha256=digest(self.host.at(record.source)))

    def remove(self, *, dry_run: bool) -> str:
        """Remove the layer from the node and restore the former files.

        Raises:
            RefusedError: containers use the GPUs.
            InstallerError: it failed; the text says how the node is now.
        """
        old = layer.present(self.host, self.files)
        if old is None:
            return "no layer on this node: nothing to do"
        what = f"removal of cGPU {old.version or '(version unknown)'}"
        if not dry_run:
            self.lock.idle(f"for the {what}")
        is_foreign = not old.package
        if is_foreign and HOOK in old.files and old.originals[HOOK].kind == "absent":
            log.warning("Removed the hook without a successor, as there is no NVIDIA container toolkit")
        node = self._node(old, old.files, keep=not dry_run)
        return self._run(what, change_plan.remove(node, old), dry_run=dry_run)

    def _run(self, what: str, planned: tuple[Step, ...], *, dry_run: bool) -> str:
        if dry_run:
            return self._preview(what, planned)
        journal.run(self.host, self.files, Journal(what=what, steps=planned))
        self.lock.clean_originals()
        return f"{what}: done"

    def _preview(self, what: str, planned: tuple[Step, ...]) -> str:
        """The report of a dry run."""
        lines = [f"the {what} would take these steps:"]
        lines += [f"{number:>3}. {step}" for number, step in enumerate(planned, 1)]
        lines += [f"it would be refused now: {user}" for user in self.lock.blocking()]
        return "\n".join(lines)

    def _left_alone(self, old: Installed, supplied: Package, *, dry_run: bool) -> str:
        """The report of an install on a node that already has a layer; empty if it has something to do there."""
        state = cgpu_proc.read(self.host.at(cgpu_proc.CGPU_PROC))
        is_foreign = not old.package
        if is_foreign and state is None:
            raise RefusedError(
                "the node has files of a cGPU that this program did not install, and it is not loaded. "
                f"Load it (modprobe {' '.join(old.modules)}), or run upgrade to put {supplied.version} in its place"
            )
        if is_foreign and state:
            return (
                f"the node has cGPU {state.version_text or '(version unknown)'} that this program did not install: "
                f"left as it is; `upgrade` puts {supplied.version} in its place"
            )
        is_same_package = old.package == supplied.sha256
        is_for_this_kernel = old.kernel == self.host.kernel()
        if is_same_package or not is_for_this_kernel:
            return ""
        report = f"the node has cGPU {old.version}, the package is {supplied.version}: left as it is; run upgrade"
        if state:
            return report
        loading = self.load_again(old, dry_run=dry_run)
        return f"{loading}. {report.capitalize()}"

    def _complete(self, old: Installed, new: Installed) -> bool:
        state = cgpu_proc.read(self.host.at(cgpu_proc.CGPU_PROC))
        return (
            old.package == new.package
            and old.kernel == new.kernel
            and old.files.keys() == new.files.keys()
            and not layer.drift(self.files, old)
            and layer.loaded(self.host, old) == old.modules
            and state is not None
            and state.version_text == new.version
        )

    def _target(self, supplied: Package, old: Installed | None, policy: int | None) -> Installed:
        """The layer that the package makes of this node."""
        kernel = self.host.kernel()
        modules = supplied.modules(kernel)
        files = {HOOK: _staged(supplied, supplied.folder / package.WRAPPER, 0o755)}
        for module in modules:
            files[f"{layer.modules_folder(kernel)}/{module.name}"] = _staged(supplied, module, 0o644)
        conf = supplied.folder / package.CONF
        if conf.is_file() and not self._edited(old):
            files[CONF] = _staged(supplied, conf, 0o644)
        new = Installed(
            version=str(supplied.version),
            kernel=kernel,
            package=supplied.sha256,
            files=files,
            modules=layer.load_order([module.stem for module in modules]),
        )
        if policy is not None:
            # A policy that the operator names is for every GPU, in place of each GPU's own settings.
            return replace(new, policy=policy)
        return replace(new, policy=old.policy, settings=old.settings) if old else new

    def _toolkit(self, old: Installed | None, *, keep: bool) -> PathState | None:
        """The required file at the path of the program that the wrapper calls; None if it may stay as it is.

        Since 1.10 the toolkit's program is the hook itself, and that name a link to it: with the wrapper in the hook's
        place, the wrapper would call itself. So the name gets a copy of the hook that was there.
        """
        current = self.files.look(TOOLKIT)
        if old and TOOLKIT in old.files and current.same(old.files[TOOLKIT]):
            return current
        leads_to_hook = current.kind == "link" and self.host.at(TOOLKIT) == self.host.at(HOOK, follow=False)
        if current.kind != "absent" and not leads_to_hook:
            return None
        hook = self._hook_before(old, keep=keep)
        return hook if hook.kind == "file" else None

    def _hook_before(self, old: Installed | None, *, keep: bool) -> PathState:
        """The hook from before any layer; with `keep`, there is a copy of it."""
        hook = self.files.look(HOOK)
        if old and HOOK in old.files and hook.same(old.files[HOOK]):
            return old.originals.get(HOOK, PathState())
        return self.files.save(HOOK, f"{STAGED}/toolkit") if keep else hook

    def _edited(self, old: Installed | None) -> bool:
        """Whether a person has edited the configuration on the node: it then stays."""
        current = self.files.look(CONF)
        if current.kind == "absent":
            return False
        if old and CONF in old.files and current.same(old.files[CONF]):
            return False
        log.warning("Left a configuration that this program did not write", extra={"path": CONF})
        return True

    def _node(self, old: Installed | None, paths: Collection[str], *, keep: bool) -> NodeBefore:
        """The node as it is; with `keep`, with copies of all that may change."""
        change = secrets.token_hex(4)
        contents = {}
        for number, path in enumerate(sorted({*paths, HOOK, CONF, RECORD})):
            if not keep:
                contents[path] = self.files.look(path)
            elif self._is_own(old, path):
                # Needed only until the change has ended.
                contents[path] = self.files.save(path, f"{BACKUP}/{number}")
            else:
                # Needed as long as the layer is installed: its removal restores this file.
                contents[path] = self.files.save(path, f"{ORIGINALS}/{change}-{number}")
        state = cgpu_proc.read(self.host.at(cgpu_proc.CGPU_PROC))
        return NodeBefore(
            paths=contents,
            loaded=layer.loaded(self.host, old) if old else (),
            running=state.version_text if state else "",
            settings=_settings(state.gpus) if state else {},
        )

    def _is_own(self, old: Installed | None, path: str) -> bool:
        """Whether the path has what this program wrote there."""
        if path == RECORD:
            return True
        return old is not None and path in old.files and self.files.look(path).same(old.files[path])

    def load_again(self, old: Installed, *, dry_run: bool) -> str:
        """Load an installed layer that is not loaded, as after a reboot.

        Raises:
            UsageError: it is for another kernel.
            RefusedError: containers use the GPUs.
            InstallerError: files are missing, or the modules do not load.
        """
        what = f"loading of cGPU {old.version}"
        kernel = self.host.kernel()
        if old.kernel != kernel:
            raise UsageError(f"the modules are for kernel {old.kernel}, {kernel} runs: run install with --package")
        changed = layer.drift(self.files, old)
        if changed:
            raise InstallerError(f"{', '.join(changed)} not as installed: run install with --package")
        loaded = layer.loaded(self.host, old)
        if loaded == old.modules and self.host.exists(cgpu_proc.CGPU_PROC):
            return f"cGPU {old.version} is installed and loaded: nothing to do"
        if not dry_run:
            self.lock.idle(f"for the {what}")
        planned: list[Step] = [steps.Devices()]
        planned += [steps.Load(name, keep=name in loaded) for name in old.modules]
        planned.append(steps.Verify(old.version, old.modules))
        planned.append(steps.Configure(old.settings, old.policy))
        return self._run(what, tuple(planned), dry_run=dry_run)


def _staged(supplied: Package, source: Path, mode: int) -> PathState:
    """A file of the unpacked package, with its copy on the host."""
    name = source.relative_to(supplied.folder).as_posix()
    return PathState("file", sha256=digest(source), mode=mode, source=f"{STAGED}/package/{name}")


def _settings(gpus: Sequence[CgpuGpu]) -> Settings:
    """The settings in force; a value that could not be read is left out."""
    settings: Settings = {}
    for gpu in gpus:
        values = {"policy": gpu.policy, "max_inst": gpu.max_inst}
        settings[str(gpu.index)] = {name: value for name, value in values.items() if value is not None}
    return settings
