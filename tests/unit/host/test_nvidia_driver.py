"""The driver without NVML, as the kernel shows it."""

from pathlib import Path

import pytest

from gpuagent.host.nvidia_driver import control_device, gpus_on_bus, minor_number, module_version

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 09:55:41 UTC 2025\nGCC version: 13\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (dvs-builder@U22)\n"


@pytest.mark.parametrize(
    ("text", "version"), [(PROPRIETARY, "580.95.05"), (OPEN, "575.57.08"), ("NVRM version: ?\n", ""), (None, "")]
)
def test_the_version_of_the_loaded_module(tmp_path: Path, text: str | None, version: str):
    if text is not None:
        (tmp_path / "driver/nvidia").mkdir(parents=True)
        (tmp_path / "driver/nvidia/version").write_text(text)
    assert module_version(tmp_path) == version


def test_a_control_device_that_can_be_opened_has_no_error(tmp_path: Path):
    (tmp_path / "nvidiactl").touch()
    assert control_device(tmp_path).error == ""


def test_a_control_device_that_is_missing_is_not_forbidden(tmp_path: Path):
    found = control_device(tmp_path)
    assert (found.error, found.forbidden) == ("No such file or directory", False)


def test_a_control_device_that_the_kernel_refuses_is_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuses(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.open", refuses)
    assert control_device(tmp_path).forbidden


def device(sysfs: Path, name: str, *, vendor: str = "0x10de", kind: str = "0x030200", driver: str = "nvidia") -> Path:
    folder = sysfs / "bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        (sysfs / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(sysfs / "bus/pci/drivers" / driver)
    return folder


def test_the_gpus_on_the_bus_are_nvidias_and_physical(tmp_path: Path):
    device(tmp_path, "0000:07:00.0")
    device(tmp_path, "0000:0f:00.0", kind="0x030000", driver="")
    device(tmp_path, "0000:47:00.0", driver="vfio-pci")
    device(tmp_path, "0000:00:1f.0", vendor="0x8086")
    device(tmp_path, "0000:c4:00.0", kind="0x068000")  # an NVSwitch
    (device(tmp_path, "0000:07:00.4") / "physfn").mkdir()
    (tmp_path / "bus/pci/devices/0000:ff:00.0").mkdir()
    found = {"0000:07:00.0": "nvidia", "0000:0f:00.0": "", "0000:47:00.0": "vfio-pci"}
    assert gpus_on_bus(tmp_path) == found
    assert gpus_on_bus(tmp_path / "none") == {}


def test_the_minor_number_of_a_gpu(tmp_path: Path):
    folder = tmp_path / "driver/nvidia/gpus/0000:07:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t Tesla T4\nDevice Minor: \t 3\nGPU Excluded:\t No\n")
    assert minor_number(tmp_path, "0000:07:00.0") == 3
    assert minor_number(tmp_path, "0000:0f:00.0") is None
