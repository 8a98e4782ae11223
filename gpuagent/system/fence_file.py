"""The fence file: a thread of its own reads it when its directory changes, and every 10 s."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.fence import Fence, parse_fence
from gpuagent.system.inotify import DirectoryWatch

POLL_S = 10.0
SECOND_LOOK_S = 0.2
"""Editors move a file away, or empty it, before they write it: so a missing or bad file is read a second time."""
MAX_BYTES = 65536


class FenceWatch:
    """Posts `FenceRead` and `FenceUnreadable` when the content of the file changes.

    It watches the directory and not the file: editors and ConfigMap mounts put another file in its place.
    """

    def __init__(
        self, path: Path, post: Callable[[ev.Event], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._post = post
        self._clock = clock
        self._posted: Fence | str = Fence()
        self._suspect_since: float | None = None
        self._watch = DirectoryWatch(path.parent, self._look, name="fence", contents=True)

    def start(self) -> None:
        """Read the file once before all else, so that the first device list respects it; then follow the file."""
        self._look()
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()

    @property
    def in_doubt(self) -> bool:
        """Whether the last read found a missing or bad file, and a second read decides."""
        return self._suspect_since is not None

    def _look(self) -> float:
        """Post a changed fence; return the seconds until the next read without an event."""
        content = read(self._path)
        now = self._clock()
        fence_or_problem = Fence() if content is None else content
        is_certain = isinstance(content, Fence) or fence_or_problem == self._posted
        if is_certain:
            self._suspect_since = None
        elif self._suspect_since is None:
            self._suspect_since = now
        if self._suspect_since is not None and now - self._suspect_since < SECOND_LOOK_S:
            return SECOND_LOOK_S
        self._suspect_since = None
        if fence_or_problem != self._posted:
            self._posted = fence_or_problem
            if isinstance(fence_or_problem, Fence):
                self._post(ev.FenceRead(fence_or_problem, now))
            else:
                self._post(ev.FenceUnreadable(fence_or_problem, now))
        return POLL_S


def read(path: Path) -> Fence | str | None:
    """The fence, or what is wrong with the file, or None where there is no file."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "it is not a regular file"
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        # An operator put the link there on purpose: its target may be a late mount, or missing by mistake.
        return "it is a link to a file that does not exist" if path.is_symlink() else None
    except OSError as err:
        return f"it cannot be read: {err.strerror}"
    return _parse(data)


def _parse(data: bytes) -> Fence | str:
    if len(data) > MAX_BYTES:
        return f"it is larger than {MAX_BYTES} bytes"
    try:
        return parse_fence(data.decode())
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except ValueError as err:
        return str(err)


def _at_once(path: str, flags: int) -> int:
    """Open without waiting: the open of a pipe would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)
