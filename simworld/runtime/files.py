"""What a simulated process has of the real kernel: it is given back when the process is killed."""

import errno

from gpuagent.system.inotify import ADVICE, Inotify
from simworld.runtime.kernel import MachineError, kernel


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
