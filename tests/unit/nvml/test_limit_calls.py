"""Memory limits of cgroups through the binding: what is passed to NVML, and what its answers mean."""

from pathlib import Path

import pynvml
import pytest

from gpuagent.nvml.binding.limit_calls import NO_LIMIT, LimitCalls, LimitRefusal, MemoryLimits, refusal
from gpuagent.nvml.driver_errors import ODD, CallError

POD = Path("/sys/fs/cgroup/kubepods/podé")


@pytest.fixture
def nvml(simulate, make_box):
    simulate(make_box(2))
    nvml = LimitCalls()
    with nvml.session():
        yield nvml


def test_a_gpu_is_named_by_its_uuid(nvml, make_box):
    handle = nvml.handle_of(make_box(2).gpus[1].uuid)
    assert (handle.index, handle.address) == (1, nvml.handle(1).address)
    with pytest.raises(CallError) as err:
        nvml.handle_of("GPU-none")
    assert refusal(err.value) is LimitRefusal.NOT_FOUND


def test_a_limit_is_passed_on_as_it_is(nvml, monkeypatch):
    calls = []

    def take(gpu, limits):
        calls.append((gpu, limits.nameSpace, limits.softLimit, limits.hardLimit))

    monkeypatch.setattr(pynvml, "nvmlDeviceSetMemoryLimits_v1", take)
    gpu = nvml.handle(0)
    nvml.set_memory_limits(gpu, POD, 0, NO_LIMIT)
    assert calls == [(gpu.pointer, "/sys/fs/cgroup/kubepods/podé", 0, 2**64 - 1)]


def test_limits_are_read_back(nvml, monkeypatch):
    def answer(_gpu, limits):
        limits.softLimit, limits.hardLimit, limits.currentUsed = 1 << 30, NO_LIMIT, 3

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryLimits_v1", answer)
    assert nvml.memory_limits(nvml.handle(0), POD) == MemoryLimits(soft=1 << 30, hard=NO_LIMIT, used=3)


def test_not_supported_is_no_limit_on_reads(nvml, monkeypatch):
    def refuse(_gpu, _limits):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for function in ("nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"):
        monkeypatch.setattr(pynvml, function, refuse)
    gpu = nvml.handle(0)
    assert nvml.memory_limits(gpu, POD) is None
    with pytest.raises(CallError) as err:
        nvml.set_memory_limits(gpu, POD, 0, 1)
    assert refusal(err.value) is LimitRefusal.NOT_SUPPORTED


@pytest.mark.parametrize("call", ["set", "get"])
def test_other_errors_are_told_apart(call, nvml, monkeypatch):
    def refuse(_gpu, _limits):
        raise pynvml.NVMLError(code)

    for function in ("nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"):
        monkeypatch.setattr(pynvml, function, refuse)
    gpu = nvml.handle(0)
    for code, kind in (
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, LimitRefusal.INVALID_LIMIT),
        (pynvml.NVML_ERROR_NO_PERMISSION, LimitRefusal.NO_PERMISSION),
        (pynvml.NVML_ERROR_NOT_FOUND, LimitRefusal.NOT_FOUND),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, LimitRefusal.FUNCTION_NOT_FOUND),
        (pynvml.NVML_ERROR_GPU_IS_LOST, LimitRefusal.OTHER),
        (pynvml.NVML_ERROR_UNKNOWN, LimitRefusal.OTHER),
    ):
        with pytest.raises(CallError) as err:
            nvml.set_memory_limits(gpu, POD, 0, 1) if call == "set" else nvml.memory_limits(gpu, POD)
        assert refusal(err.value) is kind
    assert refusal(CallError("nvmlDeviceGetUUID", ODD, "odd")) is LimitRefusal.OTHER


def test_an_old_driver_has_no_such_function(nvml):
    with pytest.raises(CallError) as err:
        nvml.set_memory_limits(nvml.handle(0), POD, 0, 1)
    assert refusal(err.value) is LimitRefusal.FUNCTION_NOT_FOUND
