"""The stream of the devices' health, as kubelet reads it."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from gpuagent._pb import dra_health_v1alpha1_pb2 as pb
from gpuagent._pb import dra_health_v1alpha1_pb2_grpc as pb_grpc
from gpuagent.domain.dra.device_health import DeviceHealth
from gpuagent.kubelet.dra import health_servicer
from gpuagent.kubelet.dra.health_servicer import MAX_MESSAGE, HealthServicer
from standin.waiting import PATIENCE_S


@pytest.fixture
def served(tmp_path):
    servicer = HealthServicer("n")
    server = grpc.server(ThreadPoolExecutor(2))
    pb_grpc.add_DRAResourceHealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    with grpc.insecure_channel(f"unix:{tmp_path}/s") as channel:
        yield servicer, pb_grpc.DRAResourceHealthStub(channel)
    server.stop(grace=0).wait(PATIENCE_S)


def shown(message):
    return {one.device.device_name: (pb.HealthStatus.Name(one.health), one.message) for one in message.devices}


def test_a_stream_has_all_devices_at_once_and_after_each_change(served):
    servicer, stub = served
    servicer.publish((DeviceHealth("a", True), DeviceHealth("b", None, "it hangs")))
    stream = stub.NodeWatchResources(pb.NodeWatchResourcesRequest(), timeout=PATIENCE_S)
    first = next(stream)
    assert shown(first) == {"a": ("HEALTHY", ""), "b": ("UNKNOWN", "it hangs")}
    assert {one.device.pool_name for one in first.devices} == {"n"}
    servicer.publish((DeviceHealth("a", False, "XID 79"), DeviceHealth("b", True)))
    assert shown(next(stream)) == {"a": ("UNHEALTHY", "XID 79"), "b": ("HEALTHY", "")}


def test_it_repeats_itself_for_kubelet_forgets(served, monkeypatch):
    monkeypatch.setattr(health_servicer, "REPEAT_S", 0.01)
    servicer, stub = served
    servicer.publish((DeviceHealth("a", True),))
    stream = stub.NodeWatchResources(pb.NodeWatchResourcesRequest(), timeout=PATIENCE_S)
    assert [shown(next(stream)) for _ in range(3)] == [{"a": ("HEALTHY", "")}] * 3


def test_a_stream_that_kubelet_ended_makes_room_for_others(served):
    servicer, stub = served
    servicer.publish((DeviceHealth("a", True),))
    for _ in range(5):
        stream = stub.NodeWatchResources(pb.NodeWatchResourcesRequest(), timeout=PATIENCE_S)
        next(stream)
        stream.cancel()


def test_a_message_has_a_limit(served):
    servicer, stub = served
    servicer.publish((DeviceHealth("a", False, "x" * 2000),))
    (device,) = next(stub.NodeWatchResources(pb.NodeWatchResourcesRequest(), timeout=PATIENCE_S)).devices
    assert len(device.message) == MAX_MESSAGE
