"""The driver's sockets, as kubelet uses them."""

import os
import queue
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from gpuagent._pb import dra_health_v1alpha1_pb2 as health
from gpuagent._pb import dra_v1_pb2 as pb
from gpuagent._pb import pluginregistration_v1_pb2 as reg
from gpuagent._pb import pluginregistration_v1_pb2_grpc as reg_grpc
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.kubelet.dra import plugin as module
from gpuagent.kubelet.dra.health_servicer import HealthServicer
from gpuagent.kubelet.dra.plugin import DraPlugin
from gpuagent.kubelet.dra.servicer import HEALTH_SERVICES, SERVICES, DraServicer
from standin.waiting import PATIENCE_S

GPU = ClaimedGpu(
    request="gpu", pool="n", device="gpu-a", share_id="s", uuid="GPU-a", memory_mib=1024, cores=0, whole=False
)


class Preparing:
    """Prepares every claim but those named ``refused`` and ``odd``."""

    def __init__(self):
        self.unprepared = []

    def prepare(self, uid, namespace, name, _wanted, _until, _together):
        if name == "refused":
            raise Refusal(Reason.ISOLATION, "the layer is not ready")
        if name == "odd":
            raise KeyError("x")
        gpus = (replace(GPU, device="gpus-2"), replace(GPU, device="gpus-2", uuid="GPU-b")) if name == "set" else (GPU,)
        claim = PreparedClaim(uid=uid, namespace=namespace, name=name, layer="none", gpus=gpus)
        return claim, {(one.request, one.device): (f"k={uid}",) for one in gpus}

    def unprepare(self, uid):
        self.unprepared.append(uid)


class Meter:
    def __init__(self):
        self.refusals = []

    def timer(self, method, resource):
        return lambda seconds: None

    def refused(self, method, resource, reason):
        self.refusals.append(reason)


@pytest.fixture
def directory():
    """A path of a socket may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ga-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def served(directory):
    preparing, meter, notified = Preparing(), Meter(), []
    plugin = DraPlugin(directory, DraServicer(preparing, HealthServicer("n"), meter), notified.append, print)
    plugin.start()
    yield preparing, meter, notified, directory
    plugin.stop()
    assert not [*directory.rglob("*.sock")]


def info(directory):
    (path,) = (directory / "plugins_registry").iterdir()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stub = reg_grpc.RegistrationStub(channel)
        found = stub.GetInfo(reg.InfoRequest(), timeout=PATIENCE_S)
        stub.NotifyRegistrationStatus(reg.RegistrationStatus(plugin_registered=True), timeout=PATIENCE_S)
        stub.NotifyRegistrationStatus(reg.RegistrationStatus(error="no such version"), timeout=PATIENCE_S)
    return found


def call(directory, method, request, answer, service=SERVICES[0]):
    with grpc.insecure_channel(f"unix:{info(directory).endpoint}") as channel:
        stub = channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return stub(request, timeout=PATIENCE_S)


def test_kubelet_finds_the_driver_and_says_whether_it_takes_it(served):
    *_, notified, directory = served
    found = info(directory)
    assert (found.type, found.name) == ("DRAPlugin", "gpu.gpuagent.io")
    claims = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert list(found.supported_versions) == [*claims, "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
    assert notified == [None, "no such version"]


@pytest.mark.parametrize("service", SERVICES)
def test_each_claim_has_an_answer_of_its_own(served, service):
    _, meter, _, directory = served
    claims = [pb.Claim(uid=f"u-{name}", namespace="default", name=name) for name in ("good", "set", "refused", "odd")]
    request = pb.NodePrepareResourcesRequest(claims=claims)
    answer = call(directory, "NodePrepareResources", request, pb.NodePrepareResourcesResponse, service).claims
    (device,) = answer["u-good"].devices
    assert (device.pool_name, device.device_name, device.share_id) == ("n", "gpu-a", "s")
    assert (list(device.request_names), list(device.cdi_device_ids)) == (
        ["gpu"],
        ["gpu.gpuagent.io/claim=u-good-gpu-a", "k=u-good"],
    )
    assert [device.device_name for device in answer["u-set"].devices] == ["gpus-2"]
    assert (answer["u-good"].error, answer["u-refused"].error) == ("", "the layer is not ready")
    assert answer["u-odd"].error == "the agent failed: KeyError; its log has more"
    assert meter.refusals == [Reason.ISOLATION, Reason.INTERNAL]


def test_unprepare_has_an_entry_for_each_claim(served):
    preparing, *_, directory = served
    request = pb.NodeUnprepareResourcesRequest(claims=[pb.Claim(uid=f"u-{n}") for n in range(2)])
    answer = call(directory, "NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse)
    assert {uid: entry.error for uid, entry in answer.claims.items()} == {"u-0": "", "u-1": ""}
    assert preparing.unprepared == ["u-0", "u-1"]


def test_two_agents_serve_side_by_side_and_what_a_killed_one_left_goes(directory):
    first, second = (
        DraPlugin(directory, DraServicer(Preparing(), HealthServicer("n"), Meter()), print, print) for _ in range(2)
    )
    first.start()
    second.start()
    registry = directory / "plugins_registry"
    assert len([*registry.iterdir()]) == 2
    first.stop()
    assert len([*registry.iterdir()]) == 1
    second.stop()


def test_the_older_of_two_agents_leaves_what_both_would_write_to_the_newer(directory):
    told = queue.Queue()
    first, second = (
        DraPlugin(directory, DraServicer(Preparing(), HealthServicer("n"), Meter()), print, told.put) for _ in range(2)
    )
    first.start()
    (path,) = (directory / "plugins_registry").iterdir()
    os.utime(path, (0, 0))  # times of files are those of the last tick, which may be the same for both
    second.start()
    assert told.get(timeout=PATIENCE_S) is True
    second.stop()
    assert told.get(timeout=PATIENCE_S) is False
    first.stop()
    assert told.empty()


def test_a_call_in_progress_is_answered_when_the_agent_ends(directory, monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", PATIENCE_S)
    entered, release = threading.Event(), threading.Event()

    class Slow(Preparing):
        def unprepare(self, uid):
            entered.set()
            assert release.wait(PATIENCE_S)

    plugin = DraPlugin(directory, DraServicer(Slow(), HealthServicer("n"), Meter()), print, print)
    plugin.start()
    request = pb.NodeUnprepareResourcesRequest(claims=[pb.Claim(uid="u")])
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(call, directory, "NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse)
        assert entered.wait(PATIENCE_S)
        ended = pool.submit(plugin.stop)
        with pytest.raises(TimeoutError):
            ended.result(0.3)
        release.set()
        assert answer.result(PATIENCE_S).claims["u"].error == ""
        ended.result(PATIENCE_S)


@pytest.mark.parametrize("service", HEALTH_SERVICES)
def test_streams_end_with_the_agent(directory, service):
    plugin = DraPlugin(directory, DraServicer(Preparing(), HealthServicer("n"), Meter()), print, print)
    plugin.start()
    with grpc.insecure_channel(f"unix:{info(directory).endpoint}") as channel:
        watch = channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=health.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health.NodeWatchResourcesResponse.FromString,
        )
        stream = watch(health.NodeWatchResourcesRequest())
        next(stream)
        plugin.stop()
        assert [*stream] == []
        assert stream.code() is grpc.StatusCode.OK
