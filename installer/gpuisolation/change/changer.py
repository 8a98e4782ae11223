"""Installing, upgrading and removing: the present state, the desired state, and the change between them."""

import logging
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.host import cgpu_proc
from gpuisolation import layer
from gpuisolation.change import change_plan, journal, package, steps
from gpuisolation.change.change_lock import ORIGINALS, ChangeLock
from gpuisolation.change.change_plan import Now
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
        where = f"{STAGED}/package"
        found = package.unpack(source, sha256, self.host.at(where))
        package.build(self.host, found, where, self.host.kernel())
        try:
            yield found
        finally:
            if journal.pending(self.host) is None:
                journal.clean(self.files)

    def put(self, found: Package, *, policy: int | None, dry_run: bool, upgrade: bool) -> str:
        """Make the package's layer the node's.

        Raises:
            RefusedError: containers use the GPUs, or the version is known to be bad.
            InstallerError: it failed; the text says how the node is now.
        """
        if bad := cgpu_proc.known_bad(found.version):
            raise RefusedError(f"{bad}; take another package")
        old = layer.present(self.host, self.files)
        if old and not upgrade and (there := self._left_alone(old, found, dry_run=dry_run)):
            return there
        new = self._target(found, old, policy)
        if toolkit := self._toolkit(old, keep=not dry_run):
            new = replace(new, files={**new.files, TOOLKIT: toolkit})
        if upgrade and old is None:
            raise RefusedError("there is no layer to upgrade on this node: run install")
        if old and self._complete(old, new):
            return f"cGPU {new.version} is installed from this package: nothing to do"
        what = f"{'upgrade' if upgrade else 'install'} of cGPU {new.version}"
        if not dry_run:
            self.lock.idle(f"for the {what}")
        now = self._now(old, {*new.files, *(old.files if old else ())}, keep=not dry_run)
        new = replace(new, originals=change_plan.originals(now, old, frozenset(new.files)))
        if upgrade and now.loaded and policy is None:
            new = replace(new, settings=now.settings)
        record = PathState("file", sha256="", mode=0o600, source=f"{STAGED}/installed.json")
        if not dry_run:
            self.files.write(record.source, new.to_json())
            record = replace(record, sha256=digest(self.host.at(record.source)))
        return self._run(what, change_plan.put(now, old, new, record), dry_run=dry_run)

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
        if HOOK in old.files and not old.package and old.originals[HOOK].kind == "absent":
            log.warning("Removed the hook without a successor, as there is no NVIDIA container toolkit")
        now = self._now(old, set(old.files), keep=not dry_run)
        return self._run(what, change_plan.remove(now, old), dry_run=dry_run)

    def _run(self, what: str, todo: tuple[Step, ...], *, dry_run: bool) -> str:
        if dry_run:
            lines = [f"{number:>3}. {step}" for number, step in enumerate(todo, 1)]
            now = [f"it would be refused now: {user}" for user in self.lock.blocking()]
            return "\n".join([f"the {what} would take these steps:", *lines, *now])
        journal.run(self.host, self.files, Journal(what=what, steps=todo))
        self.lock.clean_originals()
        return f"{what}: done"

    def _left_alone(self, old: Installed, found: Package, *, dry_run: bool) -> str:
        """The report of an install on a node that already has the layer; empty if it has something to do there."""
        state = cgpu_proc.read(self.host.at(cgpu_proc.CGPU_PROC))
        if not old.package and state is None:
            raise RefusedError(
                "the node has files of a cGPU that this program did not install, and it is not loaded. "
                f"Load it (modprobe {' '.join(old.modules)}), or run upgrade to put {found.version} in its place"
            )
        if not old.package and state:
            return (
                f"the node has cGPU {state.version_text or '(version unknown)'} that this program did not install: "
                f"left as it is; `upgrade` puts {found.version} in its place"
            )
        if old.package == found.sha256 or old.kernel != self.host.kernel():
            return ""
        left = f"the node has cGPU {old.version}, the package is {found.version}: left as it is; run upgrade"
        return left if state else f"{self.load_again(old, dry_run=dry_run)}. {left.capitalize()}"

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

    def _target(self, found: Package, old: Installed | None, policy: int | None) -> Installed:
        kernel = self.host.kernel()
        sources = {HOOK: (found.folder / package.WRAPPER, 0o755)}
        modules = found.modules(kernel)
        for module in modules:
            sources[f"{layer.modules_folder(kernel)}/{module.name}"] = (module, 0o644)
        conf = found.folder / package.CONF
        if conf.is_file() and not self._edited(old):
            sources[CONF] = (conf, 0o644)
        files = {}
        for path, (source, mode) in sources.items():
            inner = source.relative_to(found.folder).as_posix()
            files[path] = PathState("file", sha256=digest(source), mode=mode, source=f"{STAGED}/package/{inner}")
        return Installed(
            version=str(found.version),
            kernel=kernel,
            package=found.sha256,
            files=files,
            modules=layer.load_order([module.stem for module in modules]),
            policy=policy if policy is not None else old.policy if old else cgpu_proc.DEFAULT_POLICY,
            settings=old.settings if old and policy is None else {},
        )

    def _toolkit(self, old: Installed | None, *, keep: bool) -> PathState | None:
        """The required file at the path of the program that the wrapper calls; None if it may stay as it is.

        Since 1.10 the toolkit's program is the hook itself, and that name a link to it: with the wrapper in the hook's
        place, the wrapper would call itself. So the name gets a copy of the hook that was there.
        """
        here, hook = self.files.look(TOOLKIT), self.files.look(HOOK)
        if old and TOOLKIT in old.files and here.same(old.files[TOOLKIT]):
            return here
        leads_to_hook = here.kind == "link" and self.host.at(TOOLKIT) == self.host.at(HOOK, follow=False)
        if here.kind != "absent" and not leads_to_hook:
            return None
        if old and HOOK in old.files and hook.same(old.files[HOOK]):
            hook = old.originals.get(HOOK, PathState())
        elif keep:
            hook = self.files.save(HOOK, f"{STAGED}/toolkit")
        return hook if hook.kind == "file" else None

    def _edited(self, old: Installed | None) -> bool:
        """Whether a person has edited the configuration on the node: it then stays."""
        here = self.files.look(CONF)
        if here.kind == "absent" or (old and CONF in old.files and here.same(old.files[CONF])):
            return False
        log.warning("Left a configuration that this program did not write", extra={"path": CONF})
        return True

    def _now(self, old: Installed | None, paths: set[str], *, keep: bool) -> Now:
        """The node as it is; with `keep`, with copies of all that may change."""
        change = secrets.token_hex(4)
        found = {}
        for number, path in enumerate(sorted({*paths, HOOK, CONF, RECORD})):
            ours = path == RECORD or (old and path in old.files and self.files.look(path).same(old.files[path]))
            copy = f"{BACKUP}/{number}" if ours else f"{ORIGINALS}/{change}-{number}"
            found[path] = self.files.save(path, copy) if keep else self.files.look(path)
        state = cgpu_proc.read(self.host.at(cgpu_proc.CGPU_PROC))
        settings: Settings = {}
        for gpu in state.gpus if state else ():
            values = {"policy": gpu.policy, "max_inst": gpu.max_inst}
            settings[str(gpu.index)] = {name: value for name, value in values.items() if value is not None}
        return Now(
            paths=found,
            loaded=layer.loaded(self.host, old) if old else (),
            running=state.version_text if state else "",
            settings=settings,
        )

    def load_again(self, old: Installed, *, dry_run: bool) -> str:
        """Load an installed layer that is not loaded, as after a reboot.

        Raises:
            UsageError: it is for another kernel.
            RefusedError: containers use the GPUs.
            InstallerError: files are missing, or the modules do not load.
        """
        what, kernel = f"loading of cGPU {old.version}", self.host.kernel()
        if old.kernel != kernel:
            raise UsageError(f"the modules are for kernel {old.kernel}, {kernel} runs: run install with --package")
        if gone := layer.drift(self.files, old):
            raise InstallerError(f"{', '.join(gone)} not as installed: run install with --package")
        there = layer.loaded(self.host, old)
        if there == old.modules and self.host.exists(cgpu_proc.CGPU_PROC):
            return f"cGPU {old.version} is installed and loaded: nothing to do"
        if not dry_run:
            self.lock.idle(f"for the {what}")
        todo: list[Step] = [steps.Devices(), *(steps.Load(name, keep=name in there) for name in old.modules)]
        todo += [steps.Verify(old.version, old.modules), steps.Configure(old.settings, old.policy)]
        return self._run(what, tuple(todo), dry_run=dry_run)
