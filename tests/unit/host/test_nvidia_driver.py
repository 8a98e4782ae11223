"""The driver without NVML, as the kernel shows it."""

from pathlib import Path

import pytest

from gpuagent.host.nvidia_driver import control_device, module_version

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
