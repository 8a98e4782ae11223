"""Brings objects of the API server to their desired values, each key by itself."""

import enum
import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from gpuagent.kube.api.api_errors import ApiStarting, ApiUnreachable, KubeError
from gpuagent.kube.write.worker import Worker
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

V = TypeVar("V")


class Outcome(enum.Enum):
    """The outcome of an attempt that did not fail."""

    DONE = "done"
    """The object has the desired value, or is gone."""
    OUTDATED = "outdated"
    """The object has changed since the value was computed; the watch brings the next one."""


@dataclass(frozen=True, slots=True)
class Delays:
    """The time between two attempts for one key.

    Attributes:
        backoff: makes the delays after failures.
        pace: makes the delays before another value, against a fight with another writer.
        conflicts: makes the delays after attempts that were outdated: short, or an object that changes often is never
            written.
        recheck_s: seconds after which the same value is attempted again.
        quiet_s: after this long without an attempt, the delays of a key start over.
    """

    backoff: Callable[[], Backoff] = Backoff
    pace: Callable[[], Backoff] = partial(Backoff, 0.2, 0.2)
    conflicts: Callable[[], Backoff] = partial(Backoff, 0.02, 0.5)
    recheck_s: float = math.inf
    quiet_s: float = 60.0


DELAYS = Delays()


@dataclass(slots=True)
class _Item(Generic[V]):
    """One key. Its times are those of ``time.monotonic``.

    Attributes:
        pace: delays after attempts that were done.
        failures: delays after those that failed.
        conflicts: delays after those that were outdated.
        value: the desired value; None after it was withdrawn.
        done: the last attempt for this value was done.
        due: when the next attempt for this value may begin.
        not_before: when an attempt for another value may begin.
        began_at: when the last attempt began.
        failure: why the last attempt failed; "" if it did not.
    """

    pace: Backoff
    failures: Backoff
    conflicts: Backoff
    value: V | None = None
    done: bool = False
    due: float = 0.0
    not_before: float = 0.0
    began_at: float = -math.inf
    failure: str = ""


class KeyedReconciler(Worker, Generic[V]):
    """Level-triggered: stores the desired value of each key, and attempts each until the server has accepted it.

    A subclass is one kind of object, and defines `key`, `attempt` and `describe`. Each instance has one daemon thread,
    as each controller of Kubernetes has its own work queue: a webhook that is slow on ConfigMaps does not delay the
    Node's patch. Within a kind, a refused object delays no other, because each key has its own delays. While the server
    cannot be reached, all keys wait together.

    Args:
        thread_name: of its thread.
        on_problem: receives the reason why a key fails, once for each text, and None when no key fails any longer.
            Any thread may call it; it must not block.
    """

    def __init__(
        self, thread_name: str, delays: Delays, on_problem: Callable[[str | None], None] = lambda _: None
    ) -> None:
        super().__init__(thread_name)
        self._delays = delays
        self._on_problem = on_problem
        self._items: dict[Hashable, _Item[V]] = {}
        self._busy = False
        self._unreachable = delays.backoff()
        self._unreachable_until = 0.0
        self._reported_key: Hashable = None
        self._problem = ""

    @abstractmethod
    def key(self, value: V) -> Hashable:
        """Return the key of a desired value."""

    @abstractmethod
    def attempt(self, value: V) -> Outcome:
        """Bring the object to `value`. Only the thread calls it; it may block and raise."""

    @abstractmethod
    def describe(self, value: V, err: KubeError) -> str:
        """Return what failed, why, and the remedy, in words that are the same for the same cause."""

    def desire(self, values: Iterable[V]) -> None:
        """Replace all desired values; never blocks. Of two with one key the last counts."""
        desired = {self.key(value): value for value in values}
        with self._wake:
            for key, value in desired.items():
                self._desire(key, value)
            for key in self._items.keys() - desired.keys():
                self._withdraw(key)
            self._report()

    def _desire(self, key: Hashable, value: V) -> None:
        item = self._items.get(key)
        if item is None:
            item = _Item(self._delays.pace(), self._delays.backoff(), self._delays.conflicts())
            self._items[key] = item
        if item.value == value:
            return
        item.value = value
        item.done = False
        item.due = item.not_before
        self._wake.notify_all()

    def nudge(self) -> None:
        """End the delay of a server that could not be reached, as another request has reached it; never blocks."""
        with self._wake:
            if self._unreachable_until:
                self._unreachable_until = 0.0
                self._wake.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every desired value is done; False where ``timeout_s`` was too short."""
        with self._wake:
            return self._wake.wait_for(self._is_settled, timeout_s)

    def _is_settled(self) -> bool:
        return not self._busy and all(item.done for item in self._desired())

    @property
    def problem(self) -> str:
        """The reason why a key fails now; "" if none does."""
        return self._problem

    def _desired(self) -> list[_Item[V]]:
        return [item for item in self._items.values() if item.value is not None]

    def _withdraw(self, key: Hashable) -> None:
        """Drop the value now, and its back-off after `quiet_s`."""
        item = self._items[key]
        if item.value is not None:
            item.value = None
            item.failure = ""
            self._wake.notify_all()
        if time.monotonic() - item.began_at > self._delays.quiet_s:
            del self._items[key]

    def _run(self) -> None:
        while (work := self._next()) is not None:
            item, value = work
            result = self._attempt(value)
            with self._wake:
                self._settle(item, value, result)
                self._busy = False
                self._report()
                self._wake.notify_all()

    def _next(self) -> tuple[_Item[V], V] | None:
        """Wait for the next attempt that is due; None when stopped."""
        with self._wake:
            while not self._stopped:
                item = min(self._desired(), key=lambda item: item.due, default=None)
                if item is None or item.value is None or item.due == math.inf:
                    self._wake.wait()
                    continue
                now = time.monotonic()
                wait_s = max(item.due, self._unreachable_until) - now
                if wait_s > 0:
                    self._wake.wait(wait_s)
                    continue
                # After such a pause, another value is no sign of a fight with another writer.
                if now - item.began_at > self._delays.quiet_s:
                    item.pace.reset()
                item.began_at = now
                self._busy = True
                return item, item.value
            return None

    def _attempt(self, value: V) -> Outcome | KubeError:
        try:
            return self.attempt(value)
        except KubeError as err:
            return err
        except Exception as err:  # a bug must not end the thread that serves the other keys
            log.exception("Failed to write for an unexpected reason")
            return KubeError(f"{type(err).__name__}: {err}")

    def _settle(self, item: _Item[V], value: V, result: Outcome | KubeError) -> None:
        failure = self._failure_after(item, value, result)
        _log_change(item.failure, failure)
        was_withdrawn = item.value is None
        item.failure = "" if was_withdrawn else failure
        # Another value may have come during the attempt.
        is_newest = item.value is value
        item.done = result is Outcome.DONE and is_newest
        now = time.monotonic()
        item.not_before = now + self._delay_s(item, result, now)
        must_repeat = isinstance(result, KubeError) or not is_newest
        item.due = item.not_before if must_repeat else now + self._delays.recheck_s

    def _failure_after(self, item: _Item[V], value: V, result: Outcome | KubeError) -> str:
        if isinstance(result, ApiStarting):
            return item.failure  # the next attempts show whether it is one
        if isinstance(result, KubeError):
            return self.describe(value, result)
        return ""

    def _delay_s(self, item: _Item[V], result: Outcome | KubeError, now: float) -> float:
        if isinstance(result, ApiUnreachable):
            # No key is to blame, so all wait together, and none gets a longer delay of its own.
            self._unreachable_until = now + self._unreachable.next_s()
            return 0.0
        if isinstance(result, KubeError):
            return item.failures.next_s()
        self._unreachable.reset()
        item.failures.reset()
        if result is Outcome.OUTDATED:
            return item.conflicts.next_s()
        item.conflicts.reset()
        return item.pace.next_s()

    def _report(self) -> None:
        """Report the same key as long as it fails: another text would be another Event."""
        failing = {key: item.failure for key, item in self._items.items() if item.failure}
        if self._reported_key not in failing:
            self._reported_key = next(iter(failing), None)
        problem = failing.get(self._reported_key, "")
        if problem != self._problem:
            self._problem = problem
            self._on_problem(problem or None)


def _log_change(known: str, failure: str) -> None:
    if failure and failure != known:
        log.debug("Failed to write", extra={"reason": failure})
    elif known and not failure:
        log.info("Wrote after a failure", extra={"reason": known})
