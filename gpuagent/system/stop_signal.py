"""Wait for SIGTERM or SIGINT."""

import os
import select
import signal


class StopSignal:
    """Set by the first SIGTERM or SIGINT after its creation. Create it in the main thread.

    Not a `threading.Event`: a signal handler runs between two steps of the main thread. It would wait forever for the
    event's lock if the main thread holds it.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os.eventfd_write(self._descriptor, 1))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether a signal has come, after at most `timeout_s` seconds; None waits until one comes."""
        return bool(select.select([self._descriptor], [], [], timeout_s)[0])
