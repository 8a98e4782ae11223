"""Keeps parts that start late from starting while the agent stops."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StartGate:
    """Open until the agent stops: what starts later than the agent passes through it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def passing(self) -> Iterator[bool]:
        """Whether a part may start now. `close` waits until the block has ended."""
        # Held until the part has started, so that `close` cannot come in between.
        with self._lock:
            yield not self._is_closed

    def close(self) -> None:
        """Let nothing start from now on."""
        with self._lock:
            self._is_closed = True
