"""Admission and container start through a real plugin."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent._pb import podresources_v1_pb2 as pr
from standin.kubelet.kubelet import Kubelet
from standin.kubelet.node import SettableClock
from standin.kubelet.pods import Container, Pod, StartError
from standin.waiting import PATIENCE_S
from tests.standin.sample_plugin import CORE, MEM, SamplePlugin, devices, pod_resources

MakeKubelet = Callable[..., Kubelet]
MakePlugin = Callable[..., SamplePlugin]


def pod(name: str, **limits: int) -> Pod:
    names = {"mem": MEM, "core": CORE}
    return Pod(name, containers=(Container("c", {names[key]: count for key, count in limits.items()}),))


def up(kubelet: Kubelet, count: int, resource: str = MEM) -> None:
    assert kubelet.wait(lambda: kubelet.allocatable(resource) == count)


def test_one_call_per_container_and_resource_in_random_order(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    mem, core = plugin(devices(*"abcdefgh")), plugin(devices(*"stuvwxyz"), CORE)
    up(one, 8)
    up(one, 8, CORE)
    order: list[str] = []
    for made in (mem, core):
        answer = made.answer
        made.answer = lambda ids, made=made, answer=answer: (order.append(made.resource), answer(ids))[1]
    for number in range(4):
        admission = one.admit(pod(str(number), mem=2, core=2))
        assert admission
        granted = admission.containers["c"]
        assert granted.env == {name: ",".join(sorted(ids)) for name, ids in granted.ids.items()}
    assert len(order) == 8
    assert len({tuple(order[at : at + 2]) for at in range(0, 8, 2)}) == 2
    assert sorted(sum(mem.allocated, [])) == list("abcdefgh")
    full = one.admit(pod("late", mem=1))
    assert full.failed == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        "aliyun.com/gpu-mem. Requested: 1, Available: 0, which is unexpected"
    )
    assert (full.reason, full.containers) == ("UnexpectedAdmissionError", {})


def test_first_answer_wins_and_conflicts_are_reported(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    for resource in (MEM, CORE):
        made = plugin(devices(f"{resource}-1"), resource)
        made.answer = lambda ids: dp.AllocateResponse(
            container_responses=[
                dp.ContainerAllocateResponse(
                    envs={"SAME": "1", "KEY": ids[0]},
                    mounts=[dp.Mount(container_path="/m", host_path="/h", read_only=True)],
                    devices=[dp.DeviceSpec(container_path="/dev/a", host_path="/dev/a", permissions="rw")],
                    annotations={"note": "n"},
                    cdi_devices=[dp.CDIDevice(name="vendor.com/gpu=0")],
                )
            ]
        )
        up(one, 1, resource)
    granted = one.admit(pod("p", mem=1, core=1)).containers["c"]
    assert len(granted.conflicts) == 1
    assert granted.conflicts[0].startswith("env KEY:")
    assert (len(granted.mounts), len(granted.devices), granted.cdi) == (1, 1, ("vendor.com/gpu=0",))
    assert granted.annotations == {"note": "n"}


@pytest.mark.parametrize(("version", "prefix"), [("1.18", "Pod "), ("1.36", "Pod was rejected: ")])
def test_an_error_fails_the_pod_and_frees_its_devices(
    version: str, prefix: str, kubelet: MakeKubelet, plugin: MakePlugin
) -> None:
    one = kubelet(version)
    made = plugin(devices("a"))
    up(one, 1)
    answer = made.answer

    def refuse(ids: list[str]) -> dp.AllocateResponse:
        raise ValueError("GPU 0 is unhealthy")

    made.answer = refuse
    assert one.admit(pod("p", mem=1)).failed == (
        f"{prefix}Allocate failed due to rpc error: code = InvalidArgument desc = GPU 0 is unhealthy, which is unexpected"
    )
    made.answer = answer
    assert one.admit(pod("q", mem=1))


def test_an_empty_answer_leaks_until_a_pod_is_collected(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    made = plugin(devices("a", "b", "c"))
    up(one, 3)
    first = pod("first", mem=1)
    assert one.admit(first)
    answer, made.answer = made.answer, lambda ids: dp.AllocateResponse()
    assert "no containers return in allocation response" in one.admit(pod("empty", mem=2)).failed
    made.answer = answer
    assert "Requested: 1, Available: 0" in one.admit(pod("short", mem=1)).failed
    one.terminate(first)
    assert one.admit(pod("whole", mem=3))


def test_a_resource_never_listed_is_admitted_without_device(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    made = plugin(None)
    assert one.wait(lambda: one.streams(MEM) == 1)
    blind = pod("blind", mem=1)
    admission = one.admit(blind)
    assert admission
    assert admission.containers["c"].ids == {}
    made.send([])
    up(one, 0)
    assert "no healthy devices present; cannot allocate unhealthy devices" in one.admit(pod("p", mem=1)).failed
    made.send(devices("a"))
    up(one, 1)
    assert one.start_container(blind, "c").ids == {MEM: {"a"}}  # Allocated at the start, late.


def test_a_resource_whose_plugin_is_long_gone_is_out_of_stock(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    clock = SettableClock()
    one = kubelet(clock=clock)
    made = plugin(devices("a", "b"))
    up(one, 2)
    old = pod("old", mem=1)
    assert one.admit(old)
    clock.advance(10)
    assert one.node_status()[MEM].capacity == 2
    made.stop()
    up(one, 0)
    clock.advance(311)
    with pytest.raises(StartError, match="endpoint not found in cache for a registered resource"):
        one.start_container(old, "c")
    # Known by the old pod's devices only; once they are free, the zero in node status decides.
    assert "cannot allocate unregistered device" in one.admit(pod("held", mem=1)).failed
    one.terminate(old)
    assert one.admit(pod("frees", mem=1)).reason == "UnexpectedAdmissionError"
    late = one.admit(pod("late", mem=1))
    assert late.reason == "OutOfaliyun.com/gpu-mem"
    assert late.failed == (
        "Pod was rejected: Node didn't have enough resource: aliyun.com/gpu-mem, requested: 1, used: 0, capacity: 0"
    )


def test_init_containers_hand_devices_on_and_sidecars_keep_them(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    made = plugin(devices(*"abcdef"), get_preferred_allocation_available=True)
    up(one, 6)
    admission = one.admit(
        Pod(
            "p",
            init_containers=(
                Container("first", {MEM: 4}),
                Container("side", {MEM: 1}, restartable=True),
                Container("second", {MEM: 3}),
            ),
            containers=(Container("app", {MEM: 2}), Container("more", {MEM: 2})),
        )
    )
    ids = {name: granted.ids[MEM] for name, granted in admission.containers.items()}
    assert ids["side"] < ids["first"]
    assert ids["second"] == ids["first"] - ids["side"]
    assert ids["app"] < ids["second"]
    assert (ids["second"] - ids["app"]) < ids["more"]
    assert not ids["more"] & (ids["app"] | ids["side"])
    # Asked for the first container and for the one device of the last that the pool lacked.
    assert [asked.allocation_size for asked in made.asked] == [4, 2]
    assert list(made.asked[1].must_include_deviceIDs) == list(ids["second"] - ids["app"])
    assert len(made.allocated) == 5


@pytest.mark.parametrize(
    ("preferred", "check"),
    [
        ("cd", lambda ids: ids == set("cd")),
        ("cz", lambda ids: "c" in ids and "z" not in ids and len(ids) == 2),
        ("abc", lambda ids: ids < set("abc") and len(ids) == 2),
        ("", lambda ids: len(ids) == 2),
    ],
)
def test_the_preferred_set_is_cut_filled_and_obeyed(
    preferred: str, check: Callable[[frozenset[str]], bool], kubelet: MakeKubelet, plugin: MakePlugin
) -> None:
    one = kubelet()
    made = plugin(devices(*"abcdef"), get_preferred_allocation_available=True)
    made.prefer = lambda request: list(preferred)
    up(one, 6)
    assert check(one.admit(pod("p", mem=2)).containers["c"].ids[MEM])
    assert sorted(made.asked[0].available_deviceIDs) == list("abcdef")


def test_a_preference_may_veto(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    made = plugin(devices("a"), get_preferred_allocation_available=True)

    def veto(request: dp.ContainerPreferredAllocationRequest) -> list[str]:
        raise ValueError("no single GPU has 1 free")

    made.prefer = veto
    up(one, 1)
    assert one.admit(pod("p", mem=1)).failed == (
        "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: "
        "rpc error: code = InvalidArgument desc = no single GPU has 1 free, which is unexpected"
    )


def test_1_18_asks_for_no_preference(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet("1.18")
    made = plugin(devices("a"), get_preferred_allocation_available=True)
    up(one, 1)
    assert one.admit(pod("p", mem=1))
    assert not made.asked


def test_alignment_offers_aligned_devices_only(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    made = plugin([*devices(*"abc", numa=(0,)), *devices(*"xy", numa=(1,))], get_preferred_allocation_available=True)
    up(one, 5)
    assert one.admit(pod("p", mem=2), numa=[0]).containers["c"].ids[MEM] < set("abc")
    assert sorted(made.asked[0].available_deviceIDs) == list("abc")
    one.admit(pod("q", mem=2), numa=[0])
    assert len(made.asked[1].must_include_deviceIDs) == 1  # The aligned one is taken before the call.


@pytest.mark.parametrize(("version", "crashes"), [("1.18", 0), ("1.36", 1), ("1.37", 1)])
def test_a_device_that_vanishes_during_allocate_crashes_kubelet(
    version: str, crashes: int, kubelet: MakeKubelet, plugin: MakePlugin
) -> None:
    one = kubelet(version)
    made = plugin(devices("a"))
    up(one, 1)
    answer = made.answer

    def drop(ids: list[str]) -> dp.AllocateResponse:
        made.send([])
        assert one.wait(lambda: one.capacity(MEM) == 0)
        return answer(ids)

    made.answer = drop
    one.admit(pod("p", mem=1))
    assert len(one.crashes) == crashes
    if crashes:
        assert one.crashes == [
            "kubelet would have crashed: aliyun.com/gpu-mem a vanished from the list during Allocate"
        ]


def test_unhealthy_during_allocate_is_safe(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    made = plugin(devices("a"))
    up(one, 1)
    answer = made.answer

    def faults(ids: list[str]) -> dp.AllocateResponse:
        made.send(devices("a", health="Unhealthy"))
        assert one.wait(lambda: one.allocatable(MEM) == 0)
        return answer(ids)

    made.answer = faults
    assert one.admit(pod("p", mem=1))
    assert not one.crashes


def test_pre_start_is_tried_again_and_the_pod_lives(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet()
    made = plugin(devices("a", "b"), pre_start_required=True)
    up(one, 2)
    seen: list[list[str]] = []

    def twice(ids: list[str]) -> None:
        seen.append(ids)
        if len(seen) < 3:
            raise ValueError("not yet")

    made.pre_start = twice
    mine = pod("p", mem=1)
    granted = one.admit(mine).containers["c"]
    for _ in range(2):
        with pytest.raises(StartError, match="PreStartContainer rpc failed with err: rpc error: .* desc = not yet"):
            one.start_container(mine, "c")
    assert one.start_container(mine, mine.containers[0]) == granted
    assert {frozenset(ids) for ids in seen} == {granted.ids[MEM]}


def test_pre_start_has_a_deadline(kubelet: MakeKubelet, plugin: MakePlugin) -> None:
    one = kubelet(pre_start_timeout=0.1)
    made = plugin(devices("a"), pre_start_required=True)
    up(one, 1)
    release = threading.Event()
    made.pre_start = lambda ids: (release.wait(PATIENCE_S), None)[1]
    mine = pod("p", mem=1)
    assert one.admit(mine)
    with pytest.raises(StartError, match="code = DeadlineExceeded"):
        one.start_container(mine, "c")
    release.set()


@pytest.mark.parametrize("double", [True, False])
def test_listing_pods_during_allocate_may_hand_ids_out_twice(
    double: bool, kubelet: MakeKubelet, plugin: MakePlugin
) -> None:
    one = kubelet(double_allocation=double)
    made = plugin(devices("a", "b"))
    up(one, 2)
    ended = pod("ended", mem=1)
    one.admit(ended)
    answer = made.answer

    def listed(ids: list[str]) -> dp.AllocateResponse:
        made.answer = answer
        one.terminate(ended)
        with pod_resources(one) as stub:
            stub.List(pr.ListPodResourcesRequest())
        return answer(ids)

    made.answer = listed
    assert one.admit(pod("p", mem=1))
    assert bool(one.admit(pod("q", mem=2))) is double
    assert max(len(pods) for pods in one.holders(MEM).values()) == (2 if double else 1)
