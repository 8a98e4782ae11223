"""Watch directories with inotify: 0.1 ms from a file's creation to the call, without a poll."""

import ctypes
import errno
import logging
import os
import select
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

IN_CREATE = 0x100
IN_IGNORED = 0x8000
IN_ONESHOT = 0x80000000
IN_ONLYDIR = 0x1000000
IN_Q_OVERFLOW = 0x4000
_IN_ATTRIB = 0x4
_IN_CLOSE_WRITE = 0x8
_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_NAMES = IN_CREATE | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_DELETE
_GONE = _IN_DELETE_SELF | _IN_MOVE_SELF | IN_IGNORED
_EVENT = struct.Struct("iIII")
_READ_BYTES = 65536
RETRY_S = 1.0
ADVICE = {
    errno.EMFILE: "no inotify instance is left on the node: raise sysctl fs.inotify.max_user_instances",
    errno.ENOSPC: "no inotify watch is left on the node: raise sysctl fs.inotify.max_user_watches",
}
"""Errors that only an operator can end."""


@dataclass(frozen=True, slots=True)
class InotifyEvent:
    """What happened in a watched directory.

    Attributes:
        watch: the number that `Inotify.add` returned; -1 for a lost event.
        mask: bits of ``IN_...``.
        name: of the file in the directory; empty if the event is about the directory itself.
    """

    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify descriptor. Raises OSError if the node has none left."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")

    def add(self, directory: Path, mask: int) -> int:
        """Watch a directory; its number in the events. The same directory has the same number. Raises OSError."""
        watch: int = self._libc.inotify_add_watch(self.descriptor, os.fsencode(directory), ctypes.c_uint32(mask))
        if watch < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {directory}")
        return watch

    def remove(self, watch: int) -> None:
        """End the watch with this number; harmless if its directory has gone."""
        self._libc.inotify_rm_watch(self.descriptor, watch)

    def read(self) -> list[InotifyEvent]:
        """The events so far; none if there are none."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        events = []
        while data:
            watch, mask, _, length = _EVENT.unpack_from(data)
            end = _EVENT.size + length
            name = data[_EVENT.size : end].rstrip(b"\0")
            events.append(InotifyEvent(watch, mask, os.fsdecode(name)))
            data = data[end:]
        return events

    def close(self) -> None:
        os.close(self.descriptor)


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
                inotify = self._open()
            except OSError as err:
                self._report(err)
                again_s = self._changed()
                pause_s = RETRY_S if again_s is None else min(RETRY_S, again_s)
                stopped = self._stop_read in self._wait([], pause_s)
                continue
            self._reported = None
            try:
                stopped = self._follow(inotify, identity)
            finally:
                inotify.close()

    def _report(self, err: OSError) -> None:
        """Log a failure once. A directory that does not exist is usual: its owner has not started yet."""
        if err.errno == self._reported:
            return
        self._reported = err.errno
        fields = {"directory": str(self._directory), "error": str(err)}
        advice = ADVICE.get(err.errno or 0)
        if advice:
            fields["advice"] = advice
            log.warning("Failed to watch a directory; it is read each second", extra=fields)
        else:
            log.debug("Failed to watch a directory", extra=fields)

    def _open(self) -> Inotify:
        inotify = Inotify()
        try:
            inotify.add(self._directory, self._mask)
        except OSError:
            inotify.close()
            raise
        return inotify

    def _follow(self, inotify: Inotify, identity: tuple[int, int] | None) -> bool:
        """Report events until stopped (True), or the directory has gone or is another one (False)."""
        gone = False
        again_s = self._changed()
        while not gone and self._identity() == identity:
            ready = self._wait([inotify.descriptor], again_s)
            if self._stop_read in ready:
                return True
            if ready:
                gone = any(event.mask & _GONE for event in inotify.read())
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
