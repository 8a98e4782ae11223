"""Makes the driver's calls one at a time in a thread of their own, so that one that hangs blocks nothing else."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from gpuagent.host.limits_client import LimitDriverError
from gpuagent.nvml.binding.calls import Pending

T = TypeVar("T")

CALL_S = 4.0
"""How long a caller waits. Less than the client's deadline, so that the client gets the sentence."""


class HangsError(LimitDriverError):
    """A call does not return."""


class DriverThread:
    """Runs functions that call the driver.

    Args:
        pending: the driver's call in progress; None between two calls.
        call_s: how long `run` waits.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        pending: Callable[[], Pending | None],
        *,
        call_s: float = CALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pending = pending
        self._call_s = call_s
        self._clock = clock
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        # A daemon: a call that hangs in the driver cannot be ended, and must not keep the process.
        threading.Thread(target=self._work, name="memory-limits", daemon=True).start()

    def run(self, function: Callable[[], T]) -> T:
        """Return what `function` returns or raises.

        Raises:
            HangsError: the driver is busy with a call that hangs, and `function` will not be run; or it is the one that
                hangs.
        """
        # No caller waits for a call that another has waited for.
        self._check_pending(self._call_s)
        future: Future[T] = Future()
        self._jobs.put((future, function))
        try:
            return future.result(self._call_s)
        except TimeoutError:
            # If it has not begun, it must not take effect after its caller was told that it failed.
            future.cancel()
        self._check_pending(self._call_s / 2)
        raise HangsError(f"the driver is busy: no answer to earlier calls for {self._call_s:g} s; ask again")

    def _check_pending(self, least_s: float) -> None:
        """Raise HangsError if the call in progress began that long ago."""
        pending = self._pending()
        lasts_s = self._clock() - pending.since if pending else 0.0
        if pending and lasts_s >= least_s:
            raise HangsError(
                f"the NVIDIA driver does not answer: {pending} has not returned for {lasts_s:.1f} s; see NVRM lines in "
                "`dmesg` on the node, and reboot it if the call never returns"
            )

    def _work(self) -> None:
        while True:
            future, function = self._jobs.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as err:  # noqa: BLE001 (the waiting caller receives it)
                future.set_exception(err)
            else:
                future.set_result(result)
