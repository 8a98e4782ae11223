"""Supported combinations by the documents: systems, drivers, container runtimes, GPU families."""

import re
from dataclasses import dataclass

from gpuagent.host.cgpu_proc import Version

# ACK's page on the component that shares GPUs, June 2026
DRIVER_SINCE = "418.87.01"
DOCKER_SINCE = "19.03.5"
CONTAINERD_SINCE = "1.4.3"
SYSTEMS = {"alinux": ("2", "3"), "alios": ("2", "3"), "centos": ("7.6", "7.7", "7.9"), "ubuntu": ("22.04",)}
SYSTEMS_TEXT = "Alibaba Cloud Linux 2 or 3, CentOS 7.6, 7.7 or 7.9, Ubuntu 22.04"
FAMILIES = "PTVAH"
FAMILIES_TEXT = "P, T, V, A or H series"
# NVIDIA's page on memory partitioning (CUDA 13.4), and the sources of its container toolkit
LIMITS_DRIVER_SINCE = "615"
LIMITS_HOOK_SINCE = "1.20.1"
_BEFORE_VOLTA = re.compile(r"\b(?:tesla|quadro|nvidia)?\s*[PMK]\d+|\bgtx (?:9|10)\d\d|\btitan x", re.IGNORECASE)
"""Kepler, Maxwell and Pascal by name."""


@dataclass(frozen=True, slots=True)
class Drivers:
    """Drivers that cGPU `first` to `last` works with: branch to its last version, None for all of the branch."""

    first: Version
    last: Version
    branches: dict[int, str | None]


# ACK's cGPU FAQ, March 2026
DRIVERS = (
    Drivers(
        Version(1, 5, 3),
        Version(1, 5, 20),
        dict.fromkeys((460, 470, 510, 515, 525, 535, 550, 560, 565, 570, 575)),
    ),
    Drivers(
        Version(1, 0, 5),
        Version(1, 5, 2),
        {460: None, 470: "470.161.03", 510: "510.108.03", 515: "515.86.01", 525: "525.89.03"},
    ),
    Drivers(Version(0, 8, 13), Version(1, 0, 3), {460: None, 470: "470.161.03"}),
)


def numbers(version: str) -> tuple[int, ...]:
    """``418.87.01`` as numbers, to compare; empty for no version."""
    return tuple(int(part) for part in re.findall(r"\d+", version, re.ASCII))


def at_least(version: str, least: str) -> bool:
    return numbers(version) >= numbers(least)


def drivers_of(version: Version) -> Drivers | None:
    """The row of the matrix for a version of cGPU; None where the documents have none."""
    return next((row for row in DRIVERS if row.first <= version <= row.last), None)


def takes(row: Drivers, driver: str) -> bool:
    """Whether the row has that driver."""
    version = numbers(driver)
    if not version:
        return False
    branch = version[0]
    if branch not in row.branches:
        return False
    last = row.branches[branch]
    return last is None or version <= numbers(last)


def text_of(row: Drivers) -> str:
    """The row's drivers, for people: ``460, 470 up to 470.161.03``."""
    branches = [str(branch) if last is None else f"{branch} up to {last}" for branch, last in row.branches.items()]
    return ", ".join(branches)


def family(model: str) -> str:
    """The letter of a data center GPU's series (``Tesla V100-SXM2-16GB``: V); empty for anything else."""
    if re.search(r"quadro|rtx|geforce|titan", model, re.IGNORECASE):
        return ""
    match = re.search(r"\b([A-Z])B?\d{1,3}[A-Z]?\b", model)
    return match[1] if match else ""


def before_volta(model: str) -> bool:
    """Whether MPS gives this GPU's clients no address space of their own, and no limits."""
    return bool(_BEFORE_VOLTA.search(model))
