"""What a simulated process has of the real kernel: it is given back when the process is killed."""

import errno
import os
from functools import partial

from gpuagent.system.inotify import ADVICE, Inotify
from simworld.runtime.kernel import MachineError, kernel

_real_pipe = os.pipe


class ProcessInotify(Inotify):
    """As `Inotify`, and closed with its process. Raises MachineError if the real machine has none left."""

    def __init__(self) -> None:
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


def process_pipe() -> tuple[int, int]:
    """As `os.pipe`, and closed with its process."""
    ends = _real_pipe()
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
