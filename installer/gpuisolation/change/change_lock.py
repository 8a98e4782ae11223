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
class Patience:
    """How to wait while containers use the GPUs.

    Attributes:
        wait_s: how long to wait for them; 0 refuses at once.
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
    patience: Patience = field(default_factory=Patience)

    @contextmanager
    def alone(self, *, dry_run: bool = False) -> Iterator[None]:
        """Hold the lock, and first finish the change of an earlier run. A dry run only reports that change.

        Raises:
            RefusedError: another run holds it, or containers use GPUs, so that the earlier change cannot be finished.
        """
        if dry_run:
            if left := journal.pending(self.host):
                log.warning(
                    "Found a change that an earlier run left unfinished; it would be finished first",
                    extra={"what": left.what},
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
        left = journal.pending(self.host)
        if left is None:
            journal.clean(self.files)
        else:
            log.warning(
                "Found a change that an earlier run left unfinished", extra={"what": left.what, "begun": left.begun + 1}
            )
            if not left.nearly_done:
                self.idle(f"to finish the {left.what}")
            journal.run(self.host, self.files, left)
            log.info("Finished the change of the earlier run", extra={"what": left.what})
        self.clean_originals()

    def clean_originals(self) -> None:
        """Remove copies of files that no layer replaces any more."""
        record = layer.recorded(self.host)
        used = {state.source for state in record.originals.values()} if record else set()
        for name in self.host.names(ORIGINALS):
            if f"{ORIGINALS}/{name}" not in used:
                self.files.unlink(self.host.at(f"{ORIGINALS}/{name}", follow=False))

    def blocking(self) -> tuple[User, ...]:
        """The users of GPUs that prevent a change of the layer now."""
        return gpu_users.blocking(gpu_users.find(self.host), self.patience.ignore)

    def idle(self, why: str) -> None:
        """Wait until no container uses a GPU.

        Raises:
            RefusedError: one does, and the time to wait is over. The text lists them all.
        """
        deadline = self.patience.clock() + self.patience.wait_s
        while found := self.blocking():
            if self.patience.clock() >= deadline:
                who = "\n".join(f"  {user}" for user in found)
                raise RefusedError(
                    f"containers use the GPUs, no moment {why}:\n{who}\n"
                    "Cordon and drain the node, or wait for them with --wait"
                )
            log.info("Found containers that use the GPUs", extra={"count": len(found), "first": str(found[0])})
            self.patience.sleep(POLL_S)
