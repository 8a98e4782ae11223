"""Watch one directory with inotify: 0.1 ms from a file's creation to the call, without a poll."""

import ctypes
import errno
import logging
import os
import select
import struct
import threading
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_IN_ATTRIB = 0x4
_IN_CLOSE_WRITE = 0x8
_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_IGNORED = 0x8000
_NAMES = _IN_CREATE | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_DELETE
_GONE = _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_IGNORED
_EVENT = struct.Struct("iIII")
RETRY_S = 1.0
_ADVICE = {
    errno.EMFILE: "no inotify instance is left on the node: raise sysctl fs.inotify.max_user_instances",
    errno.ENOSPC: "no inotify watch is left on the node: raise sysctl fs.inotify.max_user_watches",
}
"""Errors that only an operator can end."""


class DirectoryWatch:
    """Calls `changed()` whenever a name appears in or vanishes from `directory`, and when the watch (re)starts.

    A directory that does not exist, or is replaced, is tried again every second, with a call each time. The next call
    detects a link that leads elsewhere by now. Inotify can lose events, so `changed` reads the directory itself, and
    also asks for slow polling.

    Args:
        directory: need not exist yet.
        changed: may return the seconds after which to call it again without an event.
        name: the thread's.
        contents: call also when a file was written and closed, and when its owner or mode changed.
    """

    def __init__(
        self,
        directory: Path,
        changed: Callable[[], float | None],
        *,
        name: str = "directory-watch",
        contents: bool = False,
    ) -> None:
        self._directory = directory
        self._changed = changed
        self._mask = _NAMES | _IN_DELETE_SELF | _IN_MOVE_SELF
        if contents:
            self._mask |= _IN_CLOSE_WRITE | _IN_ATTRIB
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._reported: int | None = None
        """Error number of the last failure that was logged."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watch; harmless if it was never started."""
        # The thread waits in select, which a pipe can end.
        os.write(self._stop_write, b"x")
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _run(self) -> None:
        stopped = False
        while not stopped:
            # Before the watch: if the directory is replaced in between, the watch of the former one ends.
            identity = self._identity()
            try:
                fd = self._open()
            except OSError as err:
                self._report(err)
                again_s = self._changed()
                pause_s = RETRY_S if again_s is None else min(RETRY_S, again_s)
                stopped = self._stop_read in self._wait([], pause_s)
                continue
            self._reported = None
            try:
                stopped = self._follow(fd, identity)
            finally:
                os.close(fd)

    def _report(self, err: OSError) -> None:
        """Log a failure once. A directory that does not exist is usual: its owner has not started yet."""
        if err.errno == self._reported:
            return
        self._reported = err.errno
        fields = {"directory": str(self._directory), "error": str(err)}
        advice = _ADVICE.get(err.errno or 0)
        if advice:
            fields["advice"] = advice
            log.warning("Failed to watch a directory; it is read each second", extra=fields)
        else:
            log.debug("Failed to watch a directory", extra=fields)

    def _open(self) -> int:
        fd: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        if self._libc.inotify_add_watch(fd, os.fsencode(self._directory), self._mask) < 0:
            os.close(fd)
            raise OSError(ctypes.get_errno(), f"cannot watch {self._directory}")
        return fd

    def _follow(self, fd: int, identity: tuple[int, int] | None) -> bool:
        """Report events until stopped (True), or the directory has gone or is another one (False)."""
        gone = False
        again_s = self._changed()
        while not gone and self._identity() == identity:
            ready = self._wait([fd], again_s)
            if self._stop_read in ready:
                return True
            if ready:
                gone = _says_gone(os.read(fd, 65536))
            again_s = self._changed()
        return False

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._directory.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _wait(self, others: list[int], timeout_s: float | None) -> list[int]:
        ready, _, _ = select.select([*others, self._stop_read], [], [], timeout_s)
        return ready


def _says_gone(data: bytes) -> bool:
    """Whether one of these events says that the directory itself is gone."""
    while data:
        _, mask, _, length = _EVENT.unpack_from(data)
        if mask & _GONE:
            return True
        data = data[_EVENT.size + length :]
    return False
