"""Looks after one control daemon: finds it, starts it, asks it, stops it. Each call is one short step."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuagent.host.mps_client import MpsError, NoDaemonError, UntrustedError, daemon_pid
from gpuagent.isolation.mps.daemon import MpsDaemon
from gpuagent.isolation.mps.daemon_state import MpsPolicy, MpsState
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)


class DaemonWatch:
    """One control daemon, and what is known of it. For one thread at a time; any thread may read `state`.

    Args:
        daemon: the control daemon.
        policy: when it is looked after, started and stopped.
        clock: monotonic seconds.
        has_daemon: it has answered already.
    """

    def __init__(
        self, daemon: MpsDaemon, policy: MpsPolicy, clock: Callable[[], float], *, has_daemon: bool = False
    ) -> None:
        self.daemon = daemon
        state = MpsState.begun(clock())
        self.state = state.with_daemon() if has_daemon else state
        self._policy = policy
        self._clock = clock
        self._delays = Backoff(policy.first_retry_s, policy.most_retry_s)

    @property
    def pid(self) -> int | None:
        """PID of the daemon; None if it is not known, or of another PID namespace."""
        return daemon_pid(self.daemon.pipe_dir) if self.state.has_daemon else None

    def keep(self, pipe_dirs: Iterable[Path]) -> None:
        """Find the daemon or start it, and see whether it answers.

        Args:
            pipe_dirs: where another program may run one, for people.
        """
        if not self.state.has_daemon and self.daemon.is_there():
            self.state = self.state.with_daemon()
        if self.state.has_daemon:
            self.ask()
        elif self._policy.starts:
            self._start()
        else:
            self.state = self.state.missing(pipe_dirs, self._policy)

    def ask(self) -> None:
        """Make a round trip to the daemon."""
        try:
            self.daemon.control.alive()
        except NoDaemonError as err:
            is_untrusted = isinstance(err, UntrustedError)
            self._lose(str(err) if is_untrusted else f"{err}: it died")
        except MpsError as err:
            pid = daemon_pid(self.daemon.pipe_dir)
            self.state = self.state.silent(str(err), pid, self._clock(), self._policy)
        else:
            if self.state.is_steady(self._clock(), self._policy):
                self._delays.reset()
            self.state = self.state.serving(self._policy)

    def release(self, unneeded_since: float) -> None:
        """Stop the agent's own daemon, as no container needs MPS: after `release_s`, and only without clients."""
        early_s = unneeded_since + self._policy.release_s - self._clock()
        if early_s > 0:
            self.state = self.state.not_needed(early_s, self._policy)
            return
        self.state = self.state.not_needed(self._policy.every_s, self._policy)
        try:
            runs = self.daemon.started_one and not self.daemon.quit()
        except MpsError as err:
            log.warning("Failed to end the MPS control daemon", extra={"error": str(err)})
            return
        self.state = self.state.released(runs=runs)

    def restart(self, reason: str, *, kill: bool) -> bool:
        """End the daemon, whose server hangs, so that it is started again; whether it has ended.

        Args:
            reason: for people.
            kill: although programs may use it.
        """
        try:
            self.daemon.end(kill=kill)
        except MpsError as err:
            log.warning("Failed to end the MPS control daemon", extra={"error": str(err)})
            return False
        self._lose(reason)
        return True

    def fail(self, reason: str) -> None:
        """Note that it cannot be looked after now."""
        self.state = self.state.unable(reason, self._policy)

    def await_owner(self) -> bool:
        """Whether the owner of a daemon that has ended still has time to bring it back."""
        awaits = self._policy.starts and self.state.start_in_s(self._clock()) > 0
        if awaits:
            self.state = self.state.start_awaited(self._clock(), self._policy)
        return awaits

    def _lose(self, reason: str) -> None:
        """Report the daemon's end. The next turns look for another daemon, and start one after a pause."""
        extra = {"pipe_dir": str(self.daemon.pipe_dir), "reason": reason, "started_here": self.daemon.is_ours}
        log.error("Lost the MPS control daemon", extra=extra)
        delay_s = self._delays.next_s()
        is_adopted = not self.daemon.in_own_directory
        self.state = self.state.lost(reason, self._clock(), delay_s, self._policy, adopted=is_adopted)

    def _start(self) -> None:
        """Start a daemon, if its time has come."""
        if self.state.start_in_s(self._clock()) > 0:
            self.state = self.state.start_awaited(self._clock(), self._policy)
            return
        try:
            self.daemon.start()
        except MpsError as err:
            delay_s = self._delays.next_s()
            self.state = self.state.start_failed(str(err), self._clock(), delay_s, self._policy)
            log.warning("Failed to start MPS", extra={"pipe_dir": str(self.daemon.pipe_dir), "reason": str(err)})
            return
        self.state = self.state.started(self._clock(), self._policy)
