"""A host with stand-ins for NVIDIA's MPS programs, in a folder of its own; every daemon is gone when it closes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from gpuagent.domain.gpus.gpu import key_of
from standin.mps import control, smi
from standin.waiting import PATIENCE_S


class MpsHost:
    """Programs in `root`/bin, directories `own` (the agent's) and `ack`, and the GPUs that `nvidia-smi` lists.

    `pipes` is the pipe directory that the agent makes for GPU-0a.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="m-"))  # not tmp_path: a socket path ends at 107 bytes
        self.own, self.ack, self.logs = self.root / "own", self.root / "ack", self.root / "log"
        self.pipes = self.of_gpu("GPU-0a")
        self.gpus = self.root / "gpus.json"
        self.control = self._program("nvidia-cuda-mps-control", control.__file__)
        self.smi = self._program("nvidia-smi", smi.__file__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the daemons, also those that just start, and remove the folder."""
        # Bounded: a program of a test that was left running may start them again.
        until = time.monotonic() + PATIENCE_S
        while (started := list(self._started())) and time.monotonic() < until:
            for pid in started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)  # their parent collects them
        # An agent that ends at the same time may still write into it.
        shutil.rmtree(self.root, ignore_errors=True)

    def _started(self) -> Iterator[int]:
        """PIDs of the control programs of this host that run."""
        program = os.fsencode(self.control)
        pipes = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(self.root)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                is_stand_in = b"standin/mps/control.py" in command and pipes in (folder / "environ").read_bytes()
                # A shell runs the program. An agent has it among its arguments, and is left.
                is_about_to_be = program in command.split(b"\0")[:2]
                if is_stand_in or is_about_to_be:
                    yield int(folder.name)

    def kill_all(self) -> None:
        """Kill every daemon."""
        for noted in self.root.rglob("nvidia-cuda-mps-control.pid"):
            self.kill(noted.parent)

    def of_gpu(self, uuid: str) -> Path:
        """Pipe directory of the daemon that the agent starts for a GPU."""
        return self.own / key_of(uuid)

    def rewrite_control(self, text: str) -> None:
        """Have the control program be another one. A file that is running cannot be written, so it is replaced."""
        scratch = self.control.with_suffix(".new")
        scratch.write_text(text)
        scratch.chmod(0o755)
        scratch.replace(self.control)

    def _program(self, name: str, module: str) -> Path:
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nSTANDIN_SMI={self.gpus} exec {sys.executable} -S -E {module} "$@"\n')
        path.chmod(0o755)
        return path

    def run(self, pipes: Path, *arguments: str, asked: str = "") -> subprocess.CompletedProcess[str]:
        """The control program as a person would call it."""
        env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(self.logs)}
        return subprocess.run(
            [self.control, *arguments],
            input=asked,
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def steer(self, pipes: Path, **wanted: object) -> None:
        pipes.mkdir(parents=True, exist_ok=True)
        scratch = pipes / "scratch.json"
        scratch.write_text(json.dumps(wanted))
        scratch.replace(pipes / control.STEERING)

    def pid(self, pipes: Path) -> int | None:
        try:
            return int((pipes / "nvidia-cuda-mps-control.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def kill(self, pipes: Path) -> None:
        pid = self.pid(pipes)
        if pid is not None and Path(f"/proc/{pid}/comm").exists():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def modes(self, **modes: str) -> None:
        self.write_smi({"modes": {uuid.replace("_", "-"): mode for uuid, mode in modes.items()}})

    def write_smi(self, known: dict[str, Any]) -> None:
        scratch = self.root / "gpus.scratch"
        scratch.write_text(json.dumps(known))
        scratch.replace(self.gpus)

    def read_smi(self) -> dict[str, Any]:
        known: dict[str, Any] = json.loads(self.gpus.read_text())
        return known

    def mode(self, uuid: str) -> str:
        return str(self.read_smi()["modes"][uuid])

    def log(self) -> str:
        """The logs of all daemons, one after another."""
        logs = sorted(self.logs.rglob("control.log"))
        return "".join(log.read_text() for log in logs)
