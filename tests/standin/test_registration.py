"""The three registries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from standin.kubelet.kubelet import Kubelet
from standin.kubelet.node import SettableClock
from standin.kubelet.registration import extended_resource
from tests.standin.sample_plugin import MEM, SamplePlugin, devices

MakeKubelet = Callable[..., Kubelet]
MakePlugin = Callable[..., SamplePlugin]
ALL = pytest.mark.parametrize("version", ["1.18", "1.36", "1.37"])


def up(kubelet: Kubelet, count: int, resource: str = MEM) -> bool:
    return kubelet.wait(lambda: kubelet.allocatable(resource) == count)


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("aliyun.com/gpu-core.percentage", True),
        ("gpu-mem", False),
        ("kubernetes.io/gpu", False),
        ("requests.aliyun.com/gpu", False),
        ("aliyun.com/gpu/mem", False),
        ("aliyun.com/", False),
        ("Aliyun.com/gpu", False),
    ],
)
def test_resource_names(name: str, valid: bool) -> None:
    assert extended_resource(name) is valid


@ALL
def test_registers_and_lists(version: str, kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet(version)
    made = plugin(devices("a", "b", "c"))
    assert up(one, 3)
    (seen,) = one.registrations
    assert (seen.resource, seen.endpoint, seen.version, seen.socket_existed) == (MEM, made.endpoint, "v1beta1", True)
    (received,) = one.lists(MEM)
    assert received.health == dict.fromkeys("abc", "Healthy")
    assert received.size == received.message.ByteSize() == 3 * (13 + 1)
    assert one.streams(MEM) == 1
    assert not one.refused


@ALL
def test_refuses_in_kubelets_words(version: str, kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet(version)
    with pytest.raises(grpc.RpcError) as raised:
        plugin([], register=False).register(version="v1")
    assert raised.value.code() is grpc.StatusCode.UNKNOWN
    assert raised.value.details() == (
        'requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'
    )
    with pytest.raises(grpc.RpcError, match='the ResourceName "gpu" is invalid'):
        plugin([], "gpu")
    one.hooks.refuse = "not supported"
    with pytest.raises(grpc.RpcError, match="not supported"):
        plugin([])
    assert [seen.text[:9] for seen in one.refused] == ["requested", "the Resou", "not suppo"]


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_dials_inside_register(version: str, kubelet: MakeKubelet, root: Path, plugin: MakePlugin) -> None:
    one = kubelet(version, dial_timeout=0.2)
    made = plugin([], register=False)
    made.endpoint = "nobody.sock"
    with pytest.raises(grpc.RpcError, match="failed to dial device plugin: context deadline exceeded"):
        made.register()
    assert one.options(MEM) is None


def test_options_come_from_the_request_in_1_18_and_from_the_call_later(
    kubelet: MakeKubelet, plugin: MakePlugin
) -> None:
    for version, expected in (("1.18", True), ("1.36", False)):
        one = kubelet(version)
        made = plugin([], register=False)
        made.register(options=dp.DevicePluginOptions(pre_start_required=True))
        assert up(one, 0)
        options = one.options(MEM)
        assert options is not None
        assert options.pre_start_required is expected
        one.stop()


def test_options_are_asked_while_register_is_open(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    one.hooks.delay_s = 0.2
    made = plugin(devices("a"))
    assert made.options_asked == 1
    assert up(one, 1)


def test_a_registry_that_never_answers(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    one.hooks.never_answer = True
    made = plugin([], register=False)
    while not one.registrations:  # on a busy machine the deadline may pass before the request arrives
        with pytest.raises(grpc.RpcError) as raised:
            made.register(timeout=0.2)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_1_36_the_dying_stream_kills_the_newcomer(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet("1.36")
    old = plugin(devices("a", "b"))
    assert up(one, 2)
    plugin(devices("a", "b"))
    assert one.wait(lambda: one.streams(MEM) == 2 and len(one.lists(MEM)) == 2)
    old.stop()
    assert one.wait(lambda: one.streams(MEM) == 0)
    assert (one.capacity(MEM), one.allocatable(MEM)) == (2, 0)


def test_1_36_a_failed_registration_hides_the_end_of_the_old_plugin(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet("1.36", dial_timeout=0.1)
    old = plugin(devices("a"))
    assert up(one, 1)
    lost = plugin([], register=False)
    lost.endpoint = "nobody.sock"
    with pytest.raises(grpc.RpcError):
        lost.register()
    old.stop()
    assert one.wait(lambda: one.streams(MEM) == 0)
    assert one.allocatable(MEM) == 1


@pytest.mark.parametrize("version", ["1.18", "1.37"])
def test_an_old_stream_that_ends_leaves_the_newcomer_alone(
    version: str, kubelet: MakeKubelet, plugin: MakePlugin
) -> None:
    one = kubelet(version)
    old = plugin(devices("a", "b"))
    assert up(one, 2)
    new = plugin(devices("a", "b", "c"))
    assert up(one, 3)
    old.stop()
    assert one.wait(lambda: one.streams(MEM) == 1)
    assert one.allocatable(MEM) == 3
    new.stop()
    assert up(one, 0)
    assert one.capacity(MEM) == 3


def test_1_37_promotes_the_old_plugin_when_the_new_one_ends(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet("1.37")
    old, new = plugin(devices("a")), plugin(devices("a"))
    assert one.wait(lambda: one.streams(MEM) == len(one.lists(MEM)) == 2)
    new.stop()
    assert one.wait(lambda: one.streams(MEM) == 1)
    assert one.allocatable(MEM) == 1
    old.stop()
    assert up(one, 0)


def test_1_37_wedges_a_path_that_is_connected(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet("1.37")
    made = plugin(devices("a"), name="same.sock")
    assert up(one, 1)
    for _ in range(2):
        with pytest.raises(grpc.RpcError, match=r"device plugin already connected: .*/same\.sock"):
            made.register()
    made.stop()
    assert one.wait(lambda: one.streams(MEM) == 0)
    assert one.allocatable(MEM) == 1  # Nobody is behind it.
    again = plugin(devices("a"), name="same.sock", register=False)
    with pytest.raises(grpc.RpcError, match="already connected"):
        again.register()
    other = plugin(devices("a", "b"))
    assert up(one, 2)
    other.stop()
    assert one.wait(lambda: one.streams(MEM) == 0)
    assert one.allocatable(MEM) == 2
    again.stop()
    one.restart()
    plugin(devices("a"), name="same.sock")
    assert up(one, 1)


def test_1_37_takes_a_path_again_after_its_end_was_noticed(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet("1.37")
    plugin(devices("a"), name="same.sock").stop()
    assert one.wait(lambda: one.streams(MEM) == 0 and len(one.ended) == 1)
    plugin(devices("a", "b"), name="same.sock")
    assert up(one, 2)


@ALL
def test_amounts_as_plugins_come_and_go(version: str, kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    clock = SettableClock()
    one = kubelet(version, clock=clock)
    made = plugin(None)
    assert one.wait(lambda: one.streams(MEM) == 1)
    assert one.capacity(MEM) is None
    made.send([*devices("a", "b"), *devices("c", health="healthy"), *devices("d", health="")])
    assert up(one, 2)
    assert one.capacity(MEM) == 4
    assert MEM not in one.node_status()
    clock.advance(10)
    assert one.node_status()[MEM].allocatable == 2
    made.send([])
    assert one.wait(lambda: one.capacity(MEM) == 0)
    made.send([*devices("a"), *devices("a", health="Unhealthy")])  # Counted twice, as in kubelet.
    assert one.wait(lambda: one.capacity(MEM) == 2)
    made.send(devices("a", "b"))
    assert up(one, 2)
    made.stop()
    assert up(one, 0)
    clock.advance(300)
    assert one.capacity(MEM) == 2
    clock.advance(1)
    assert one.capacity(MEM) == 0
    assert one.node_status()[MEM].capacity == 2
    clock.advance(10)
    assert one.node_status()[MEM].capacity == 0


def test_a_list_above_4_mib_ends_the_stream(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    made = plugin(devices("a"))
    assert up(one, 1)
    made.send(devices(*(f"{n:048}" for n in range(70_000))))
    assert one.wait(lambda: one.streams(MEM) == 0)
    ((_, _, reason),) = one.ended
    assert reason.startswith("rpc error: code = ResourceExhausted")
    assert one.allocatable(MEM) == 0


def test_streams_and_connections_for_odd_tests(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    made = plugin(devices("a"))
    assert up(one, 1)
    lazy, busy = one.open_stream(MEM, read=False), one.open_stream(MEM)
    assert busy.wait(lambda: len(busy.messages) == 1)
    assert not lazy.messages
    assert (
        one.call(MEM)
        .Allocate(dp.AllocateRequest(container_requests=[dp.ContainerAllocateRequest(devices_ids=["a"])]))
        .container_responses
    )
    lazy.read()
    assert lazy.wait(lambda: len(lazy.messages) == 1)
    assert lazy.quiet(0.05) == 1
    one.close_connection(MEM)
    assert one.wait(lambda: one.streams(MEM) == 0)
    assert up(one, 0)
    made.end_streams()
    assert busy.wait(lambda: busy.ended == "EOF")


def test_lists_arrive_while_register_hangs_elsewhere(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet(dial_timeout=1)
    made = plugin(devices("a"))
    hanging = SamplePlugin(one.plugins_dir, "aliyun.com/gpu", [])
    hanging.endpoint = "nobody.sock"

    def register() -> None:
        with pytest.raises(grpc.RpcError):
            hanging.register()

    thread = threading.Thread(target=register)
    thread.start()
    made.send(devices("a", "b"))
    assert up(one, 2)
    one.stop()
    thread.join()
    hanging.stop()
