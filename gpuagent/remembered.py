"""The one thing the agent remembers over restarts: the last mode in force."""

import json
import logging
from pathlib import Path

from gpuagent.domain.mode import Mode
from gpuagent.wholefile import write_whole

log = logging.getLogger(__name__)


class RememberedMode:
    """A small file outside kubelet's folders, replaced atomically."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "mode.json"

    def load(self) -> Mode | None:
        """The mode of the last run; None if there was none or the file cannot be read (said in the log)."""
        try:
            return Mode(json.loads(self._path.read_text(encoding="utf-8"))["mode"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as err:
            log.warning("cannot read the remembered mode", extra={"path": str(self._path), "error": str(err)})
            return None

    def save(self, mode: Mode) -> None:
        """Remember `mode`; a failure is logged, not raised: the label is read again at the next start."""
        try:
            write_whole(self._path, json.dumps({"mode": str(mode)}))
        except OSError as err:
            log.error("cannot remember the mode", extra={"path": str(self._path), "error": str(err)})  # noqa: TRY400
