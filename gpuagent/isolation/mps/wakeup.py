"""What the mps driver's thread sleeps on."""

import os
import select
from contextlib import suppress


class Wakeup:
    """Ends a sleep when another thread asks for it, when a process ends, or when the time is over."""

    def __init__(self) -> None:
        self._asked = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ended_pid: int | None = None

    def wake(self) -> None:
        """End the present sleep, or the next one. May be called from any thread."""
        with suppress(BlockingIOError):  # another thread has asked already
            os.eventfd_write(self._asked, 1)

    def sleep(self, pause_s: float, pid: int | None) -> None:
        """Sleep until one of these happens.

        Args:
            pause_s: for at most so many seconds.
            pid: a process whose end ends the sleep; None for no process.
        """
        poll = select.poll()
        poll.register(self._asked, select.POLLIN)
        process = self._open(pid)
        if process is not None:
            poll.register(process, select.POLLIN)
        try:
            ready = [number for number, _ in poll.poll(pause_s * 1000)]
            if process in ready:
                self._ended_pid = pid
            with suppress(BlockingIOError):
                os.eventfd_read(self._asked)
        finally:
            if process is not None:
                os.close(process)

    def _open(self, pid: int | None) -> int | None:
        """A file descriptor that becomes ready when the process ends."""
        # A PID file may outlive its daemon. The end of that process would end every sleep at once.
        if pid is None or pid == self._ended_pid:
            return None
        try:
            return os.pidfd_open(pid)
        except OSError:
            return None  # it has ended, or the kernel is before 5.3: the next round trip shows which
