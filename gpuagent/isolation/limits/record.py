"""The limits driver's record across restarts of the agent: whether limits have worked since the node was started."""

import logging
from pathlib import Path

from gpuagent.system.atomic_file import write_whole
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LimitsRecord:
    """A small file in the state directory.

    After a reboot, driver and kernel may be others, so the record is good for one boot of the node only.

    Args:
        directory: for the file.
        boot_id: the kernel's file with the id of this boot.
    """

    def __init__(self, directory: Path, boot_id: Path = BOOT_ID) -> None:
        self._path = directory / "limits-worked"
        self._boot = _text(boot_id)
        recorded = _text(self._path)
        is_of_this_boot = recorded == self._boot
        self.worked = bool(recorded) and is_of_this_boot

    def note(self) -> None:
        """Record that limits work. A record that cannot be written is missed only if the helper is away at a start."""
        if self.worked:
            return
        self.worked = True
        try:
            write_whole(self._path, self._boot)
        except OSError as err:
            log.warning("Failed to record that memory limits work", extra={"error": error_words(err)})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
