"""One NVML for each node, although the binding has one library for the whole process."""

from typing import Any

import pynvml

from gpuagent.simulation.boxes import Box
from gpuagent.simulation.simulator import Simulator
from simworld.runtime.kernel import kernel


class NodeDriver:
    """The driver of one node: the library that the binding would have loaded there.

    Attributes:
        simulator: has its faults.
    """

    def __init__(self, box: Box) -> None:
        # A simulator takes the binding's place; the library of all nodes takes it back.
        self.simulator = Simulator(box)
        self.library = pynvml.nvmlLib
        pynvml.nvmlLib = LIBRARY


class _Function:
    """One C function, which runs on the node of the process that calls it."""

    restype: Any = None

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 (C's arguments)
        host: Any = kernel().process.host
        return getattr(host.driver.library, self._name)(*arguments)


class _Library:
    """Stands for the loaded library. All boxes of a world have the same functions."""

    def __getattr__(self, name: str) -> _Function:
        return _Function(name)


LIBRARY = _Library()
