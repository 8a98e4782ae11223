"""What the agent's core stores across restarts: the last mode, and whether a scheduler decides on this node."""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuagent.domain.sharing.mode import Mode
from gpuagent.system import json_file
from gpuagent.system.atomic_file import write_whole
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)


class LastMode:
    """A small file outside kubelet's folders, replaced atomically. For one thread.

    Attributes:
        saved: the mode in the file, by the last read or write.
        schedulers: by the last read or write, a scheduler has decided on a pod of this node. Where the file cannot be
            read or written, that may be so, and the agent takes it to be so.
    """

    def __init__(
        self, directory: Path, *, clock: Callable[[], float] = time.monotonic, backoff: Backoff | None = None
    ) -> None:
        self._path = directory / "mode.json"
        self._clock, self._backoff = clock, backoff or Backoff(1.0)
        self._next_try = float("-inf")
        self._error = ""
        self.saved: Mode | None = None
        self.schedulers = False
        self._schedulers_saved = False

    def load(self) -> Mode | None:
        """The mode of the last run; None if there was none or the file cannot be read, which is logged."""
        try:
            stored = json_file.load(self._path)
            self.saved = Mode(stored["mode"]) if stored.get("mode") else None
            self._schedulers_saved = stored.get("schedulers") is True
            self.schedulers = self._schedulers_saved or not self._writable()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            self.schedulers = True
            log.warning("Failed to read the stored mode", extra={"path": str(self._path), "error": err})
        return self.saved

    def _writable(self) -> bool:
        """Whether the file can be replaced. If it cannot, it may lack what happened since it was written."""
        return os.access(self._path.parent, os.W_OK)

    def keep(self, mode: Mode | None = None, *, schedulers: bool = False) -> str | None:
        """Write both to the file. Returns None, or why that failed; call it again to retry, which it does in time.

        Args:
            mode: the mode in force; None keeps the one in the file.
            schedulers: a scheduler has decided on a pod of this node. The file keeps that for good.
        """
        mode = mode or self.saved
        self.schedulers = self.schedulers or schedulers
        if self._differs(mode) and self._clock() >= self._next_try:
            stored: dict[str, Any] = {"mode": str(mode)} if mode else {}
            try:
                write_whole(self._path, json.dumps({**stored, "schedulers": self.schedulers}))
            except OSError as err:
                self._next_try = self._clock() + self._backoff.next_s()
                self._error = err.strerror or str(err)
            else:
                self.saved, self._schedulers_saved = mode, self.schedulers
                self._next_try = float("-inf")
                self._backoff.reset()
        return self._unsaved(mode) if self._differs(mode) else None

    def _differs(self, mode: Mode | None) -> bool:
        return mode is not self.saved or self.schedulers is not self._schedulers_saved

    def _unsaved(self, mode: Mode | None) -> str:
        """Why the file is not up to date, and what follows from that."""
        advice = "Make the directory writable; the agent retries"
        if mode is self.saved:
            text = f"whether a scheduler chooses GPUs on this node could not be saved in {self._path}: {self._error}"
            after = "after a restart, pods may get other GPUs than chosen until the node's pods are read"
            return f"{text}; {after}. {advice}"
        former = f"mode {self.saved}" if self.saved else "no mode"
        text = f"mode {mode} could not be saved in {self._path}: {self._error}"
        return f"{text}; after a restart {former} is in force until the node's label is read. {advice}"
