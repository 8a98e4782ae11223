"""The agent's helper for memory limits on a made-up node: its driver is a simulated box, its cgroups are folders.

`python -m demo.limits_helper FOLDER BOX`. In FOLDER are `cgroups`, `proc` with the cgroup of each program, and both
sockets. So the demo needs neither root nor cgroups of the machine.
"""

import sys
from pathlib import Path

from gpuagent.limits_helper import process
from gpuagent.simulation import boxes, simulator

SOCKET = "limits/limits.sock"
DEVICE = "device.sock"
CGROUPS = "cgroups"
PROC = "proc"


def main(folder: Path, box: str) -> None:
    """Serve until SIGTERM."""
    source = simulator.CgroupSource(folder / CGROUPS, folder / PROC)
    driver = simulator.install(boxes.load(box), source)
    driver.limits("misc")  # as version 615, on a kernel that does not count the memory of GPUs
    driver.listen_for_processes(folder / DEVICE)
    process.serve(folder / SOCKET, process.place_of(folder / CGROUPS, "", {}), lambda *_: driver.backend)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
