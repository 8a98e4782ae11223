"""The health of devices, from the streams of drivers, for the status of pods."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuagent._pb import dra_health_v1alpha1_pb2 as pb
from standin.kubelet.connection import CallError
from standin.kubelet.dra.driver import Driver
from standin.kubelet.dra.periods import Periods

_DEFAULT_S = 30
_WORDS = {pb.HEALTHY: "Healthy", pb.UNHEALTHY: "Unhealthy"}
_Reading = tuple[str, str, int]
"""Health, message, and for how long it counts, in seconds."""


class DeviceHealths:
    """Follows every instance of every driver until it is closed. Thread-safe.

    Attributes:
        changed: called without a lock with a driver and its devices that changed, by pool and name. Kubelet does
            nothing when a stream has ended.
    """

    def __init__(self, periods: Periods) -> None:
        self.changed: Callable[[str, set[tuple[str, str]]], None] = lambda *_: None
        self._periods = periods
        self._lock = threading.Lock()
        self._known: dict[str, dict[tuple[str, str], tuple[_Reading, float]]] = {}
        self._threads: list[threading.Thread] = []

    def follow(self, driver: Driver) -> None:
        """Open the instance's stream if it has one, and again after it has ended."""
        if not driver.health_service:
            return
        thread = threading.Thread(target=self._run, args=(driver,), name="standin-health", daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Wait for the streams of closed drivers."""
        for thread in self._threads:
            thread.join()

    def entries(self, drivers: Mapping[str, list[dict[str, Any]]], request: str) -> Iterator[dict[str, str]]:
        """One entry for each resource id of a claim's devices: kubelet shows the first device of an id."""
        seen = set()
        for driver, devices in drivers.items():
            for one in devices:
                name = next(iter(one["CDIDeviceIDs"]), f"{driver}/{one['PoolName']}/{one['DeviceName']}")
                if name not in seen and (not request or request in one["RequestNames"]):
                    seen.add(name)
                    health, message = self._now(driver, (one["PoolName"], one["DeviceName"]))
                    yield {"resourceID": name, "health": health} | ({"message": message} if message else {})

    def _now(self, driver: str, device: tuple[str, str]) -> tuple[str, str]:
        with self._lock:
            (health, message, lasts_s), at = self._known.get(driver, {}).get(device, (("Unknown", "", 0), 0.0))
        return (health, message) if time.monotonic() <= at + lasts_s else ("Unknown", "")

    def _run(self, driver: Driver) -> None:
        # The messages of all versions are the same.
        method = f"/{driver.health_service}/NodeWatchResources"
        while not driver.closed.is_set():
            try:
                for message in driver.stream(method, pb.NodeWatchResourcesRequest(), pb.NodeWatchResourcesResponse):
                    self._take(driver.name, message)
            except CallError:
                pass  # It ended.
            with self._lock:
                self._known.pop(driver.name, None)
            driver.closed.wait(self._periods.health)

    def _take(self, driver: str, message: pb.NodeWatchResourcesResponse) -> None:
        now, changed = time.monotonic(), set()
        with self._lock:
            known = self._known.setdefault(driver, {})
            for one in message.devices:
                device = one.device.pool_name, one.device.device_name
                lasts_s = one.health_check_timeout_seconds or _DEFAULT_S
                reading = (_WORDS.get(one.health, "Unknown"), one.message, lasts_s)
                if device not in known or known[device][0] != reading:
                    changed.add(device)
                known[device] = (reading, now)
        if changed:
            self.changed(driver, changed)
