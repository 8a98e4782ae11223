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
        scheduler_seen: a scheduler has decided on a pod of this node; None if that is not known. A file that cannot be
            read or replaced does not tell, nor does the file of a version that did not store this.
    """

    def __init__(
        self, directory: Path, *, clock: Callable[[], float] = time.monotonic, backoff: Backoff | None = None
    ) -> None:
        self._path = directory / "mode.json"
        self._clock = clock
        self._backoff = backoff or Backoff(1.0)
        self._next_try = float("-inf")
        self._error = ""
        self.saved: Mode | None = None
        self.scheduler_seen: bool | None = None
        self._presumes_schedulers = True
        self._saved_seen: bool | None = None
        self._is_outdated = False

    def load(self) -> Mode | None:
        """The mode of the last run; None if there was none or the file cannot be read, which is logged."""
        try:
            stored = json_file.load(self._path)
            answer = stored.get("schedulers")
            self._saved_seen = answer if isinstance(answer, bool) else None
            # A file that cannot be replaced may lack a scheduler that came after it was written.
            self._is_outdated = answer is not True and not self._writable()
            self.scheduler_seen = None if self._is_outdated else self._saved_seen
            if stored.get("mode"):
                self.saved = Mode(stored["mode"])
        except FileNotFoundError:
            # An agent that can never write its file lacks it after every restart.
            can_store = self._writable()
            self._is_outdated = not can_store
            self._presumes_schedulers = not can_store
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            self._is_outdated = True
            log.warning("Failed to read the stored mode", extra={"path": str(self._path), "error": err})
        return self.saved

    @property
    def schedulers(self) -> bool:
        """Whether to go by that a scheduler decides here. Only an agent that runs for the first time presumes not."""
        return self._presumes_schedulers if self.scheduler_seen is None else self.scheduler_seen

    def _writable(self) -> bool:
        """Whether the file can be written or replaced. A write makes folders that are missing."""
        for folder in self._path.parents:
            if folder.exists():
                return os.access(folder, os.W_OK)
        return False

    def keep(self, mode: Mode | None = None, *, schedulers: bool | None = None) -> str | None:
        """Write both to the file. Returns None, or why that failed; call it again to retry, which it does in time.

        Args:
            mode: the mode in force; None keeps the one in the file.
            schedulers: whether a scheduler has decided on a pod of this node. The file keeps for good that one has;
                None keeps what is known.
        """
        mode = mode or self.saved
        if schedulers is not None:
            self.scheduler_seen = self.scheduler_seen or schedulers
        if self._differs(mode) and self._clock() >= self._next_try:
            self._write(mode)
        return self._unsaved(mode) if self._differs(mode) else None

    def _write(self, mode: Mode | None) -> None:
        stored: dict[str, Any] = {}
        if mode:
            stored["mode"] = str(mode)
        stored["schedulers"] = self.scheduler_seen
        try:
            write_whole(self._path, json.dumps(stored))
        except OSError as err:
            self._next_try = self._clock() + self._backoff.next_s()
            self._error = err.strerror or str(err)
            return
        self.saved = mode
        self._saved_seen = self.scheduler_seen
        self._is_outdated = False
        self._next_try = float("-inf")
        self._backoff.reset()

    def _differs(self, mode: Mode | None) -> bool:
        is_new_mode = mode is not self.saved
        is_new_answer = self.scheduler_seen is not self._saved_seen
        return is_new_mode or is_new_answer or self._is_outdated

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
