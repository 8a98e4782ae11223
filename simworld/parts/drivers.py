"""One NVML for each node, although the binding has one library for the whole process."""

from pathlib import Path
from typing import Any

import pynvml

from gpuagent.simulation.boxes import Box
from gpuagent.simulation.simulator import CgroupSource, Simulator
from simworld.runtime.kernel import kernel


class NodeDriver:
    """The driver of one node.

    Args:
        box: its GPUs.
        cgroup_root: where the node's cgroups are, if the driver knows cgroups.

    Attributes:
        simulator: has its faults.
        nvml: the library that the binding would have loaded on that node.
    """

    def __init__(self, box: Box, cgroup_root: Path) -> None:
        # No process of a simulated node is one of this machine's.
        self.simulator = Simulator(box, CgroupSource(cgroup_root, proc=cgroup_root))
        # The simulator has put its own library into the binding, as if this node were the only one.
        self.nvml = pynvml.nvmlLib
        pynvml.nvmlLib = NVML_OF_ALL_NODES


class _Function:
    """One C function, which runs on the node of the process that calls it."""

    restype: Any = None

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 (C's arguments)
        host: Any = kernel().process.host
        function = getattr(host.driver.nvml, self._name)
        return function(*arguments)


class _NvmlOfAllNodes:
    """Stands for the loaded library. All boxes of a world have the same functions."""

    def __getattr__(self, name: str) -> _Function:
        return _Function(name)


NVML_OF_ALL_NODES = _NvmlOfAllNodes()
