"""A stream ends where the resource has to register again, because PreStartContainer is needed now."""

import threading

import pytest

from gpuagent.domain.node_state.device_lists import DeviceRange
from gpuagent.domain.sharing.mode import Kind
from gpuagent.kubelet.deviceplugin.device_feed import Feed, encode
from tests.unit.domain.builders import gpu

HEALTHY = (DeviceRange(gpu(0), Kind.MEMORY_SHARE, 2),)
SICK = (DeviceRange(gpu(0), Kind.MEMORY_SHARE, 2, healthy=False),)


@pytest.mark.parametrize("blocks", [(), SICK], ids=["no devices", "unhealthy GPUs"])
def test_a_need_of_prestart_that_comes_while_nothing_is_offered_ends_the_stream(
    blocks: tuple[DeviceRange, ...],
) -> None:
    """Containers on GPUs that are not advertised, because they are held or unhealthy, start again all the same."""
    feed = Feed()
    feed.publish(blocks)
    stream = feed.follow(threading.Event())
    next(stream)
    feed.publish(blocks, verified=True)
    assert feed.verified
    assert next(stream, None) is None


def test_a_need_of_prestart_waits_while_an_allocate_may_be_under_way() -> None:
    """Units that kubelet heard of are on their way out; the stream ends when they are gone."""
    feed = Feed()
    feed.publish(HEALTHY)
    stream = feed.follow(threading.Event())
    next(stream)
    feed.publish(SICK, urgent=True)
    assert next(stream).devices[0].health == "Unhealthy"
    feed.publish(SICK, verified=True)
    assert next(stream).devices[0].health == "Unhealthy"
    feed.publish((), verified=True)
    assert next(stream, None) is None


def test_units_that_leave_for_a_resized_pod_are_unhealthy_and_then_absent():
    leaving = DeviceRange(gpu(0, 4), Kind.MEMORY_CGPU, 4, withheld=frozenset({2, 3}), leaving=frozenset({3}))
    message = encode((leaving,))
    health = {device.ID.rpartition("-")[2]: device.health for device in message.devices}
    assert health == {"0": "Healthy", "1": "Healthy", "3": "Unhealthy"}
