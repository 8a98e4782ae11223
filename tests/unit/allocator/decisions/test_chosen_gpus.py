"""A share gets the GPU that a scheduler chose for it."""

import json

import pytest

from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.annotations import CORE_ANNOTATION, MEMORY_ANNOTATION
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Mode
from tests.unit.allocator.decisions.decided_pods import at, decided, kubelet_with, serve
from tests.unit.domain.builders import (
    CORE,
    MEM,
    gpu,
    pod_json,
    uuid,
)
from tests.unit.domain.scheduling.test_decision import v1, v2

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize("annotations", [v1(2, 4), v2({"0": {"2": 4}}), v2({"0": {uuid(2): 4}})])
def test_a_share_gets_the_gpu_that_a_scheduler_chose(annotations):
    kubelet = kubelet_with(pod_json("a", {MEM: 4}, annotations=annotations))
    assert serve(kubelet, "a").env["ALIYUN_COM_GPU_MEM_IDX"] == "2"
    assert at(kubelet, "a") == [2]


def test_the_index_is_the_minor_number():
    gpus = tuple(gpu(n, minor=3 - n) for n in range(4))
    kubelet = kubelet_with(decided("a", 0), gpus=gpus)
    assert [g.index for g in serve(kubelet, "a").gpus] == [3]
    assert at(kubelet, "a") == [0]


def test_every_container_gets_its_own_gpu():
    pod = pod_json("a", {MEM: 4}, {MEM: 4}, {MEM: 2}, annotations=v2({"0": {"3": 4}, "1": {"1": 4}, "2": {"3": 2}}))
    kubelet = kubelet_with(pod)
    for container, size in (("main", 4), ("main-1", 4), ("main-2", 2)):
        serve(kubelet, "a", size, container)
    assert [at(kubelet, "a", c) for c in ("main", "main-1", "main-2")] == [[3], [1], [3]]


def test_a_share_is_spread_over_the_gpus_that_were_chosen():
    pod = pod_json("a", {MEM: 4}, annotations=v2({"0": {"1": 2, "3": 2}}), labels={GPU_COUNT_LABEL: "2"})
    kubelet = kubelet_with(pod)
    assert serve(kubelet, "a").units == 2
    assert at(kubelet, "a") == [1, 3]


@pytest.mark.parametrize("first", [MEM, CORE])
def test_memory_and_compute_go_to_the_chosen_gpu_in_any_order(first):
    both = {MEM: 4, CORE: 30}
    pod = pod_json("a", both, annotations=v2({"0": {"2": 4}}) | v2({"0": {"2": 30}}, CORE_ANNOTATION))
    kubelet = kubelet_with(pod, mode=Mode.CORE_MEM)
    for resource in (first, MEM if first == CORE else CORE):
        serve(kubelet, "a", both[resource], resource=resource)
    assert at(kubelet, "a") == at(kubelet, "a", resource=CORE) == [2]


def test_an_init_container_is_where_the_container_after_it_will_be():
    pod = pod_json("a", {MEM: 4}, annotations=v1(2, 4), init=({MEM: 6},))
    kubelet = kubelet_with(pod)
    serve(kubelet, "a", 6, "init-0")
    assert at(kubelet, "a", "init-0") == [2]


def test_a_sidecar_is_beside_its_pod_where_it_fits():
    pod = pod_json("a", {MEM: 4}, annotations=v1(2, 4), sidecar=({MEM: 6},))
    kubelet = kubelet_with(pod)
    serve(kubelet, "a", 6, "side-0")
    serve(kubelet, "a", 4)
    assert at(kubelet, "a", "side-0") == at(kubelet, "a") == [2]


def test_a_sidecar_takes_nothing_that_was_chosen_for_its_pod():
    pod = pod_json("a", {MEM: 12}, annotations=v1(2, 12), sidecar=({MEM: 6},))
    kubelet = kubelet_with(pod)
    serve(kubelet, "a", 6, "side-0")
    serve(kubelet, "a", 12)
    assert at(kubelet, "a", "side-0") != at(kubelet, "a") == [2]


def test_no_pod_gets_more_than_the_limit_or_anothers_units_by_what_is_written():
    forged = pod_json("thief", {MEM: 4}, annotations=v2({"0": {"0": 16}}))
    kubelet = kubelet_with(forged, decided("a", 0, 16))
    assert serve(kubelet, "thief").units == 4
    assert at(kubelet, "thief") == [1], "GPU 0 is reserved for another pod"
    serve(kubelet, "a", 16)


def test_annotations_of_another_version_do_not_make_a_v1_decision_of_a_v2_one():
    both = {MEMORY_ANNOTATION: json.dumps({"0": {"3": 4}}), **v1(1, 4)}
    kubelet = kubelet_with(pod_json("a", {MEM: 4}, annotations=both))
    serve(kubelet, "a")
    assert at(kubelet, "a") == [3]
    assert an.V1_GPU in both
