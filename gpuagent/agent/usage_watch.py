"""Adds up what containers hold and use of GPUs: reads the GPUs that are held, at a slow pace."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.state import State
from gpuagent.domain.usage.by_container import Samples, use
from gpuagent.domain.usage.guarantee import shares
from gpuagent.domain.usage.held_use import held_uses
from gpuagent.domain.usage.last_hour import LastHour, gpu_readings
from gpuagent.domain.usage.over_time import NodeUsage

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Between two readings. A driver reports the work of the last second or so, which stands for the whole period."""
STOP_S = 1.0

ReadSamples = Callable[[Iterable[Gpu], Collection[str] | None], Samples]
"""Samples of GPUs, of which those with these UUIDs are asked now; may wait a moment for the driver."""


class UsageWatch:
    """Takes a reading every few seconds, in a thread of its own. A GPU that nobody holds is not asked.

    Args:
        state: the agent's state now.
        samples: of the driver.
        clock: monotonic seconds, so that a clock that is set adds no time.
        period_s: see `PERIOD_S`.
    """

    def __init__(
        self,
        state: Callable[[], State],
        samples: ReadSamples,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
    ) -> None:
        self.usage = NodeUsage()
        """The sums up to the last reading; any thread may read it."""
        self.last_hour = LastHour()
        """The last hour of the GPUs that were held in it; any thread may read it."""
        self._state = state
        self._samples = samples
        self._clock = clock
        self._period_s = period_s
        self._resolved = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End; a thread that waits for the driver is left behind after a second."""
        self._stopping.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            try:
                self.read()
            except Exception:
                # The sums go on with the next reading, which counts the time in between.
                log.exception("Failed to read what containers use")

    def read(self) -> None:
        """Take one reading now."""
        state = self._state()
        held = shares(state)
        if not held and not self.usage.by_container:
            return
        samples = Samples()
        uuids = {uuid for uuid, _ in held}
        if uuids:
            samples = self._samples(state.gpus.by_uuid.values(), uuids)
        used = use(samples, state, held, resolved=self._resolved)
        self._resolved = used.pids_seen
        now = self._clock()
        self.usage = self.usage.next(held_uses(state, held, used, samples), now)
        self.last_hour = self.last_hour.next(gpu_readings(samples, uuids, state.gpus.by_uuid), now)
