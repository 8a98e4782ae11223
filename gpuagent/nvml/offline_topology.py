"""A node's topology read straight from the driver, for `gpuagent topology` where no agent runs."""

import time
from typing import Any

from gpuagent import __version__
from gpuagent.domain import events as ev
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.policy import Policy
from gpuagent.domain.state import State
from gpuagent.domain.status import topology_page as linkreport
from gpuagent.domain.step import step
from gpuagent.nvml.driver_errors import DriverError
from gpuagent.nvml.gpu_reader import discover

__all__ = ["DriverError", "topology_page"]


def topology_page() -> dict[str, Any]:
    """The topology page with every GPU free. Raises DriverError."""
    state, _ = step(State(policy=Policy()), ev.InventoryRead(discover(), time.monotonic()))
    sets = BestSets(state.gpus.topology.mbps)
    sets.work_out()
    return {"version": __version__, "node": "", **linkreport.page(state, sets)}
