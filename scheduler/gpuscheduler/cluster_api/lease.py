"""Whether the kube-scheduler beside this process leads: it holds the lease under its host name and a random part."""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuscheduler.cluster_api.connection import Connection, NotLeadingError, decoded

log = logging.getLogger(__name__)

READ_S = 2.0
"""Pause between two reads of the lease."""
FRESH_S = 5.0
"""How long a read counts for calls. A process that stood still may be called by a former leader that did so too."""
TRUSTED_S = 15.0
"""How long the last holder counts for writes while the lease cannot be read: as long as a lease lasts."""


class Lease:
    """Reads the lease.

    Args:
        name: namespace/name of the lease.
        host: of this process and the kube-scheduler beside it.
        leading: kept set while a scheduler on `host` holds the lease.

    Attributes:
        term: how often a scheduler on `host` has gained the lease.
    """

    def __init__(
        self,
        name: str,
        host: str,
        leading: asyncio.Event,
    ) -> None:
        self._name = name
        self._host = host
        self._leading = leading
        self._other = ""
        self._tells = True
        """False without a lease, or without the right to read it: then it cannot be known who leads."""
        self._read_at = float("-inf")
        self._runs_out = float("inf")
        self._early = asyncio.Event()
        self._next_read = asyncio.Event()
        self.term = 0

    async def run(self, connection: Connection) -> None:
        """Read the lease from the API server until canceled."""
        namespace, _, name = self._name.partition("/")
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        logged = ""
        while True:
            is_read = self._next_read
            self._next_read = asyncio.Event()
            try:
                await self._read(connection, path)
                logged = ""
            except KubeError as err:
                # The lease is read every few seconds, and may fail in the same way for hours.
                if str(err) != logged:
                    logged = str(err)
                    log.warning("Failed to read the lease", extra={"lease": self._name, "error": logged})
                self._not_read(err)
            is_read.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_S):
                    await self._early.wait()
            self._early.clear()

    async def read_again(self) -> None:
        """Return after a read that began after this call, whether it succeeded or not."""
        is_read = self._next_read
        self._early.set()
        await is_read.wait()

    async def _read(self, connection: Connection, path: str) -> None:
        """Raises KubeError."""
        lease = decoded(await connection.get(path))
        spec = mapping(lease.get("spec"))
        self._take(text(spec.get("holderIdentity")), _seconds_left(spec))

    def _not_read(self, err: KubeError) -> None:
        if time.monotonic() - self._read_at >= TRUSTED_S:
            self._set(leads=False)
        is_final = isinstance(err, ApiError) and not err.passing
        if is_final and not self._leading.is_set():
            self._tells = False
            self._other = ""
            self._runs_out = float("inf")

    def problem(self) -> str:
        """Why a call cannot be answered: another kube-scheduler leads, or it is not certain that this one still does.

        Empty if the lease cannot be read for lack of rights, or does not exist.
        """
        why = self._doubt()
        if why:
            # The answer changes as soon as the lease is read again.
            self._early.set()
        return why

    def write_s(self) -> float:
        """Seconds in which a write has to be sent: until another kube-scheduler may hold the lease.

        Raises NotLeadingError: nothing may be written now.
        """
        why = self.problem()
        if why:
            raise NotLeadingError(why)
        return self._runs_out - time.monotonic()

    def _doubt(self) -> str:
        if not self._tells:
            return ""
        if self._other:
            return f"lease {self._name} is held by {self._other}: calls of its holder alone are answered"
        now = time.monotonic()
        if now - self._read_at >= FRESH_S:
            return f"lease {self._name} was not read for {FRESH_S:.0f} s"
        if not self._leading.is_set():
            # kube-scheduler gives its lease back when it is stopped.
            return f"lease {self._name} is held by no kube-scheduler: calls of its holder alone are answered"
        if now >= self._runs_out:
            return f"lease {self._name} was not renewed in time: another kube-scheduler may hold it by now"
        return ""

    def _take(self, holder: str, seconds_left: float) -> None:
        self._tells = True
        self._read_at = time.monotonic()
        self._runs_out = self._read_at + seconds_left
        # kube-scheduler adds a random part to its host name.
        host, _, _ = holder.rpartition("_")
        leads = host == self._host
        self._other = "" if leads else holder
        self._set(leads=leads)

    def _set(self, *, leads: bool) -> None:
        if leads and not self._leading.is_set():
            log.info("Gained the lease", extra={"lease": self._name})
            self.term += 1
            self._leading.set()
        if self._leading.is_set() and not leads:
            log.info("Lost the lease", extra={"lease": self._name})
            self._leading.clear()


def _seconds_left(spec: Mapping[str, Any]) -> float:
    """Until another kube-scheduler may take the lease. The holder wrote the time by the clock of this machine."""
    written = text(spec.get("renewTime"))
    try:
        renewed = datetime.fromisoformat(written)
    except ValueError:
        return float("inf")
    duration: float = spec.get("leaseDurationSeconds", float("inf"))
    return renewed.timestamp() + duration - time.time()
