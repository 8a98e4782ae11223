"""What a simulated process has of the real kernel: it is given back when the process is killed."""

import errno
import os
from functools import partial

from gpuagent.system.inotify import ADVICE, Inotify
from simworld.runtime.kernel import MachineError, kernel

_real_pipe = os.pipe
_real_pipe2 = os.pipe2
_real_fsync = os.fsync
_real_replace = os.replace


class ProcessInotify(Inotify):
    """As `Inotify`, and closed with its process. Raises MachineError if the real machine has none left.

    On some simulated nodes none is left. There it raises OSError, as the product knows it.
    """

    def __init__(self) -> None:
        if not getattr(kernel().process.host, "has_inotify", True):
            raise OSError(errno.EMFILE, "no instance is left on this node")
        try:
            super().__init__()
        except OSError as error:
            # The product would poll instead. Whether it does must not depend on what else runs on the machine.
            raise MachineError(ADVICE.get(error.errno or errno.EMFILE, str(error))) from error
        self._process = kernel().process
        self._process.at_end.append(super().close)

    def close(self) -> None:
        self._process.at_end.remove(super().close)
        super().close()


def replace_disk() -> None:
    """Have writes to the disk of a node take as long as its disk needs."""
    os.fsync = _fsync  # type: ignore[assignment]
    os.replace = _replace  # type: ignore[assignment]
    os.rename = _replace  # type: ignore[assignment]


def _fsync(descriptor: int) -> None:
    _wait_for_disk()
    _real_fsync(descriptor)


def _replace(source: str, target: str) -> None:
    _wait_for_disk()
    _real_replace(source, target)


def _wait_for_disk() -> None:
    machine = kernel()
    most_s: float = getattr(machine.process.host, "disk_s", 0.0)
    if most_s and machine.current is not None:
        machine.sleep(machine.chance.random() * most_s)


def process_pipe() -> tuple[int, int]:
    """As `os.pipe`, and closed with its process."""
    return _with_process(_real_pipe())


def process_pipe2(flags: int) -> tuple[int, int]:
    """As `os.pipe2`, and closed with its process."""
    return _with_process(_real_pipe2(flags))


def _with_process(ends: tuple[int, int]) -> tuple[int, int]:
    """The ends of a pipe, which are closed with the process that has its turn."""
    inode = os.fstat(ends[0]).st_ino
    kernel().process.at_end.append(partial(_close_pipe, ends, inode))
    return ends


def _close_pipe(ends: tuple[int, int], inode: int) -> None:
    """Close what a process that ends has not closed itself: the numbers may be those of other files by now."""
    for end in ends:
        try:
            is_open = os.fstat(end).st_ino == inode
        except OSError:
            is_open = False
        if is_open:
            os.close(end)
