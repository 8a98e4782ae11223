"""Changing the host's files: every primitive is atomic or idempotent, and on disk when it returns."""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuisolation.errors import InstallerError
from gpuisolation.host.root import Host

SCRATCH = ".gpu-isolation-new"


@dataclass(frozen=True, slots=True)
class PathState:
    """The present or the desired content of a path.

    Attributes:
        kind: nothing there, a link, or a file.
        target: of a link.
        sha256: of a file's content; `source` is the host path of a copy of it (empty where none was made).
        mode: of a file, its permission bits.
    """

    kind: Literal["absent", "link", "file"] = "absent"
    target: str = ""
    sha256: str = ""
    mode: int = 0o644
    source: str = ""

    def same(self, other: "PathState") -> bool:
        """Whether both describe the same content, regardless of the copies."""
        if self.kind == "file" and self.mode != other.mode:
            return False
        return (self.kind, self.target, self.sha256) == (other.kind, other.target, other.sha256)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Files:
    """The files of a host. Paths are the host's own."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def look(self, path: str) -> PathState:
        """Return the content of `path`, without following its last part.

        Raises:
            InstallerError: it is a folder or something else that this program never replaces.
        """
        real = self.host.at(path, follow=False)
        if real.is_symlink():
            return PathState("link", target=os.readlink(real))  # noqa: PTH115 (the text as it stands)
        if not real.exists():
            return PathState()
        if not real.is_file():
            raise InstallerError(f"{path} is neither a file nor a link: move it away")
        return PathState("file", sha256=digest(real), mode=real.stat().st_mode & 0o7777)

    def place(self, path: str, state: PathState) -> None:
        """Replace `path` with `state`, atomically.

        Raises:
            InstallerError: the copy that is its source has changed.
        """
        real = self.host.at(path, follow=False)
        scratch = real.with_name(f".{real.name}{SCRATCH}")
        scratch.unlink(missing_ok=True)
        if self.look(path).same(state):
            return
        if state.kind == "absent":
            self.unlink(real)
        else:
            real.parent.mkdir(parents=True, exist_ok=True)
            if state.kind == "link":
                self.symlink(scratch, state.target)
            else:
                self.copy(self.host.at(state.source), scratch, state.mode)
                if digest(scratch) != state.sha256:
                    scratch.unlink()
                    raise InstallerError(f"{state.source} changed since it was checked: run again with the package")
            self.rename(scratch, real)
        _sync(real.parent)

    def save(self, path: str, source: str) -> PathState:
        """Return the content of `path`, and copy a file to `source` so that it can be restored."""
        state = self.look(path)
        if state.kind != "file":
            return state
        self.write(source, self.host.at(path, follow=False).read_bytes(), mode=0o600)
        return PathState("file", sha256=state.sha256, mode=state.mode, source=source)

    def write(self, path: str, content: bytes, mode: int = 0o600) -> None:
        """Write a file completely, or not at all."""
        real = self.host.at(path, follow=False)
        real.parent.mkdir(parents=True, exist_ok=True)
        scratch = real.with_name(f".{real.name}{SCRATCH}")
        scratch.unlink(missing_ok=True)
        with scratch.open("xb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        self.rename(scratch, real)
        _sync(real.parent)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(self.host.at(path, follow=False), ignore_errors=True)

    # A test counts the primitives below, and stops at each.

    def copy(self, source: Path, to: Path, mode: int) -> None:
        with source.open("rb") as read, to.open("xb") as written:
            shutil.copyfileobj(read, written)
            os.fchmod(written.fileno(), mode)
            written.flush()
            os.fsync(written.fileno())

    def symlink(self, path: Path, target: str) -> None:
        path.symlink_to(target)

    def rename(self, path: Path, to: Path) -> None:
        path.replace(to)

    def set_proc(self, path: Path, text: str) -> None:
        """Write one value to a file of the kernel, in one call.

        Raises:
            InstallerError: the kernel refuses it.
        """
        try:
            path.write_text(text, encoding="ascii")
        except OSError as err:
            raise InstallerError(f"{path} does not take {text!r}: {err.strerror}") from err

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
