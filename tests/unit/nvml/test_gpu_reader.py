"""Discovery through the real binding: every GPU in its own error scope, and words for people."""

import importlib.metadata

import pynvml
import pytest

from gpuagent.nvml.driver_errors import DriverError
from gpuagent.nvml.gpu_reader import discover, sysfs_name


@pytest.fixture
def look(tmp_path):
    def look():
        return discover(sysfs=tmp_path / "sys", dev=tmp_path / "dev")

    return look


def test_the_deprecated_distribution_is_absent():
    assert importlib.metadata.version("nvidia-ml-py")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("pynvml")


def test_no_gpu_is_an_ordinary_answer(simulate, make_box, look):
    simulate(make_box(0))
    assert look().gpus == look().unreadable == ()


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMigMode",
        "nvmlDeviceGetNumaNodeId",
    ],
)  # fmt: skip
def test_one_failing_gpu_hides_no_other(function, simulate, make_box, look):
    simulator = simulate(make_box(4))
    before = look()
    simulator.fail(function, "UNKNOWN", gpu=2)
    seen = look()
    assert seen.gpus == tuple(gpu for gpu in before.gpus if gpu.index != 2)
    (bad,) = seen.unreadable
    assert bad.index == 2
    assert bad.reason == f"{function}: Unknown Error; see NVRM lines in `dmesg`"
    simulator.fail(function, None, gpu=2)
    assert look() == before


def test_a_lost_gpu_hides_no_other(simulate, look):
    simulator = simulate("dgx-a100")
    before = look()
    simulator.lose(5)
    seen = look()
    assert [gpu.index for gpu in seen.gpus] == [0, 1, 2, 3, 4, 6, 7]
    assert seen.unreadable[0].index == 5
    assert "GPU is lost; it fell off the bus" in seen.unreadable[0].reason
    simulator.restore(before.gpus[5].uuid)
    assert look() == before


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("LIBRARY_NOT_FOUND", "NVML Shared Library Not Found.*libnvidia-ml.so.1 was not found. Install"),
        ("DRIVER_NOT_LOADED", "Driver Not Loaded.*modprobe"),
        ("LIB_RM_VERSION_MISMATCH", "mismatch.*restart the agent's pod"),
        ("NO_PERMISSION", "Insufficient Permissions.*privileged"),
        ("OPERATING_SYSTEM", "has blocked.*cgroup"),
        ("IN_USE", "simulated error 19.*NVML code 19"),
    ],
)
def test_no_driver_is_reported_in_words(error, words, simulate, make_box, look):
    simulator = simulate(make_box(1))
    simulator.driver(False, error)
    with pytest.raises(DriverError, match=words):
        look()
    simulator.driver(True)
    assert len(look().gpus) == 1


def test_no_library_at_all():
    if pynvml.nvmlLib is not None:
        pytest.skip("a real driver is here")
    try:
        discover()
    except DriverError as err:
        assert "libnvidia-ml.so.1 was not found" in str(err)
    else:
        pytest.skip("a real driver is here")


def test_the_driver_vanishes_while_it_is_read(simulate, make_box, look):
    simulator = simulate(make_box(2))
    simulator.fail("nvmlDeviceGetName", "DRIVER_NOT_LOADED", gpu=1)
    with pytest.raises(DriverError, match="nvmlDeviceGetName: Driver Not Loaded"):
        look()
    simulator.fail("nvmlDeviceGetName", None, gpu=1)
    simulator.fail("nvmlDeviceGetCount", "UNKNOWN")
    with pytest.raises(DriverError, match="nvmlDeviceGetCount: Unknown Error"):
        look()


def test_an_older_driver_says_less(simulate, look):
    simulate("dgx1-p100")
    gpu = look().gpus[0]
    assert (gpu.memory_mib, gpu.reserved_mib, gpu.mig, gpu.numa_node) == (16280, 0, False, None)


def test_what_a_gpu_does_not_support_is_unknown(simulate, make_box, look):
    simulator = simulate(make_box(1, mig=True, numa_node=1))
    for function in ("nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMigMode", "nvmlDeviceGetNumaNodeId"):
        simulator.fail(function, "NOT_SUPPORTED")
    gpu = look().gpus[0]
    assert (gpu.compute_capability, gpu.mig, gpu.numa_node) == (None, False, None)


def test_mig_is_switched(simulate, look):
    simulator = simulate("dgx-a100-mig")
    assert [gpu.index for gpu in look().gpus if gpu.mig] == [7]
    simulator.mig(0, True)
    simulator.mig(7, False)
    assert [gpu.index for gpu in look().gpus if gpu.mig] == [0]


@pytest.mark.parametrize(("text", "node"), [("3\n", 3), ("-1\n", None), ("junk", 1), (None, 1)])
def test_the_kernel_is_asked_first_for_the_numa_node(text, node, simulate, make_box, look, tmp_path):
    simulate(make_box(1, numa_node=1))
    if text is not None:
        folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(text)
    assert look().gpus[0].numa_node == node


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("devices/pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00"),
        ("devices/pci10000:e0/10000:e0:01.0/0000:01:00.0", "pci10000:e0"),
        ("devices/platform/0000:01:00.0", ""),
        (None, ""),
    ],
)
def test_the_kernel_shows_the_pcie_root(path, root, simulate, make_box, look, tmp_path):
    """The name of a device in sysfs is a link to its place below the root complex."""
    simulate(make_box(1))
    if path is not None:
        folder = tmp_path / "sys/bus/pci/devices"
        folder.mkdir(parents=True)
        (tmp_path / "sys" / path).mkdir(parents=True)
        (folder / "0000:01:00.0").symlink_to(tmp_path / "sys" / path)
    assert look().gpus[0].pcie_root == root


def test_what_nvidias_own_driver_for_claims_publishes_is_read(simulate, make_box, look):
    simulate(make_box(1))
    found = look()
    assert (found.gpus[0].brand, found.cuda_version) == ("Nvidia", "13.0")


def test_pci_names_of_the_kernel():
    assert sysfs_name("00000000:0A:00.0") == "0000:0a:00.0"
    assert sysfs_name("00010000:0A:00.0") == "10000:0a:00.0"


def test_device_nodes_are_those_that_exist(simulate, make_box, look, tmp_path):
    simulate(make_box(1))
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "dev" / name).touch()
    assert look().device_nodes == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}
