"""SIGTERM and SIGINT: they end every program, whichever thread receives them."""

import os
import select
import signal

ENDED_BY_SIGTERM = 128 + signal.SIGTERM
"""Exit code as of a program that SIGTERM ends."""


class StopSignal:
    """Set by the first SIGTERM or SIGINT after its creation. Create it in the main thread, once in a process.

    Python runs signal handlers in the main thread only, and the kernel may deliver a signal to any thread. If another
    thread receives it, the main thread goes on sleeping. So the wait is for a byte that Python's C handler writes at
    once, in the thread that received the signal.

    Not a `threading.Event`: a signal handler runs between two steps of the main thread. It would wait forever for the
    event's lock if the main thread holds it.
    """

    def __init__(self) -> None:
        self._received, written_by_handler = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # First: a signal that comes between handler and descriptor would write nothing, and be lost.
        # If thousands of signals have filled the pipe, its first byte has long been noticed.
        signal.set_wakeup_fd(written_by_handler, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            # The C handler writes only if there is a handler in Python too.
            signal.signal(number, lambda *_: None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether a signal has come, after at most `timeout_s` seconds; None waits until one comes."""
        received, _, _ = select.select([self._received], [], [], timeout_s)
        return bool(received)


def end_as_first_process() -> None:
    """Have SIGTERM end this process at once, also if it is the first process of a container.

    For that process, the kernel drops signals that have no handler. Without one, a SIGTERM in the second of the imports
    would be lost, and kubelet would wait for the whole grace period. `StopSignal` and event loops replace the handler.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(ENDED_BY_SIGTERM))
