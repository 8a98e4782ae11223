"""`gpuagent memory-limits` as a process of its own, on a simulated driver that enforces its limits."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpuagent.simulation import boxes
from gpuagent.simulation.fault_socket import inject
from tests.e2e.agent.process import AGENT_PYTHON
from tests.e2e.cluster import WAIT_S, Cluster
from tests.e2e.cluster.cgroups import pods_hierarchy
from tests.e2e.cluster.part_logs import register_log

BOX = "dgx-a100"
_SOURCE = Path(__file__).with_name("attacker.c")
_ATTACKER = ("gcc", "-static", "-O1", "-Wall", "-Wextra", "-Werror")


def build_attacker(folder: Path) -> None:
    """Make the attackers' program in a folder that their containers mount."""
    subprocess.run((*_ATTACKER, "-o", str(folder / "attacker"), str(_SOURCE)), check=True)


class Helper:
    """The helper, and the folder that containers of attackers mount as /attack: their program and the driver.

    Args:
        cluster: its kubelet makes a control group for each pod.
        backend: `dmem` or `misc`: how the driver accounts memory.
    """

    def __init__(self, cluster: Cluster, backend: str) -> None:
        self.backend = backend
        self.root = Path(tempfile.mkdtemp(prefix="l-"))  # not tmp_path: a socket's path ends at 107 bytes
        self.root.chmod(0o755)  # containers look into a folder of it, whatever user they run as
        self.socket = self.root / "limits" / "limits.sock"
        self.attack = self.root / "attack"
        self.attack.mkdir()
        build_attacker(self.attack)
        self._faults = self.root / "faults.sock"
        log = self.root / "helper.log"
        self._log = log
        register_log("helper of memory limits", log)
        self._command = (
            *(AGENT_PYTHON, "-m", "gpuagent", "memory-limits", "--socket", str(self.socket)),
            *("--cgroup-root", str(pods_hierarchy())),
            *("--pods-cgroup", str((cluster.cgroup_root / "kubepods").relative_to(pods_hierarchy()))),
            *("--simulate", str(_box(self.root, backend)), "--simulate-socket", str(self._faults)),
            *("--simulate-device", str(self.device)),
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGTERM)
        shutil.rmtree(self.root)

    @property
    def device(self) -> Path:
        """The simulated driver, for whoever can reach the socket."""
        return self.attack / "device.sock"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + WAIT_S
        # One that was killed has left its sockets.
        while not (_listens(self.socket) and _listens(self.device)):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.02)
        self.load_driver()

    def end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)
            self._process.wait(WAIT_S)

    def inject(self, **fault: object) -> None:
        inject(self._faults, fault, timeout_s=WAIT_S)

    def load_driver(self, reused: int = 0, seed: int = 0) -> None:
        """Load the simulated driver anew: all memory is free, and nothing is limited.

        Args:
            reused: percent of new control groups at the address of a dead one. Backend misc takes the limits of the one
                for those of the other.
            seed: chooses which.
        """
        self.inject(fault="limits", backend=self.backend, reused=reused, seed=seed)
        # While no control group is dead, this process is first seen in its own. So it inherits no limit.
        self.ask(info=True)

    # -- the truth --------------------------------------------------------------------------------------------------

    def used(self, uuid: str) -> int:
        """The bytes of a GPU that all programs have together: this process has no limit, so it sees all of them."""
        return int(self.ask(gpu=uuid, info=True)["used"])

    def ask(self, **request: object) -> Mapping[str, Any]:
        """Ask the simulated driver, as a program on the node that is in no pod."""
        with socket.socket(socket.AF_UNIX) as driver:
            driver.settimeout(WAIT_S)
            driver.connect(str(self.device))
            driver.sendall(json.dumps(request).encode() + b"\n")
            with driver.makefile("rb") as answers:
                answer: Mapping[str, Any] = json.loads(answers.readline())
        assert answer["ok"], answer
        return answer


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def _box(folder: Path, backend: str) -> Path:
    """The box with a driver that limits memory."""
    text = (boxes.FOLDER / f"{BOX}.toml").read_text()
    assert "driver_version" not in text
    # The same name, from which the UUIDs of its GPUs are made.
    file = folder / f"{BOX}.toml"
    file.write_text(f'driver_version = "615.71.09"\nmemory_limits = "{backend}"\n{text}')
    return file
