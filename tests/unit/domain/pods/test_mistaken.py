"""Requests that Kubernetes accepts and that give a pod no GPU: an Event on the pod says what to write instead."""

import pytest

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import GPU_COUNT, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from tests.unit.domain.builders import CORE, MEM, WHOLE, in_force, pod_json


def mistakes(limits, mode=Mode.SHARE, unit="GiB", **how):
    node = in_force(mode, unit=MemoryUnit.parse(unit)).pods(pod_json("a", {}, limits, **how))
    found = [one for one in node.announcements if one.reason == "GPURequestMistaken"]
    assert all(one.pods == (PodName("ml", "a"),) and one.warning for one in found)
    return [one.message for one in found]


@pytest.mark.parametrize("mode", list(Mode))
def test_the_count_of_a_nodes_gpus_in_limits_gives_no_gpu(mode):
    (text,) = mistakes({GPU_COUNT: 1}, mode)
    assert text.startswith("the pod asks for aliyun.com/gpu-count in its limits, which gives it no GPU")
    assert "Ask for aliyun.com/gpu-mem to share GPUs" in text
    assert "or for aliyun.com/gpu to get whole ones" in text


def test_the_count_beside_memory_points_to_the_label():
    (text,) = mistakes({GPU_COUNT: 2, MEM: 8})
    assert "which changes nothing" in text
    assert "Set the pod label aliyun.com/gpu-count" in text


@pytest.mark.parametrize(
    ("amount", "unit", "words"),
    [
        ("8Gi", "GiB", "is a number of units, each of 1 GiB, and not of bytes: write 8"),
        ("8Gi", "256MiB", "is a number of units, each of 256 MiB, and not of bytes: write 32"),
        ("100Mi", "GiB", "write 1"),
    ],
)
def test_an_amount_of_bytes_is_answered_in_units_of_the_node(amount, unit, words):
    (text,) = mistakes({MEM: amount}, unit=unit)
    assert words in text


@pytest.mark.parametrize("limits", [{}, {MEM: 100_000}, {MEM: 8, CORE: 10}, {WHOLE: 8}, {"example.com/nic": "8Gi"}])
def test_other_requests_are_no_mistake(limits):
    assert mistakes(limits) == []


def test_a_pod_is_told_once_and_not_after_its_end():
    node = in_force(Mode.SHARE).pods(pod_json("a", {GPU_COUNT: 1}))
    node.pods(pod_json("a", {GPU_COUNT: 1}), pod_json("b", {}))
    assert node.announced().count("GPURequestMistaken") == 1
    assert mistakes({GPU_COUNT: 1}, phase="Failed") == []
