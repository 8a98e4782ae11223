"""GPUs that failed with an error that all GPUs may have."""

import queue
from collections.abc import Callable

from gpuagent.domain.events import GpuLost


class SuspectedLosses:
    """Keeps such losses until the driver has been read: then it is known whether the GPU is lost, or the driver away.

    Args:
        read: has the driver read now.
    """

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self._losses: queue.SimpleQueue[GpuLost] = queue.SimpleQueue()

    def add(self, loss: GpuLost) -> None:
        """Keep a loss; callable from any thread."""
        self._losses.put(loss)
        self._read()

    def take(self) -> list[GpuLost]:
        """Those that came since the last call."""
        losses = []
        while not self._losses.empty():
            losses.append(self._losses.get())
        return losses
