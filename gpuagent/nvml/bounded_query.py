"""Driver queries in threads of their own: a query that hangs delays no other, and a late answer still counts."""

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from gpuagent.nvml.binding.calls import Pending
from gpuagent.nvml.binding.nvml import Nvml

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class BoundedQuery(Generic[T]):
    """One thread that queries, from now on.

    Args:
        name: of the thread.
        nvml: its facade.
        ask: yields the result so far, each time that it has more; run in the thread, within a session.
        patience_s: how long `wait` waits at most, from now on.
        late: called at the end if a caller gave up waiting.
    """

    def __init__(
        self,
        name: str,
        nvml: Nvml,
        ask: Callable[[], Iterable[T]],
        *,
        patience_s: float,
        late: Callable[[], None],
    ) -> None:
        self.known: T | None = None
        """The result so far; complete when it `ended` without an `error`."""
        self.error: Exception | None = None
        self.ended = False
        self.outdated = False
        """Whether a caller wanted to query again meanwhile."""
        self._nvml = nvml
        self._ask = ask
        self.until = time.monotonic() + patience_s
        """When `wait` gives up, in monotonic seconds."""
        self._late = late
        self._given_up = False
        self._end = threading.Condition()
        # A daemon: a call that hangs in the driver cannot be ended, and must not keep the process.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def pending(self) -> Pending | None:
        """The call that it waits for; None between two calls."""
        return self._nvml.pending

    def wait(self) -> bool:
        """Wait for the end, at most until `patience_s` is over; whether it has ended."""
        with self._end:
            left_s = max(0.0, self.until - time.monotonic())
            self._given_up = not self._end.wait_for(lambda: self.ended, left_s)
        return self.ended

    def _run(self) -> None:
        try:
            with self._nvml.session():
                for known in self._ask():
                    # What came before a call that hangs is of use.
                    self.known = known
        except Exception as err:  # noqa: BLE001 (the waiting caller receives it)
            self.error = err
        with self._end:
            self.ended = True
            self._end.notify_all()
            late = self._given_up
        if late:
            self._late()


class BoundedQueries(Generic[K, T]):
    """Queries by their subject. A query that has not ended is neither repeated nor waited for a second time.

    Args:
        patience_s: how long each is waited for.
        clock: monotonic seconds, for the facades.
        late: called when a query ends after its wait has timed out.
    """

    def __init__(self, *, patience_s: float, clock: Callable[[], float], late: Callable[[], None]) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._late = late
        self._open: dict[K, BoundedQuery[T]] = {}

    def ask(self, about: K, name: str, ask: Callable[[Nvml], Iterable[T]]) -> BoundedQuery[T]:
        """Return the open query about this subject, or start a new one, in a thread of this name."""
        query = self._open.get(about)
        if query is None:
            nvml = Nvml(self._clock)
            query = BoundedQuery(name, nvml, lambda: ask(nvml), patience_s=self._patience_s, late=self._late)
            self._open[about] = query
        elif not query.ended:
            query.outdated = True
        elif query.outdated:
            # Its answer is from before a change that was to be read, so a later look has to query again.
            self._late()
        return query

    def wait(self) -> None:
        """Wait for all; those that have ended by then are closed."""
        # One after another, but each until its own time: the waits do not add up.
        self._open = {about: query for about, query in self._open.items() if not query.wait()}
