"""The simulated drivers that the tests of the NVML edge use, too."""

from dataclasses import replace

import pytest

from gpuagent.simulation.memory_accounting import BackendName
from gpuagent.simulation.simulator import install
from tests.unit.nvml.conftest import make_box, only_what_hangs_is_late, simulate, watch
from tests.unit.simulation.cgroup_folder_tree import CgroupFolderTree

__all__ = ["make_box", "only_what_hangs_is_late", "simulate", "watch"]


@pytest.fixture
def cgroups(tmp_path):
    return CgroupFolderTree(tmp_path)


@pytest.fixture
def simulate_limits(make_box, cgroups):
    """Put a box with two GPUs and a driver of 615 in place of the driver; its cgroups are `cgroups`."""
    made = []

    def make(backend, **gpu):
        box = replace(make_box(2, **gpu), driver_version="615.71.09", memory_limits=BackendName(backend))
        made.append(install(box, cgroups.source))
        return made[-1]

    yield make
    for simulator in reversed(made):
        simulator.close()
