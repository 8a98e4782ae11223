"""One change at a time: the lock, the remains of an earlier run, and the wait until no container uses a GPU."""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpuisolation import layer
from gpuisolation.change import journal
from gpuisolation.errors import RefusedError
from gpuisolation.host import gpu_users
from gpuisolation.host.files import Files
from gpuisolation.host.gpu_users import User
from gpuisolation.host.root import Host
from gpuisolation.layer import STATE

log = logging.getLogger(__name__)

ORIGINALS = f"{STATE}/originals"
POLL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How a change waits for containers that use the GPUs.

    Attributes:
        wait_s: seconds to wait at most; 0 refuses at once.
        ignore: names of processes that may stay (monitors).
    """

    wait_s: float = 0.0
    ignore: Collection[str] = ()
    sleep: Callable[[float], None] = field(default=time.sleep)
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class ChangeLock:
    """The right to change one host."""

    host: Host
    files: Files
    waiting: Waiting = field(default_factory=Waiting)

    @contextmanager
    def alone(self, *, dry_run: bool = False) -> Iterator[None]:
        """Hold the lock, and first finish the change of an earlier run. A dry run only reports that change.

        Raises:
            RefusedError: another run holds it, or containers use GPUs, so that the earlier change cannot be finished.
        """
        if dry_run:
            unfinished = journal.pending(self.host)
            if unfinished:
                log.warning(
                    "Found a change that an earlier run left unfinished; it would be finished first",
                    extra={"what": unfinished.what},
                )
            yield
            return
        self.host.kernel()  # without the host's /proc no process would be found on the GPUs
        path = self.host.at(f"{STATE}/lock", follow=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as err:
                raise RefusedError(f"another run is at work on this node (it holds {path}): wait for its end") from err
            self._finish()
            yield
        finally:
            os.close(number)

    def _finish(self) -> None:
        unfinished = journal.pending(self.host)
        if unfinished is None:
            journal.clean(self.files)
        else:
            log.warning(
                "Found a change that an earlier run left unfinished",
                extra={"what": unfinished.what, "begun": unfinished.begun + 1},
            )
            if not unfinished.nearly_done:
                self.idle(f"to finish the {unfinished.what}")
            journal.run(self.host, self.files, unfinished)
            log.info("Finished the change of the earlier run", extra={"what": unfinished.what})
        self.clean_originals()

    def clean_originals(self) -> None:
        """Remove copies of files that no layer replaces any more."""
        record = layer.recorded(self.host)
        originals = record.originals.values() if record else ()
        used = {original.source for original in originals}
        for name in self.host.names(ORIGINALS):
            path = f"{ORIGINALS}/{name}"
            if path not in used:
                self.files.unlink(self.host.at(path, follow=False))

    def blocking(self) -> tuple[User, ...]:
        """The users of GPUs that prevent a change of the layer now."""
        return gpu_users.blocking(gpu_users.find(self.host), self.waiting.ignore)

    def idle(self, why: str) -> None:
        """Wait until no container uses a GPU.

        Raises:
            RefusedError: one does, and the time to wait is over. The text lists them all.
        """
        deadline = self.waiting.clock() + self.waiting.wait_s
        while users := self.blocking():
            if self.waiting.clock() >= deadline:
                lines = "\n".join(f"  {user}" for user in users)
                raise RefusedError(
                    f"containers use the GPUs, no moment {why}:\n{lines}\n"
                    "Cordon and drain the node, or wait for them with --wait"
                )
            log.info("Found containers that use the GPUs", extra={"count": len(users), "first": str(users[0])})
            self.waiting.sleep(POLL_S)
