"""A daemon thread that processes its work until it is stopped."""

import threading
from abc import ABC, abstractmethod


class Worker(ABC):
    """A writer to the API server. Callers that give it work hold `_wake`, and never wait for the thread.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._wake = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start; returns at once."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop and wait up to ``timeout_s``; a thread in a call to a silent server ends with that call's timeout."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stopped`; changes of it, and of what there is to do, notify `_wake`."""
