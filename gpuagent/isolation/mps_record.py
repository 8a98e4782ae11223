"""The mps driver's record across restarts of the agent: the daemon it started, the compute modes it changed."""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from gpuagent.system import json_file
from gpuagent.system.atomic_file import write_whole

log = logging.getLogger(__name__)


class MpsRecord:
    """A small file in the state directory, replaced atomically. May be used from any thread.

    Attributes:
        daemon: PID of the control daemon the agent started, 0 while that is not known yet; None: it started none.
        modes: GPU UUID to the compute mode before the agent changed it, as nvidia-smi spells it.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "mps.json"
        self._lock = threading.Lock()
        self.daemon: int | None = None
        self.modes: Mapping[str, str] = {}
        try:
            record = json_file.load(self._path)
            pid = record["daemon"]
            modes = record["modes"]
            self.daemon = None if pid is None else int(pid)
            self.modes = {str(uuid): str(mode) for uuid, mode in modes.items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as err:
            # The agent then adopts a running daemon and never stops it, and compute modes stay: both are harmless.
            log.warning("Failed to read the record of MPS", extra={"path": str(self._path), "error": err})

    def started(self, pid: int | None) -> None:
        """Note the daemon. Raises OSError: it is not noted on disk."""
        with self._lock:
            self.daemon = pid
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
        record = {"daemon": self.daemon, "modes": self.modes}
        write_whole(self._path, json.dumps(record))
