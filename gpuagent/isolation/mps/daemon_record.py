"""The mps driver's record across restarts of the agent: the daemons it started, the compute modes it changed."""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from gpuagent.system import json_file
from gpuagent.system.atomic_file import write_whole
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

NODE = ""
"""In place of a GPU's UUID: the daemon for all GPUs that an earlier release of the agent started."""


class MpsRecord:
    """A small file in the state directory, replaced atomically. May be used from any thread.

    Attributes:
        daemons: GPU UUID, or `NODE`, to the PID of the control daemon that the agent started for it. The PID is 0 while
            it is not known yet.
        modes: GPU UUID to the compute mode before the agent changed it, as nvidia-smi spells it.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "mps.json"
        self._sign = directory / "mps.alive"
        self._lock = threading.Lock()
        self.last_seen_at = self._last_sign()
        """When a former agent was last alive, in seconds since 1970; None if there was none."""
        self.daemons: Mapping[str, int] = {}
        self.modes: Mapping[str, str] = {}
        try:
            self._load()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as err:
            # The agent then adopts a running daemon and never stops it, and compute modes stay: both are harmless.
            log.warning("Failed to read the record of MPS", extra={"path": str(self._path), "error": err})

    def _last_sign(self) -> float | None:
        try:
            return self._sign.stat().st_mtime
        except OSError:
            return None

    def sign_of_life(self) -> None:
        """Note that the agent is alive now."""
        try:
            write_whole(self._sign, "", on_disk=False)
        except OSError as err:
            log.debug("Failed to note that the agent is alive", extra={"error": error_words(err)})

    def _load(self) -> None:
        record = json_file.load(self._path)
        # Agents with one daemon for the node wrote `daemon` only.
        by_gpu = record.get("daemons", {})
        daemons = {str(uuid): int(pid) for uuid, pid in by_gpu.items()}
        of_node = record["daemon"]
        if of_node is not None:
            daemons[NODE] = int(of_node)
        modes = record["modes"]
        self.modes = {str(uuid): str(mode) for uuid, mode in modes.items()}
        self.daemons = daemons

    def started(self, gpu: str, pid: int) -> None:
        """Note the daemon of a GPU. Raises OSError: it is not noted on disk."""
        with self._lock:
            self.daemons = {**self.daemons, gpu: pid}
            self._save()

    def ended(self, gpu: str) -> None:
        """Delete the daemon of a GPU from the record. Raises OSError: the record names a process that has ended."""
        with self._lock:
            self.daemons = {other: pid for other, pid in self.daemons.items() if other != gpu}
            self._save()

    def changed(self, uuid: str, former: str) -> None:
        """Note a compute mode, before it is changed. Raises OSError: it is not noted, so it must not be changed."""
        with self._lock:
            self.modes = {**self.modes, uuid: former}
            self._save()

    def given_back(self, uuid: str) -> None:
        """Delete a compute mode from the record. Raises OSError: the agent restores it again after a restart."""
        with self._lock:
            self.modes = {other: mode for other, mode in self.modes.items() if other != uuid}
            self._save()

    def _save(self) -> None:
        of_gpus = {gpu: pid for gpu, pid in self.daemons.items() if gpu != NODE}
        record = {"daemon": self.daemons.get(NODE), "daemons": of_gpus, "modes": self.modes}
        write_whole(self._path, json.dumps(record))
