"""The amounts a kubelet reports for its node."""

from __future__ import annotations

from dataclasses import dataclass

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from standin.kubelet.connection import Connection
from standin.kubelet.devices import Devices

GRACE_S = 300.0
PERIOD_S = 10.0


class SettableClock:
    """A clock that moves only when a test sets it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds


@dataclass(slots=True, eq=False)
class Endpoint:
    """A registered plugin; without connection it is only known from the checkpoint."""

    path: str
    connection: Connection | None
    options: dp.DevicePluginOptions
    stopped_at: float | None = None


@dataclass(frozen=True, slots=True)
class Amount:
    """One resource in the node's status."""

    capacity: int
    allocatable: int


class NodeStatus:
    """Node status as kubelet writes it: sampled every 10 s, and a key once written never leaves it.

    Attributes:
        current: the amounts as of the last run, regular or requested.
        sampled: the amounts as of the last regular run: what the API server and the scheduler see.
    """

    def __init__(self, started: float) -> None:
        self.current: dict[str, Amount] = {}
        self.sampled: dict[str, Amount] = {}
        self._started = started
        self._last_tick = -1

    def run(self, now: float, devices: Devices, endpoints: dict[str, list[Endpoint]]) -> None:
        """One node-status run: drops plugins whose grace period is over, then counts."""
        for resource in {**devices.healthy, **devices.unhealthy}:
            newest = current(endpoints, resource)
            if newest is None or (newest.stopped_at is not None and now > newest.stopped_at + GRACE_S):
                endpoints.pop(resource, None)
                devices.forget(resource)
                self.current[resource] = Amount(0, 0)
                continue
            healthy = len(devices.healthy.get(resource, ()))
            self.current[resource] = Amount(healthy + len(devices.unhealthy.get(resource, ())), healthy)

    def catch_up(self, now: float, devices: Devices, endpoints: dict[str, list[Endpoint]]) -> None:
        """Do the regular runs that were due; called before every change, so that they see the state of their time."""
        tick = int((now - self._started) // PERIOD_S)
        if tick > self._last_tick:
            self._last_tick = tick
            self.run(self._started + tick * PERIOD_S, devices, endpoints)
            self.sampled = dict(self.current)


def current(endpoints: dict[str, list[Endpoint]], resource: str) -> Endpoint | None:
    """The endpoint kubelet uses: the newest one that is connected, else the newest."""
    known = endpoints.get(resource)
    if not known:
        return None
    return next((one for one in reversed(known) if one.stopped_at is None), known[-1])
