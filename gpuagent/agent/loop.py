"""The loop: the only place where the agent's state changes."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from gpuagent.agent.effects import Effects
from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.state import State
from gpuagent.domain.step import deadline, step

log = logging.getLogger(__name__)

BEAT_S = 5.0
"""Longest pause of the loop."""
LOOK_AGAIN_S = 0.02
"""Its shortest pause, while an Allocate in progress delays the removal of draining units."""
DRIVER_PATIENCE_S = 5.0
"""How long an isolation driver may take to report for the first time."""

EventQueue = queue.SimpleQueue[ev.Event | None]
"""Events for the loop. Any thread may put one. None ends the loop."""


class Loop:
    """Owns the state: takes one event after another, and has `Effects` follow each new state.

    Attributes:
        state: the current state; any thread may read it.
        beat_at: when the last event was taken, in monotonic seconds.
    """

    def __init__(
        self,
        state: State,
        events: EventQueue,
        count_allocates: Callable[[], ev.AllocatesSeen],
        effects: Effects,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = state
        self._events = events
        self._count_allocates = count_allocates
        self._effects = effects
        self._clock = clock
        self._began = clock()
        self.beat_at = self._began
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the events that are in the queue now."""
        self._events.put(None)
        self._thread.join(1.0)

    def _run(self) -> None:
        self._effects.begin(self.state)
        while True:
            event = self._next()
            if event is None:
                return
            self.beat_at = self._clock()
            try:
                self._take(event)
            except Exception:
                # One event that fails must not end the loop: kubelet would get no list any more.
                log.exception("Failed to take an event", extra={"event_type": type(event).__name__})

    def _next(self) -> ev.Event | None:
        """The next event, or the loop's own beat when none came in time."""
        try:
            return self._events.get(timeout=self._pause_s())
        except queue.Empty:
            # Draining units wait for a fresh count of the calls, also if nothing else happens.
            return self._silent_driver() or self._count_allocates()

    def _pause_s(self) -> float:
        due = deadline(self.state)
        if due is None:
            return BEAT_S
        left_s = due - self._clock()
        return min(BEAT_S, max(LOOK_AGAIN_S, left_s))

    def _silent_driver(self) -> ev.LayerSeen | None:
        """Report an isolation driver that has not reported in time as one that does not work."""
        silent = self.state.isolation.unreported
        now = self._clock()
        if not silent or now - self._began < DRIVER_PATIENCE_S:
            return None
        text = f"it has said nothing for {DRIVER_PATIENCE_S:g} s; look at the agent's log"
        return ev.LayerSeen(Layer(driver=min(silent), installed=False, problem=text), now)

    def _take(self, event: ev.Event) -> None:
        before = self.state
        # Device lists go by the time at which kubelet can receive a change, not by the time of the change.
        now = self._clock()
        counted = before
        announced_before = tuple[Announcement, ...]()
        awaits_calls = before.advertised.draining or before.resizes.growing
        if awaits_calls and not isinstance(event, ev.AllocatesSeen):
            # A unit leaves a list only after a fresh count of the Allocate calls in progress.
            allocates = replace(self._count_allocates(), at=now)
            counted, announced_before = step(before, allocates)
        after, announced = step(counted, replace(event, at=now))
        self.state = after
        self._effects.follow(before, after, event, (*announced_before, *announced))
