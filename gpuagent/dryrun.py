"""`gpuagent run --dry-run`: what would be advertised, without a word to kubelet."""

import json
import queue
import time
from dataclasses import replace

from gpuagent.config import Settings
from gpuagent.domain import events as ev
from gpuagent.domain import report
from gpuagent.domain.isolation import NONE, Layer
from gpuagent.domain.mode import Mode
from gpuagent.domain.state import State
from gpuagent.domain.step import step
from gpuagent.isolation import drivers
from gpuagent.nvml import DriverError
from gpuagent.nvml.source import discover

LAYER_S = 10.0


def dry_run(settings: Settings) -> int:
    """Print the amounts of every mode on this node's GPUs (or of the forced one); 1 if the driver does not answer."""
    now = time.monotonic()
    try:
        seen = ev.InventoryRead(discover(), now)
    except DriverError as err:
        print(json.dumps({"error": f"NVIDIA driver: {err}"}))
        return 1
    layers = _layers(settings)
    modes = [settings.mode] if settings.mode else list(Mode)
    page = {}
    for mode in modes:
        state = State(
            policy=replace(settings.policy, forced_mode=mode),
            mode=mode,
            layers=layers,
            holdings=(),
        )
        state, _ = step(state, seen)
        shown = report.status(state)
        page[str(mode)] = {
            "resources": {name: view["healthy"] for name, view in shown["resources"].items()},
            "problems": [problem["message"] for problem in shown["problems"]],
        }
    gpus = [{key: gpu[key] for key in ("index", "uuid", "model", "memory_mib", "mig")} for gpu in shown["gpus"]]
    print(json.dumps({"gpus": gpus, "memory_unit": str(settings.memory_unit), "modes": page}, indent=2))
    return 0


def _layers(settings: Settings) -> dict[str, Layer]:
    """What the isolation drivers say of this node; one that would be started when it is needed counts as working."""
    made = drivers.make(settings.isolation, settings.isolation_options)
    said: queue.SimpleQueue[Layer] = queue.SimpleQueue()
    heard: dict[str, Layer] = {}
    for driver in made.values():
        driver.start(said.put)
    while heard.keys() < made.keys():
        layer = said.get(timeout=LAYER_S)
        heard[layer.driver] = replace(layer, problem=None) if layer.standby else layer
    for driver in made.values():
        driver.stop()
    return {name: heard[name] for name in made if name != NONE}
