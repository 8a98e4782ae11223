"""Adds up what containers hold and use of GPUs: reads the GPUs that are held, at a slow pace.

Pods are told what follows from it.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from gpuagent.domain.announcement import EventSink
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.state import State
from gpuagent.domain.usage.by_container import Samples, use
from gpuagent.domain.usage.exhausted import ExhaustedContainers
from gpuagent.domain.usage.guarantee import Share, shares
from gpuagent.domain.usage.held_use import held_uses
from gpuagent.domain.usage.idle_policy import IdlePod, idle_pods
from gpuagent.domain.usage.last_hour import LastHour, gpu_readings
from gpuagent.domain.usage.over_time import NodeUsage, OnGpu

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Between two readings. A driver reports the work of the last second or so, which stands for the whole period."""
STOP_S = 1.0

ReadSamples = Callable[[Iterable[Gpu], Collection[str] | None], Samples]
"""Samples of GPUs, of which those with these UUIDs are asked now; may wait a moment for the driver."""


class UsageWatch:
    """Takes a reading every few seconds, in a thread of its own. A GPU that no container holds is not asked.

    Args:
        state: the agent's state now.
        samples: of the driver.
        announce: tells pods what became of them.
        set_idle_pods: takes the pods that are idle, after each reading; None: they are not looked for.
        clock: monotonic seconds, so that a clock that is set adds no time.
        period_s: see `PERIOD_S`.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        state: Callable[[], State],
        samples: ReadSamples,
        announce: EventSink = lambda _: None,
        set_idle_pods: Callable[[Iterable[IdlePod]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
    ) -> None:
        self.usage = NodeUsage()
        """The sums up to the last reading; any thread may read it."""
        self.last_hour = LastHour()
        """The last hour of the GPUs that were held in it; any thread may read it."""
        self._state = state
        self._samples = samples
        self._announce = announce
        self._set_idle_pods = set_idle_pods
        self._exhausted = ExhaustedContainers()
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
        if held or self.usage.by_container:
            self._add_up(state, held)
        # Also on a node without holders: what has failed before the first one is not to be reported later.
        self._exhausted, announcements = self._exhausted.next(
            state.pods.seen, self.usage, state.gpus.by_uuid, self._clock()
        )
        for announcement in announcements:
            self._announce(announcement)
        if self._set_idle_pods:
            self._set_idle_pods(idle_pods(self.usage, state.pods.seen, self._clock()))

    def _add_up(self, state: State, held: Mapping[OnGpu, Share]) -> None:
        samples = Samples()
        uuids = {uuid for uuid, _ in held}
        if uuids:
            samples = self._samples(state.gpus.by_uuid.values(), uuids)
        used = use(samples, state, held, resolved=self._resolved)
        self._resolved = used.pids_seen
        now = self._clock()
        self.usage = self.usage.next(held_uses(state, held, used, samples), now)
        self.last_hour = self.last_hour.next(gpu_readings(samples, uuids, state.gpus.by_uuid), now)
