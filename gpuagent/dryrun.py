"""`gpuagent run --dry-run`: what would be advertised, without a word to kubelet."""

import json
import time

from gpuagent.config import Settings
from gpuagent.domain import events as ev
from gpuagent.domain import report
from gpuagent.domain.mode import Mode
from gpuagent.domain.state import Policy, State
from gpuagent.domain.step import step
from gpuagent.isolation import drivers
from gpuagent.nvml import DriverError
from gpuagent.nvml.source import discover


def dry_run(settings: Settings) -> int:
    """Print the amounts of every mode on this node's GPUs (or of the forced one); 1 if the driver does not answer."""
    driver = drivers.make(settings.isolation)
    now = time.monotonic()
    try:
        seen = ev.InventoryRead(discover(), now)
    except DriverError as err:
        print(json.dumps({"error": f"NVIDIA driver: {err}"}))
        return 1
    modes = [settings.mode] if settings.mode else list(Mode)
    page = {}
    for mode in modes:
        state = State(
            policy=Policy(
                resources=settings.resources,
                unit=settings.memory_unit,
                max_pods_per_gpu=settings.max_pods_per_gpu,
                forced_mode=mode,
                allow_unisolated=settings.allow_unisolated,
                driver=driver.name,
                isolates=driver.isolates,
            ),
            mode=mode,
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
