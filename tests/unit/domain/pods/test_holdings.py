"""Kubelet's allocations: the owner of each id, and the mode that advertised it."""

import pytest

from gpuagent.domain.pods.holdings import FOREIGN, held_otherwise, holder, located, with_annotated_gpus
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.sharing.mode import Kind, Mode
from tests.unit.domain.builders import CORE, MEM, box, holding, in_force, key, pod_json, unit_ids, uuid

GPUS = {g.uuid: g for g in box(3)}


def modes(held, gpus):
    return dict(located(held, gpus))


@pytest.mark.parametrize("kind", list(Kind))
def test_ids_of_ours_say_their_mode(kind):
    assert modes(holding("p", unit_ids(1, kind, 0, 1)), GPUS) == {uuid(1): kind.mode}


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        ("nvidia.com/gpu", uuid(1)),
        ("nvidia.com/gpu", f"{uuid(1)}::2"),
        ("nvidia.com/gpu.shared", f"{uuid(1)}::0"),
        ("nvidia.com/gpu", "1"),
    ],
)
def test_ids_of_other_plugins_that_name_a_gpu_of_ours_count(resource, device_id):
    assert modes(holding("p", [device_id], resource), GPUS) == {uuid(1): FOREIGN}


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        ("nvidia.com/gpu", "7"),
        ("nvidia.com/gpu", ""),
        ("rdma/hca", "1"),
        ("intel.com/sriov", "0000:3b:02.0"),
        ("nvidia.com/gpu", uuid(7)),
        ("nvidia.com/mig-1g.5gb", "MIG-4cf7a5a4-0000-0000-0000-000000000000"),
        (MEM, f"{key(7)}-ms-0"),
        (MEM, "nonsense"),
    ],
)
def test_what_is_no_gpu_of_ours_does_not_count(resource, device_id):
    assert modes(holding("p", [device_id], resource), GPUS) == {}


# -- the old gpushare plugin: kubelet picked its ids, the annotation names the GPU ----------------------------------

V1, V2 = "ALIYUN_COM_GPU_MEM_IDX", "scheduler.framework.gpushare.allocation"
OLD = holding("old", [f"{uuid(1)}-_-7", f"{uuid(1)}-_-8"])


def pod_with(**annotations: str):
    return parse_pod({"metadata": {"namespace": "default", "name": "old", "annotations": annotations}})


@pytest.mark.parametrize(
    ("annotations", "on"),
    [
        ({V1: "2", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}, {2}),
        ({V1: "2", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}, {2}),
        ({V2: '{"0":{"0":1},"1":{"2":1}}'}, {0, 2}),
        ({V2: '{"0":{"0":2}}', V1: "2"}, {0}),
        ({V2: "{", V1: "2"}, {2}),
        ({}, {0, 1, 2}),
        ({V1: "-1"}, {0, 1, 2}),
        ({V1: "two"}, {0, 1, 2}),
        ({V1: "9"}, {0, 1, 2}),
    ],
)
def test_ids_of_the_old_plugin_are_where_the_annotation_says_or_may_be_anywhere(annotations, on):
    found = modes(with_annotated_gpus(OLD, pod_with(**annotations)), GPUS)
    assert found == dict.fromkeys((uuid(n) for n in on), FOREIGN)


def test_ids_of_the_old_plugin_may_be_anywhere_while_their_pod_is_not_known():
    assert modes(with_annotated_gpus(OLD, None), GPUS).keys() == GPUS.keys()
    one = {uuid(1): GPUS[uuid(1)]}
    assert modes(with_annotated_gpus(OLD, None), one).keys() == one.keys()


def test_an_annotation_says_nothing_of_ids_that_name_their_gpu():
    ours = holding("old", unit_ids(0, Kind.MEMORY_SHARE, 0))
    assert with_annotated_gpus(ours, pod_with(**{V1: "2"})) == ours
    whole = holding("old", [uuid(1)], "nvidia.com/gpu")
    assert with_annotated_gpus(whole, pod_with(**{V1: "2"})) == whole


def test_what_a_pod_of_the_old_plugin_has_is_not_offered_though_its_ids_name_another_gpu():
    seen = pod_json("old", {MEM: 2}, phase="Running")
    seen["metadata"]["annotations"] = {V1: "2"}
    node = in_force(Mode.SHARE, box(3)).pods(seen).holdings(OLD)
    assert node.offer(MEM) == {0: 16, 1: 16}
    assert node.holdings().offer(MEM) == {0: 16, 1: 16, 2: 16}


def test_one_holding_may_be_on_several_gpus():
    ids = unit_ids(0, Kind.MEMORY_SHARE, 0) | unit_ids(2, Kind.MEMORY_SHARE, 5)
    assert modes(holding("p", ids), GPUS) == {uuid(0): Mode.SHARE, uuid(2): Mode.SHARE}


def test_only_holdings_of_other_modes_and_plugins_block():
    ours = holding("ours", unit_ids(0, Kind.MEMORY_CGPU, 0))
    old = holding("old", unit_ids(0, Kind.MEMORY_SHARE, 0))
    core = holding("core", unit_ids(1, Kind.CORE_CORE_MEM, 0), CORE)
    alien = holding("alien", [uuid(1)], "nvidia.com/gpu")
    for exclusive in (True, False):
        blocked = held_otherwise([ours, old, core, alien], GPUS, Mode.CGPU, exclusive=exclusive)
        assert blocked == {uuid(0): [old], uuid(1): [core, alien]}


def test_other_plugins_pods_are_as_they_should_be_where_mode_default_is_left_to_them():
    old = holding("old", unit_ids(0, Kind.MEMORY_SHARE, 0))
    alien = holding("alien", [uuid(1)], "nvidia.com/gpu")
    assert held_otherwise([old, alien], GPUS, Mode.DEFAULT, exclusive=False) == {uuid(0): [old]}
    assert held_otherwise([old, alien], GPUS, Mode.DEFAULT, exclusive=True) == {uuid(0): [old], uuid(1): [alien]}


def test_every_id_is_located_once():
    held = holding("p", unit_ids(0, Kind.MEMORY_SHARE, 0, 1) | unit_ids(1, Kind.MEMORY_SHARE, 5))
    assert sorted(located(held, GPUS)) == [(uuid(0), "share"), (uuid(0), "share"), (uuid(1), "share")]


def test_the_holder_of_ids_is_who_holds_exactly_them_else_the_pod_that_reuses_them():
    ids = unit_ids(0, Kind.MEMORY_SHARE, 0, 1)
    exact = holding("a", ids)
    assert holder(MEM, ids, [holding("b", unit_ids(1, Kind.MEMORY_SHARE, 0)), exact]) == exact.owner
    reuser = holding("a", ids | unit_ids(0, Kind.MEMORY_SHARE, 2))
    assert holder(MEM, ids, [reuser]) == ContainerRef(reuser.owner.pod, "")
    parts = [holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0)), holding("b", unit_ids(0, Kind.MEMORY_SHARE, 1))]
    assert holder(MEM, ids, parts) is None
    assert holder(CORE, ids, [exact]) is None
    assert holder(MEM, ids, []) is None


@pytest.mark.parametrize("device_id", [uuid(0), f"{uuid(0)}::1", f"{uuid(0)}-_-3", "0"])
def test_a_gpu_of_another_plugin_is_not_offered(device_id):
    node = in_force(Mode.SHARE).holdings(holding("p", [device_id], "nvidia.com/gpu")).wait(3)
    assert node.offer(MEM) == {1: 16}
    assert node.wait(1).holdings().offer(MEM) == {0: 16, 1: 16}


def test_units_that_no_container_holds_are_of_none_although_one_pod_has_others():
    ids = unit_ids(0, Kind.MEMORY_SHARE, 0, 1)
    assert holder(MEM, unit_ids(0, Kind.MEMORY_SHARE, 2), [holding("a", ids)]) is None
    assert holder(MEM, unit_ids(0, Kind.MEMORY_SHARE, 1), [holding("a", ids)]) == ContainerRef(
        holding("a", ids).owner.pod, ""
    )
