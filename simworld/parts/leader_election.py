"""A kube-scheduler's leader election over a Lease, with client-go's usual times."""

import random
from collections.abc import Callable
from datetime import UTC, datetime

from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import kernel
from simworld.runtime.threads import wall_clock
from standin.api.objects import Json
from standin.api.refusal import Refusal

LEASE = ("leases", "kube-system", "gpu-scheduler")
LASTS_S = 15.0
RENEW_WITHIN_S = 10.0
"""A leader that could not renew its lease for so long ends its process."""
RETRY_S = 2.0


class LeaderElection:
    """One candidate, which is a process.

    Args:
        identity: what the lease says of its holder.
        api: has the lease.
        chance: of the pauses.
        reach: called before each request; whether it gets an answer.
    """

    def __init__(self, identity: str, api: SimulatedApi, chance: random.Random, reach: Callable[[], bool]) -> None:
        self.identity = identity
        self._objects = api.objects
        self._chance = chance
        self._reach = reach
        self._seen = ""
        self._seen_at = 0.0

    def acquire(self) -> None:
        """Return when it leads."""
        while not self._renewed():
            kernel().sleep(RETRY_S * (1 + 0.2 * self._chance.random()))

    def keep(self) -> None:
        """Renew the lease, and return when that has failed for too long."""
        renewed_at = kernel().now
        while kernel().now - renewed_at < RENEW_WITHIN_S:
            kernel().sleep(RETRY_S)
            began = kernel().now
            if self._renewed():
                renewed_at = began

    def _renewed(self) -> bool:
        if not self._reach():
            return False
        try:
            stored = self._objects.get(LEASE)
        except Refusal:
            self._objects.create("leases", LEASE[1], {"metadata": {"name": LEASE[2]}, "spec": self._spec()})
            return True
        holder = stored["spec"].get("holderIdentity")
        version = stored["metadata"]["resourceVersion"]
        if version != self._seen:
            self._seen = version
            self._seen_at = kernel().now
        is_anothers = holder not in {self.identity, ""}
        if is_anothers and kernel().now < self._seen_at + LASTS_S:
            return False
        if not self._reach():
            return False
        stored["spec"] = self._spec()
        try:
            # The version that was read is a precondition.
            self._objects.update(LEASE, lambda _: stored)
        except Refusal:
            return False
        return True

    def _spec(self) -> Json:
        now = datetime.fromtimestamp(wall_clock(), UTC).isoformat()
        return {"holderIdentity": self.identity, "leaseDurationSeconds": int(LASTS_S), "renewTime": now}
