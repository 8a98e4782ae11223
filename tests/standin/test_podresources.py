"""The pod-resources service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from gpuagent._pb import podresources_v1_pb2 as pr
from gpuagent._pb import podresources_v1_pb2_grpc as pr_grpc
from standin.kubelet import podresources
from standin.kubelet.kubelet import Kubelet
from standin.kubelet.podresources import RateLimit
from standin.kubelet.pods import Container, Pod
from standin.waiting import PATIENCE_S
from tests.standin.sample_plugin import CORE, MEM, SamplePlugin, devices

MakeKubelet = Callable[..., Kubelet]
MakePlugin = Callable[..., SamplePlugin]


@contextmanager
def client(kubelet: Kubelet) -> Iterator[grpc.Channel]:
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"unix:{kubelet.pod_resources_socket}", options=options) as channel:
        yield channel


def alpha_list(channel: grpc.Channel) -> pr.ListPodResourcesResponse:
    answer: pr.ListPodResourcesResponse = channel.unary_unary(
        "/v1alpha1.PodResourcesLister/List",
        request_serializer=pr.ListPodResourcesRequest.SerializeToString,
        response_deserializer=pr.ListPodResourcesResponse.FromString,
    )(pr.ListPodResourcesRequest())
    return answer


def held(pods: pr.ListPodResourcesResponse) -> dict[tuple[str, str], list[list[str]]]:
    return {
        (pod.name, container.name): sorted(list(entry.device_ids) for entry in container.devices)
        for pod in pods.pod_resources
        for container in pod.containers
    }


PAIR = Pod(
    "p",
    "ns",
    init_containers=(Container("init", {MEM: 1}), Container("side", {MEM: 1}, restartable=True)),
    containers=(Container("app", {MEM: 2}),),
)


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_one_entry_per_id_without_init_containers(version: str, kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet(version)
    plugin([*devices("a", "b", numa=(0, 1)), *devices("c")])
    assert one.wait(lambda: one.allocatable(MEM) == 3)
    admission = one.admit(PAIR)
    with client(one) as channel:
        stub = pr_grpc.PodResourcesListerStub(channel)
        answer = stub.List(pr.ListPodResourcesRequest())
        assert held(answer) == held(alpha_list(channel))
        (pod,) = answer.pod_resources
        assert [container.name for container in pod.containers] == ["side", "app"]
        assert {entry.resource_name for container in pod.containers for entry in container.devices} == {MEM}
        app = pod.containers[1].devices
        assert all(len(entry.device_ids) == 1 for entry in app)
        # One entry for each NUMA node too.
        count = {"a": 2, "b": 2, "c": 1}
        assert len(app) == sum(count[one] for one in admission.containers["app"].ids[MEM])
        assert stub.Get(pr.GetPodResourcesRequest(pod_name="p", pod_namespace="ns")).pod_resources == pod
        allocatable = stub.GetAllocatableResources(pr.AllocatableResourcesRequest()).devices
        assert sorted(entry.device_ids[0] for entry in allocatable) == ["a", "a", "b", "b", "c"]


def test_list_collects_and_get_does_not(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    plugin(devices("a", "b"))
    assert one.wait(lambda: one.allocatable(MEM) == 2)
    ended = Pod("ended", containers=(Container("c", {MEM: 1}),))
    one.admit(ended)
    one.admit(Pod("lives", containers=(Container("c", {MEM: 1}),)))
    one.terminate(ended)
    with client(one) as channel:
        stub = pr_grpc.PodResourcesListerStub(channel)
        with pytest.raises(grpc.RpcError, match="pod ended in namespace default not found") as raised:
            stub.Get(pr.GetPodResourcesRequest(pod_name="ended", pod_namespace="default"))
        assert raised.value.code() is grpc.StatusCode.UNKNOWN
        assert len(one.holders(MEM)) == 2
        assert [pod.name for pod in stub.List(pr.ListPodResourcesRequest()).pod_resources] == ["lives"]
        assert len(one.holders(MEM)) == 1


def test_1_18_has_v1alpha1_only_and_one_entry_per_resource(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet("1.18")
    plugin(devices("a", "b"))
    assert one.wait(lambda: one.allocatable(MEM) == 2)
    one.admit(Pod("p", containers=(Container("c", {MEM: 2}),)))
    with client(one) as channel:
        stub = pr_grpc.PodResourcesListerStub(channel)
        for call in (
            lambda: stub.List(pr.ListPodResourcesRequest()),
            lambda: stub.Get(pr.GetPodResourcesRequest()),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                call()
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert held(alpha_list(channel)) == {("p", "c"): [["a", "b"]]}


@pytest.mark.parametrize(("version", "text"), [("1.28", "Get method disabled"), ("1.22", "unknown method Get")])
def test_get_is_off_in_the_middle_versions(version: str, text: str, kubelet: MakeKubelet) -> None:
    with client(kubelet(version)) as channel, pytest.raises(grpc.RpcError, match=text):
        pr_grpc.PodResourcesListerStub(channel).Get(pr.GetPodResourcesRequest())


def test_the_other_resource_is_visible_during_allocate(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    mem, core = plugin(devices("a")), plugin(devices("x"), CORE)
    assert one.wait(lambda: one.allocatable(MEM) == one.allocatable(CORE) == 1)
    seen = []
    with client(one) as channel:
        stub = pr_grpc.PodResourcesListerStub(channel)
        for made in (mem, core):
            answer = made.answer

            def look(ids: list[str], answer: Callable = answer) -> object:  # type: ignore[type-arg]
                pod = stub.Get(pr.GetPodResourcesRequest(pod_name="p", pod_namespace="default")).pod_resources
                seen.append([entry.device_ids[0] for entry in pod.containers[0].devices])
                return answer(ids)

            made.answer = look  # type: ignore[assignment]
        assert one.admit(Pod("p", containers=(Container("c", {MEM: 1, CORE: 1}),)))
    assert seen in ([[], ["a"]], [[], ["x"]])


def test_calls_are_limited(kubelet: MakeKubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podresources, "RateLimit", lambda: RateLimit(clock=lambda: 0.0))  # no time passes
    with client(kubelet()) as channel:
        stub = pr_grpc.PodResourcesListerStub(channel)
        calls = [stub.List.future(pr.ListPodResourcesRequest()) for _ in range(60)]
        details = {call.details() for call in calls if call.exception()}
        assert details == {"rejected by rate limit"}


def test_the_bucket_fills_again() -> None:
    now = [0.0]
    limit = RateLimit(clock=lambda: now[0])
    assert [limit.allow() for _ in range(11)] == [True] * 10 + [False]
    now[0] = 0.011
    assert [limit.allow(), limit.allow()] == [True, False]


def test_pods_that_are_admitted_during_a_list_keep_their_devices(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    began, admitted, known, here = threading.Event(), threading.Event(), list[str](), threading.current_thread()

    def active() -> list[str]:
        found = list(known)
        if threading.current_thread() is not here:
            began.set()
            admitted.wait(0.3)  # not set where admissions wait for the list
        return found

    one = kubelet(pods=active)
    plugin(devices("a", "b"))
    assert one.wait(lambda: one.allocatable(MEM) == 2)
    with client(one) as channel:
        call = pr_grpc.PodResourcesListerStub(channel).List.future(pr.ListPodResourcesRequest())
        assert began.wait(PATIENCE_S)
        pods = [Pod(name, containers=(Container("c", {MEM: 1}),)) for name in ("first", "second")]
        known += [pod.uid for pod in pods]
        granted = [one.admit(pod).containers["c"].ids for pod in pods]
        admitted.set()
        call.result()
        found = held(pr_grpc.PodResourcesListerStub(channel).List(pr.ListPodResourcesRequest()))
    assert sorted(ids for by_resource in granted for ids in by_resource[MEM]) == ["a", "b"]
    assert sorted(ids for lists in found.values() for one in lists for ids in one) == ["a", "b"]
