"""What the kernel says about NVIDIA's driver, without NVML: its control device, its version, its GPUs."""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

CONTROL_DEVICE = "nvidiactl"
_FORBIDDEN = frozenset({errno.EPERM, errno.EACCES})
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,3})\s*$", re.MULTILINE)
_NVIDIA = "0x10de"
_DISPLAYS = ("0x0300", "0x0302")
"""PCI's vendor, and the classes of GPUs with and without a connector for a screen."""
_VERSION = re.compile(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)*)\s")


@dataclass(frozen=True, slots=True)
class ControlDevice:
    """An attempt to open ``/dev/nvidiactl``, which every program that uses a GPU opens first.

    Attributes:
        path: of the device node.
        error: why it cannot be opened, in the kernel's words; empty if it can.
        forbidden: the kernel does not let this container open it, as after the container lost its devices.
    """

    path: str
    error: str = ""
    forbidden: bool = False


def control_device(dev: Path) -> ControlDevice:
    """Try to open the driver's control device."""
    path = dev / CONTROL_DEVICE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as err:
        return ControlDevice(str(path), os.strerror(err.errno or 0), err.errno in _FORBIDDEN)
    os.close(descriptor)
    return ControlDevice(str(path))


def minor_number(proc: Path, pci_name: str) -> int | None:
    """The N of ``/dev/nvidiaN`` of the GPU at a PCI address as the kernel writes it; None if the module has none."""
    try:
        file = proc / "driver/nvidia/gpus" / pci_name / "information"
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = _MINOR.search(text)
    return int(match[1]) if match else None


def gpus_on_bus(sysfs: Path) -> dict[str, str]:
    """PCI address of each NVIDIA GPU on the bus, as the kernel writes it, to its kernel driver; empty for none.

    Virtual functions are parts of GPUs, so they are left out.
    """
    gpus = {}
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        if _is_gpu(device):
            driver = device / "driver"
            gpus[device.name] = driver.resolve().name if driver.exists() else ""
    return gpus


def _is_gpu(device: Path) -> bool:
    if _read(device / "vendor") != _NVIDIA:
        return False
    is_display = _read(device / "class").startswith(_DISPLAYS)
    is_virtual = (device / "physfn").exists()
    return is_display and not is_virtual


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def module_version(proc: Path) -> str:
    """The version of the loaded kernel module, such as ``580.95.05``; empty if none is loaded."""
    try:
        text = (proc / "driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = _VERSION.search(text)
    return match[1] if match else ""
