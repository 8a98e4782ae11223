"""The last mode, which is the only value that the agent's core stores across restarts."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from gpuagent.domain.sharing.mode import Mode
from gpuagent.system import json_file
from gpuagent.system.atomic_file import write_whole
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)


class LastMode:
    """A small file outside kubelet's folders, replaced atomically. For one thread.

    Attributes:
        saved: the mode in the file, by the last read or write.
    """

    def __init__(
        self, directory: Path, *, clock: Callable[[], float] = time.monotonic, backoff: Backoff | None = None
    ) -> None:
        self._path = directory / "mode.json"
        self._clock, self._backoff = clock, backoff or Backoff(1.0)
        self._next_try = float("-inf")
        self._error = ""
        self.saved: Mode | None = None

    def load(self) -> Mode | None:
        """The mode of the last run; None if there was none or the file cannot be read, which is logged."""
        try:
            self.saved = Mode(json_file.load(self._path)["mode"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as err:
            log.warning("Failed to read the stored mode", extra={"path": str(self._path), "error": err})
        return self.saved

    def keep(self, mode: Mode) -> str | None:
        """Write `mode` to the file. Returns None, or why that failed; call it again to retry, which it does in time."""
        if mode is not self.saved and self._clock() >= self._next_try:
            try:
                write_whole(self._path, json.dumps({"mode": str(mode)}))
            except OSError as err:
                self._next_try = self._clock() + self._backoff.next_s()
                self._error = err.strerror or str(err)
            else:
                self.saved = mode
                self._next_try = float("-inf")
                self._backoff.reset()
        if mode is self.saved:
            return None
        former = f"mode {self.saved}" if self.saved else "no mode"
        return (
            f"mode {mode} could not be saved in {self._path}: {self._error}; after a restart {former} "
            "is in force until the node's label is read. Make the directory writable; the agent retries"
        )
