"""When the lease counts as held."""

import asyncio
import datetime as dt
import json
from types import SimpleNamespace

import pytest

from gpuscheduler.cluster_api import lease as module
from gpuscheduler.cluster_api.lease import FRESH_S, Lease

NAME = "kube-system/gpu-scheduler"


class Clock(SimpleNamespace):
    """Seconds that a test sets."""

    now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def after_a_read(holder, clock, lasts_s, *pauses_s):
    """What the lease says of calls, each after another pause without a read."""

    class Connection:
        async def get(self, path):
            renewed = dt.datetime.fromtimestamp(clock.now, dt.UTC).isoformat()
            spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": lasts_s}
            return json.dumps({"spec": spec}).encode()

    async def read():
        lease = Lease(Connection(), NAME, "host", asyncio.Event())
        reading = asyncio.create_task(lease.run())
        for _ in range(10):
            await asyncio.sleep(0)
        said = []
        for pause_s in pauses_s:
            clock.now += pause_s
            said.append(lease.problem())
        reading.cancel()
        return said

    return asyncio.run(read())


def test_a_lease_that_was_last_read_long_ago_does_not_count_as_held(clock):
    said = after_a_read("host_1234", clock, 1000, FRESH_S - 0.5, 0.5)
    assert said == ["", f"lease {NAME} was not read for 5 s"]


def test_a_lease_that_was_not_renewed_in_time_does_not_count_as_held(clock):
    said = after_a_read("host_1234", clock, 3, 2.5, 0.5)
    assert said[0] == ""
    assert "was not renewed in time" in said[1]


def test_calls_of_another_holder_are_not_answered(clock):
    assert "is held by other_1234" in after_a_read("other_1234", clock, 15, 0.0)[0]
