"""Questions to kubelet's pod-resources API about pods."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from gpuagent._pb import podresources_v1_pb2 as pb
from gpuagent._pb import podresources_v1_pb2_grpc as pb_grpc
from gpuagent.domain.pods.pod import PodName
from gpuagent.kubelet.pod_resources import RETRY_DEADLINE_S, PodResources
from standin.waiting import PATIENCE_S


class Kubelet(pb_grpc.PodResourcesListerServicer):
    """Has the pods `a` and `b`. It answers while `awake` is set."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.lists = 0
        self.got: list[str] = []
        self.awake = threading.Event()
        self.awake.set()

    def Get(self, request, context):
        self.got.append(request.pod_name)
        self.awake.wait(PATIENCE_S)
        if self.version < 34:
            context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        if request.pod_name not in "ab":
            context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace ml not found")
        return pb.GetPodResourcesResponse(pod_resources=pb.PodResources(name=request.pod_name, namespace="ml"))

    def List(self, request, context):
        self.lists += 1
        self.awake.wait(PATIENCE_S)
        return pb.ListPodResourcesResponse(pod_resources=[pb.PodResources(name=name, namespace="ml") for name in "ab"])


@pytest.fixture(params=[30, 36])
def kubelet(request, tmp_path):
    server, kubelet = grpc.server(ThreadPoolExecutor(2)), Kubelet(request.param)
    pb_grpc.add_PodResourcesListerServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{tmp_path}/kubelet.sock")
    server.start()
    kubelet.client = PodResources(tmp_path / "kubelet.sock")
    yield kubelet
    kubelet.awake.set()
    kubelet.client.close()
    server.stop(None)


def asked(kubelet, *names, listing):
    found = kubelet.client.query([PodName("ml", name) for name in names], listing=listing)
    return found if found is None else {pod.name for pod, _ in found}


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_pods_are_asked_for_one_by_one_where_a_list_would_cost_reservations(kubelet, names):
    assert asked(kubelet, *names, listing=False) == (None if kubelet.version < 34 else set(names) & set("ab"))
    assert kubelet.lists == 0


def test_so_many_pods_are_not_asked_for_one_by_one(kubelet):
    assert asked(kubelet, *(f"p{n}" for n in range(100)), listing=False) is None


def test_one_slow_answer_costs_no_further_pod(kubelet, monkeypatch):
    monkeypatch.setattr("gpuagent.kubelet.pod_resources.RETRY_DEADLINE_S", PATIENCE_S)
    kubelet.awake.clear()
    assert asked(kubelet, "a", listing=True) is None
    kubelet.awake.set()
    assert asked(kubelet, "a", listing=True) == {"a"}


def test_a_kubelet_that_stays_silent_is_not_asked_for_each_pod(kubelet, monkeypatch):
    monkeypatch.setattr("gpuagent.kubelet.pod_resources.SILENT_S", PATIENCE_S)
    kubelet.awake.clear()
    assert [asked(kubelet, "a", listing=True) for _ in range(2)] == [None, None]
    kubelet.awake.set()
    assert [asked(kubelet, "b", listing=True) for _ in range(20)] == [None] * 20
    assert "b" not in kubelet.got
    assert kubelet.lists == 0


def test_a_kubelet_that_is_slow_is_waited_for_again_after_the_pause(kubelet, monkeypatch):
    monkeypatch.setattr("gpuagent.kubelet.pod_resources.SILENT_S", 0.0)
    kubelet.awake.clear()
    assert asked(kubelet, "a", listing=True) is None
    monkeypatch.setattr("gpuagent.kubelet.pod_resources.LOOK_DEADLINE_S", PATIENCE_S)
    assert asked(kubelet, "a", listing=True) is None
    threading.Timer(3 * RETRY_DEADLINE_S, kubelet.awake.set).start()
    assert asked(kubelet, "a", listing=True) == {"a"}
