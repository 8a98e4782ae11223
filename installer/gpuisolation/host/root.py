"""The host below a root path: paths that stay below it, files that are read, and commands that run there."""

import logging
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuisolation.errors import InstallerError

log = logging.getLogger(__name__)

COMMAND_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TIMEOUT_S = 600.0
"""Limit for one command: enough for a build of the modules; all others take seconds."""


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a command: exit code, and both streams as one text."""

    code: int
    text: str


class Commands(Protocol):
    """Runs a command of the host."""

    def run(self, argv: Sequence[str], stdin: str = "", env: dict[str, str] | None = None) -> Output:
        """Run to the end; code 127 where there is no such command."""


class HostCommands:
    """Commands of the host at `root`: through chroot, where that is not this process's own root."""

    def __init__(self, root: Path) -> None:
        self._prefix = [] if root == Path("/") else ["chroot", str(root)]

    def argv(self, argv: Sequence[str]) -> list[str]:
        return [*self._prefix, *argv]

    def run(self, argv: Sequence[str], stdin: str = "", env: dict[str, str] | None = None) -> Output:
        environment = {"PATH": COMMAND_PATH, "LC_ALL": "C", **(env or {})}
        try:
            done = subprocess.run(  # noqa: S603 (no shell; this program chooses the commands)
                self.argv(argv),
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env=environment,
                timeout=TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError:
            return Output(127, f"{argv[0]}: not found")
        except (OSError, subprocess.TimeoutExpired) as err:
            return Output(126, f"{argv[0]}: {err}")
        return Output(done.returncode, done.stdout)


class Host:
    """The files below `root`. Paths are given as the host itself names them: ``/etc/os-release``."""

    def __init__(self, root: Path, commands: Commands | None = None) -> None:
        self.root = root.resolve()
        self.commands = commands or HostCommands(self.root)

    def at(self, path: str | Path, *, follow: bool = True) -> Path:
        """The path here of the host's `path`. Links resolve as on the host, and never lead out of the root.

        With `follow` off the last part is not followed: for a path that will be replaced, or is a link itself.

        Raises:
            InstallerError: the links form a circle.
        """
        rest = [part for part in reversed(Path(path).parts) if part != "/"]
        here: list[str] = []
        hops = 0
        while rest:
            part = rest.pop()
            if part == "..":
                here = here[:-1]
                continue
            here.append(part)
            full = self.root.joinpath(*here)
            if full.is_symlink() and (rest or follow):
                hops += 1
                if hops > 40:
                    raise InstallerError(f"{path} below {self.root}: its links form a circle; fix them")
                target = Path(os.readlink(full))  # noqa: PTH115 (the text as it stands)
                here = [] if target.is_absolute() else here[:-1]
                rest.extend(part for part in reversed(target.parts) if part != "/")
        return self.root.joinpath(*here)

    def text(self, path: str | Path) -> str | None:
        """Content of a text file; None where it cannot be read."""
        try:
            return self.at(path).read_bytes().decode("utf-8", "replace")
        except OSError:
            return None

    def names(self, path: str | Path) -> list[str]:
        """Names in a folder, sorted; none where it cannot be read."""
        try:
            return sorted(os.listdir(self.at(path)))  # noqa: PTH208 (names are wanted)
        except OSError:
            return []

    def exists(self, path: str | Path) -> bool:
        return self.at(path).exists()

    def kernel(self) -> str:
        """The running kernel's release.

        Raises:
            InstallerError: the root shows no /proc.
        """
        release = (self.text("/proc/sys/kernel/osrelease") or "").strip()
        if not release or "/" in release:
            raise InstallerError(
                f"{self.root}/proc/sys/kernel/osrelease cannot be read: mount the host with its /proc below the root"
            )
        return release

    def modules(self) -> tuple[str, ...]:
        """Names of the loaded kernel modules, as lsmod lists them."""
        lines = (self.text("/proc/modules") or "").splitlines()
        return tuple(line.split()[0] for line in lines if line.strip())

    def run(self, *argv: str, stdin: str = "", env: dict[str, str] | None = None) -> Output:
        """Run a command of the host, and log its output."""
        output = self.commands.run(argv, stdin, env)
        log.debug(
            "Ran command", extra={"argv": " ".join(argv), "code": output.code, "output": output.text.strip()[-400:]}
        )
        return output

    def has_command(self, name: str) -> bool:
        """Whether the host has an executable of that name on its path."""
        return any(self.exists(f"{folder}/{name}") for folder in COMMAND_PATH.split(":"))
