"""`gpuagent run --dry-run`: print the resources that the agent would advertise, without contact to kubelet."""

import json
import queue
import time
from contextlib import suppress
from dataclasses import replace

from gpuagent.domain import events as ev
from gpuagent.domain.dra.resource_slice import slice_spec
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.node_state.allocations import Holdings
from gpuagent.domain.node_state.isolation_drivers import IsolationDrivers
from gpuagent.domain.node_state.node_object import Node
from gpuagent.domain.sharing.isolation_layers import NONE, Layer
from gpuagent.domain.sharing.mode import DRA_DRIVER, Mode
from gpuagent.domain.state import State
from gpuagent.domain.status import status_page
from gpuagent.domain.step import step
from gpuagent.isolation import drivers
from gpuagent.isolation.interface import Need
from gpuagent.nvml.driver_errors import DriverError
from gpuagent.nvml.gpu_reader import discover
from gpuagent.settings.settings import Settings

LAYER_S = 10.0


def dry_run(settings: Settings) -> int:
    """Print the amounts of every mode on this node's GPUs (or of the forced one); 1 if the driver does not answer."""
    now = time.monotonic()
    try:
        seen = ev.InventoryRead(discover(), now)
    except DriverError as err:
        print(json.dumps({"error": f"NVIDIA driver: {err}"}))
        return 1
    layers = _layers(settings, seen.inventory.gpus)
    modes = [settings.mode] if settings.mode else list(Mode)
    page = {}
    for mode in modes:
        state = State(
            policy=replace(settings.policy, forced_mode=mode),
            node=Node(mode=mode),
            isolation=IsolationDrivers(layers=layers),
            holdings=Holdings(listed=()),
        )
        state, _ = step(state, seen)
        shown = status_page.status(state)
        amounts = {name: view["healthy"] for name, view in shown["resources"].items()}
        devices = slice_spec(state, settings.node_name)
        if devices:
            amounts[DRA_DRIVER] = len(devices["devices"])
        page[str(mode)] = {
            "resources": amounts,
            "problems": [problem["message"] for problem in shown["problems"]],
        }
    gpus = [{key: gpu[key] for key in ("index", "uuid", "model", "memory_mib", "mig")} for gpu in shown["gpus"]]
    print(json.dumps({"gpus": gpus, "memory_unit": str(settings.memory_unit), "modes": page}, indent=2))
    return 0


def _layers(settings: Settings, gpus: tuple[Gpu, ...]) -> dict[str, Layer]:
    """The layers that the isolation drivers report; a driver that the agent would start on demand counts as working."""
    made = drivers.make(settings.isolation_options)
    # The driver that isolates nothing has no layer.
    made = {name: driver for name, driver in made.items() if name != NONE}
    reports: queue.SimpleQueue[Layer] = queue.SimpleQueue()
    layers = {name: Layer(driver=name, installed=False, problem=f"no answer in {LAYER_S:g} s") for name in made}
    waiting = set(made)
    for driver in made.values():
        driver.desire(Need(gpus=gpus, knows_pods=True))
        driver.start(reports.put)
    with suppress(queue.Empty):
        while waiting:
            layer = reports.get(timeout=LAYER_S)
            if layer.standby:
                layer = replace(layer, problem=None)
            layers[layer.driver] = layer
            waiting.discard(layer.driver)
    for driver in made.values():
        driver.stop()
    return layers
