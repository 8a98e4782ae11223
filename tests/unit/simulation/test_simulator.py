"""The simulated NVML seen through the real binding, and faults from another process."""

import ctypes
import inspect
import json
import re
import socket
import subprocess
import sys
import threading

import pynvml
import pytest

from gpuagent.simulation.simulator import FAULTS, FaultError, inject, install
from standin.waiting import PATIENCE_S


@pytest.fixture
def nvml(simulate):
    simulator = simulate("dgx-a100")
    pynvml.nvmlInit()
    return simulator


def test_what_the_binding_reads(nvml):
    assert pynvml.nvmlSystemGetDriverVersion() == pynvml.nvmlSystemGetNVMLVersion() == "580.95.05"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13000
    assert pynvml.nvmlDeviceGetCount() == 8
    gpu = pynvml.nvmlDeviceGetHandleByIndex(3)
    uuid = pynvml.nvmlDeviceGetUUID(gpu)
    for same in (
        pynvml.nvmlDeviceGetHandleByUUID(uuid),
        pynvml.nvmlDeviceGetHandleByPciBusId("00000000:4E:00.0"),
        pynvml.nvmlDeviceGetHandleByPciBusId("0000:4e:00.0"),
    ):
        assert ctypes.addressof(same.contents) == ctypes.addressof(gpu.contents)
    assert pynvml.nvmlDeviceGetName(gpu) == "NVIDIA A100-SXM4-80GB"
    assert pynvml.nvmlDeviceGetIndex(gpu) == pynvml.nvmlDeviceGetMinorNumber(gpu) == 3
    pci = pynvml.nvmlDeviceGetPciInfo(gpu)
    assert (pci.busId, pci.busIdLegacy, pci.bus) == ("00000000:4E:00.0", "0000:4E:00.0", 0x4E)
    v1, v2 = pynvml.nvmlDeviceGetMemoryInfo(gpu), pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2)
    assert v1.total == v2.total == 81920 << 20
    assert v1.used == v2.reserved == 869 << 20
    assert v1.free == v2.free
    assert pynvml.nvmlDeviceGetCudaComputeCapability(gpu) == (8, 0)
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
    assert pynvml.nvmlDeviceGetNumaNodeId(gpu) == 1
    assert pynvml.nvmlDeviceGetComputeMode(gpu) == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert pynvml.nvmlDeviceGetPersistenceMode(gpu) == 1
    assert pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 0
    assert 20 < pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU) < 90
    assert 20 < pynvml.nvmlDeviceGetTemperatureV(gpu, pynvml.NVML_TEMPERATURE_GPU) < 90
    assert 10_000 < pynvml.nvmlDeviceGetPowerUsage(gpu) < 400_000


def test_errors_are_the_bindings_own(nvml):
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(8)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-none")
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(pynvml.nvmlDeviceGetHandleByIndex(0))
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0), version=1)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(pynvml.c_nvmlDevice_t())
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_an_absent_driver_gives_the_true_error_class(simulate):
    simulator = simulate("t4")
    for error, kind in (
        ("LIBRARY_NOT_FOUND", pynvml.NVMLError_LibraryNotFound),
        ("DRIVER_NOT_LOADED", pynvml.NVMLError_DriverNotLoaded),
    ):
        simulator.driver(False, error)
        with pytest.raises(kind):
            pynvml.nvmlInit()
    simulator.driver(True)
    pynvml.nvmlInit()


def test_a_former_library_comes_back(simulate):
    simulate("t4")
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 1
    with install(simulate("dgx2").box):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 16


def test_events(nvml):
    events = pynvml.nvmlEventSetCreate()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetSupportedEventTypes(gpu) & pynvml.nvmlEventTypeXidCriticalError
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypePState, events)
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 1)
    assert nvml.xid(0, 79) == 0, "nobody listens to GPU 0"
    assert nvml.double_bit_ecc(1) == 0, "nor to ECC errors"
    assert nvml.xid(1, 79) == 1
    got = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert ctypes.addressof(got.device.contents) == ctypes.addressof(gpu.contents)
    assert (got.eventType, got.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 79)
    nvml.lose(0)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 1)
    nvml.lose(1)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait_v2(events, 1000)
    pynvml.nvmlEventSetFree(events)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlEventSetWait_v2(events, 1)


def test_an_event_for_any_waiter_goes_to_a_waiter_of_another_gpu(nvml):
    sets = []
    for index in (1, 2):
        sets.append(pynvml.nvmlEventSetCreate())
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, sets[-1])
    assert nvml.xid(1, 79, any_waiter=True) == 1
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(sets[0], 1)
    got = pynvml.nvmlEventSetWait_v2(sets[1], 1000)
    first = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert ctypes.addressof(got.device.contents) != ctypes.addressof(first.contents)
    assert pynvml.nvmlDeviceGetUUID(got.device) == nvml.gpus[1].spec.uuid
    pynvml.nvmlEventSetFree(sets[1])
    assert nvml.xid(1, 79, any_waiter=True) == 1, "without another waiter its own gets it"
    assert pynvml.nvmlEventSetWait_v2(sets[0], 1000).eventData == 79


def test_a_gpu_that_is_lost_silently_fails_calls_and_no_wait(nvml):
    events, gpu = pynvml.nvmlEventSetCreate(), pynvml.nvmlDeviceGetHandleByIndex(1)
    pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, events)
    nvml.lose(1, silent=True)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 1)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetMemoryInfo(gpu)
    nvml.lose(1)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait_v2(events, 1000)


def test_a_hanging_call_goes_on_after_unhang(nvml):
    nvml.hang("nvmlDeviceGetName", 2)
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (1, 2)]
    assert pynvml.nvmlDeviceGetName(gpus[0])
    done = threading.Event()
    thread = threading.Thread(target=lambda: (pynvml.nvmlDeviceGetName(gpus[1]), done.set()))
    thread.start()
    assert not done.wait(0.05)
    nvml.unhang("nvmlDeviceGetName", 2)
    assert done.wait(PATIENCE_S)
    thread.join()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({}, "the field fault is missing; faults are xid, ecc, lose"),
        ({"fault": "melt"}, "there is no fault 'melt'; faults are xid"),
        ({"fault": ["xid"]}, "there is no fault ['xid']"),
        ({"fault": "xid"}, "fault xid needs gpu and code"),
        ({"fault": "lose"}, "fault lose needs gpu"),
        ({"fault": "lose", "gpu": 0, "why": 1}, "fault lose has no field why; it has gpu, silent"),
        ({"fault": "lose", "gpu": 0, "self": 1}, "fault lose has no field self; it has gpu"),
        ({"fault": "lose", "gpu": 8}, "there is no GPU 8 in box dgx-a100"),
        ({"fault": "lose", "gpu": True}, "fault lose: gpu is an index, a UUID or null, not True"),
        ({"fault": "lose", "gpu": [0]}, "fault lose: gpu is an index, a UUID or null, not [0]"),
        ({"fault": "xid", "gpu": 0, "code": "79"}, "fault xid: code is a number, not '79'"),
        ({"fault": "xid", "gpu": 0, "code": True}, "fault xid: code is a number, not True"),
        ({"fault": "xid", "gpu": 0, "code": 2**70}, "fault xid: code is a number from 0 to 2147483647, not 11805"),
        ({"fault": "busy", "gpu": 0, "percent": 101}, "fault busy: percent is a number from 0 to 100, not 101"),
        ({"fault": "process", "gpu": 0, "pid": -1}, "fault process: pid is a number from 0 to 2147483647, not -1"),
        ({"fault": "mig", "gpu": 0, "enabled": 1}, "fault mig: enabled is true or false, not 1"),
        (
            {"fault": "xid", "gpu": 0, "code": 79, "any_waiter": 1},
            "fault xid: any_waiter is true or false, not 1",
        ),
        ({"fault": "lose", "gpu": 0, "silent": "yes"}, "fault lose: silent is true or false, not 'yes'"),
        ({"fault": "nvlink", "gpu": 0, "link": 12, "up": False}, "GPU 0 (NVIDIA A100-SXM4-80GB) has no NVLink 12"),
        ({"fault": "nvlink", "gpu": 0, "link": -1, "up": False}, "link is a number from 0 to 2147483647, not -1"),
        ({"fault": "nvlink", "gpu": 0, "link": "3", "up": False}, "fault nvlink: link is a number, not '3'"),
        ({"fault": "nvlink", "gpu": 0, "link": 3}, "fault nvlink needs up"),
        ({"fault": "fabric", "gpu": 0, "ready": False}, "GPU 0 (NVIDIA A100-SXM4-80GB) has no NVLink fabric"),
        ({"fault": "hang", "function": "nvmlFly"}, "has no function 'nvmlFly'"),
        ({"fault": "fail", "function": "nvmlInit", "error": "TIRED"}, "NVML has no error 'TIRED'"),
        ([], "a fault is a JSON object, not []"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(fault, words, nvml, tmp_path):
    nvml.listen(tmp_path / "s")
    with pytest.raises(FaultError) as err:
        inject(tmp_path / "s", fault)
    assert words in str(err.value)


@pytest.mark.parametrize("kind", ["xid", "ecc", *FAULTS])
@pytest.mark.parametrize("value", [None, True, -1, 2**70, 0.5, "\ud800", [], {}])
def test_no_fault_is_answered_in_words_of_python(kind, value, nvml, tmp_path):
    nvml.listen(tmp_path / "s")
    fields = inspect.signature(getattr(nvml, "double_bit_ecc" if kind == "ecc" else kind)).parameters
    for given in ({}, dict.fromkeys(fields, value), {"gpu": 0, "odd": value}):
        try:
            inject(tmp_path / "s", {"fault": kind, **given})
        except FaultError as err:
            assert not re.search(r"argument|<class|\(\)|Error", str(err)), str(err)
    assert inject(tmp_path / "s", {"fault": "unhang"}) == {"ok": True}, "it still answers"


def test_a_gpu_without_mig_cannot_be_switched(simulate):
    with pytest.raises(FaultError, match=r"GPU 0 \(Tesla T4\) cannot do MIG"):
        simulate("t4").mig(0, True)


def test_every_fault_as_data(nvml, tmp_path):
    path = tmp_path / "s"
    nvml.listen(path)
    for fault in (
        {"fault": "lose", "gpu": 1},
        {"fault": "lose", "gpu": 1, "silent": True},
        {"fault": "restore", "gpu": nvml.gpus[1].spec.uuid},
        {"fault": "hang", "function": "nvmlDeviceGetMemoryInfo", "gpu": 3},
        {"fault": "unhang", "function": "nvmlDeviceGetMemoryInfo", "gpu": 3},
        {"fault": "hang", "function": "nvmlDeviceGetUUID"},
        {"fault": "unhang"},
        {"fault": "fail", "function": "nvmlDeviceGetName", "gpu": 0, "error": "UNKNOWN"},
        {"fault": "mig", "gpu": 0, "enabled": True},
        {"fault": "nvlink", "gpu": 2, "link": 3, "up": False},
        {"fault": "driver", "present": False, "error": "LIBRARY_NOT_FOUND"},
    ):
        assert inject(path, fault) == {"ok": True}
    assert nvml.gpus[0].mig
    assert nvml.gpus[2].links_down == {3}
    assert nvml.absent == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert inject(path, {"fault": "driver", "present": True}) == {"ok": True}
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert inject(path, {"fault": "ecc", "gpu": 0}) == {"ok": True, "heard_by": 0}


def test_another_process_injects(nvml, tmp_path):
    nvml.listen(tmp_path / "s")
    code = "import sys, json; from gpuagent.simulation.simulator import inject; inject(sys.argv[1], json.loads(sys.argv[2]))"
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "s", json.dumps({"fault": "lose", "gpu": 0})],
        check=True,
        timeout=PATIENCE_S,
    )
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(0)


def test_a_stale_socket_is_replaced_a_live_one_is_not(nvml, simulate, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with pytest.raises(ConnectionRefusedError):
        inject(path, {"fault": "unhang"})
    nvml.listen(path)
    with pytest.raises(OSError, match="another process listens"):
        simulate("t4").listen(path)
    assert inject(path, {"fault": "unhang"}) == {"ok": True}
    with socket.socket(socket.AF_UNIX) as rude:
        rude.connect(str(path))
    assert inject(path, {"fault": "unhang"}) == {"ok": True}, "a client that hangs up does no harm"
    nvml.close()
    assert not path.exists()
