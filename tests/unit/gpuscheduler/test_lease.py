"""When the lease counts as held."""

import asyncio
import datetime as dt
import json
from types import SimpleNamespace

import pytest

from gpuagent.kube.api.api_errors import ApiError, ApiUnreachable
from gpuscheduler.cluster_api import lease as module
from gpuscheduler.cluster_api.connection import NotLeadingError
from gpuscheduler.cluster_api.lease import FRESH_S, TRUSTED_S, Lease

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


class Api:
    """Answers each read of the lease.

    Attributes:
        error: raised instead; None for an answer.
    """

    def __init__(self, clock, holder, lasts_s):
        self.clock = clock
        self.holder = holder
        self.lasts_s = lasts_s
        self.error = None

    async def get(self, path):
        if self.error:
            raise self.error
        renewed = dt.datetime.fromtimestamp(self.clock.now, dt.UTC).isoformat()
        spec = {"holderIdentity": self.holder, "renewTime": renewed, "leaseDurationSeconds": self.lasts_s}
        return json.dumps({"spec": spec}).encode()


def reading(api, steps):
    """What some steps with a lease return after its first read."""

    async def run():
        lease = Lease(NAME, "host", asyncio.Event())
        task = asyncio.create_task(lease.run(api))
        await lease.read_again()
        said = await steps(lease)
        task.cancel()
        return said

    return asyncio.run(run())


def after_a_read(holder, clock, lasts_s, *pauses_s):
    """What the lease says of calls, each after another pause without a read."""

    async def steps(lease):
        said = []
        for pause_s in pauses_s:
            clock.now += pause_s
            said.append(lease.problem())
        return said

    return reading(Api(clock, holder, lasts_s), steps)


def test_a_lease_that_was_last_read_long_ago_does_not_count_as_held(clock):
    said = after_a_read("host_1234", clock, 1000, FRESH_S - 0.5, 0.5)
    assert said == ["", f"lease {NAME} was not read for 5 s"]


def test_a_lease_that_was_not_renewed_in_time_does_not_count_as_held(clock):
    said = after_a_read("host_1234", clock, 3, 2.5, 0.5)
    assert said[0] == ""
    assert "was not renewed in time" in said[1]


def test_calls_of_another_holder_are_not_answered(clock):
    assert "is held by other_1234" in after_a_read("other_1234", clock, 15, 0.0)[0]


def test_calls_are_not_answered_when_the_holder_has_given_the_lease_back(clock):
    """Another may take it at any moment."""
    assert after_a_read("", clock, 1, 0.0) == [
        f"lease {NAME} is held by no kube-scheduler: calls of its holder alone are answered"
    ]


def test_a_lease_that_could_not_be_read_for_long_does_not_count_as_held(clock):
    """As after a cut network: the next leader has begun long ago."""
    api = Api(clock, "host_1234", 15)

    async def steps(lease):
        api.error = ApiUnreachable("the API server cannot be reached")
        clock.now += TRUSTED_S
        await lease.read_again()
        return lease.problem()

    assert reading(api, steps) == f"lease {NAME} was not read for 5 s"


def test_calls_are_answered_where_nobody_may_read_the_lease(clock):
    api = Api(clock, "host_1234", 15)
    api.error = ApiError(403, "Forbidden", "no")

    async def steps(lease):
        return lease.problem(), lease.write_s()

    assert reading(api, steps) == ("", float("inf"))


def test_writes_have_to_be_sent_before_another_may_hold_the_lease(clock):
    async def steps(lease):
        clock.now += 3
        return lease.write_s()

    assert reading(Api(clock, "host_1234", 15), steps) == pytest.approx(12)


def test_nothing_is_written_after_the_end_of_the_lease(clock):
    async def steps(lease):
        clock.now += 4
        with pytest.raises(NotLeadingError, match="was not renewed in time"):
            lease.write_s()

    reading(Api(clock, "host_1234", 4), steps)
