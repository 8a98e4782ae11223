"""NVML's answers about links, by the codes of the real library, and faults of links from another process."""

import ctypes

import pynvml
import pytest

from gpuagent.simulation.simulator import inject

OF_A_LINK = (
    pynvml.nvmlDeviceGetNvLinkState,
    pynvml.nvmlDeviceGetNvLinkVersion,
    pynvml.nvmlDeviceGetNvLinkRemoteDeviceType,
    pynvml.nvmlDeviceGetNvLinkRemotePciInfo,
)


@pytest.fixture
def handles(simulate):
    """GPUs of a box through the binding."""

    def of(name):
        simulator = simulate(name)
        pynvml.nvmlInit()
        return simulator, [pynvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in simulator.gpus]

    return of


@pytest.mark.parametrize("query", OF_A_LINK)
def test_a_link_that_a_gpu_does_not_have(query, handles):
    _, gpus = handles("dgx-a100")
    query(gpus[0], 11)
    for link in (12, 35):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            query(gpus[0], link)


@pytest.mark.parametrize("query", OF_A_LINK)
def test_a_gpu_without_nvlink(query, handles):
    _, gpus = handles("t4")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        query(gpus[0], 0)


def test_what_is_not_reported(handles, simulate, make_box):
    simulate(make_box(2))
    pynvml.nvmlInit()
    one, other = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    for ask in (
        lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other),
        lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(one),
        lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(one),
        lambda: pynvml.nvmlDeviceGetGpuFabricInfo(one, ctypes.byref(pynvml.c_nvmlGpuFabricInfo_t())),
        lambda: pynvml.nvmlDeviceGetGpuFabricInfoV(one, ctypes.byref(pynvml.c_nvmlGpuFabricInfo_v2_t())),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            ask()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetTopologyCommonAncestor(one, pynvml.c_nvmlDevice_t())


def test_a_lost_gpu_has_no_neighbours(handles):
    simulator, gpus = handles("pcie-4x-a10")
    simulator.lose(1)
    for one, other in ((0, 1), (1, 0)):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetTopologyCommonAncestor(gpus[one], gpus[other])


def test_a_form_of_the_fabric_that_this_driver_does_not_know(handles):
    _, gpus = handles("hgx-h100")
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetGpuFabricInfoV(gpus[0], ctypes.byref(pynvml.c_nvmlGpuFabricInfo_v3_t()))


def test_faults_of_links_as_data(handles, tmp_path):
    simulator, gpus = handles("hgx-h100")
    simulator.listen(tmp_path / "s")

    def state(gpu):
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(gpus[gpu], ctypes.byref(info))
        return info.state

    assert inject(tmp_path / "s", {"fault": "nvlink", "gpu": 0, "link": 3, "up": False}) == {"ok": True}
    assert [pynvml.nvmlDeviceGetNvLinkState(gpus[0], link) for link in (2, 3)] == [1, 0]
    assert pynvml.nvmlDeviceGetNvLinkState(gpus[1], 3) == 1
    assert inject(tmp_path / "s", {"fault": "nvlink", "gpu": 0, "link": 3, "up": True}) == {"ok": True}
    assert pynvml.nvmlDeviceGetNvLinkState(gpus[0], 3) == 1
    assert inject(tmp_path / "s", {"fault": "fabric", "gpu": 5, "ready": False}) == {"ok": True}
    assert [state(4), state(5)] == [pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS]
    assert inject(tmp_path / "s", {"fault": "fabric", "gpu": simulator.gpus[5].spec.uuid, "ready": True})
    assert state(5) == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
