"""A program that uses a GPU in a cgroup, and the check's end of it: one JSON object a line, and one answer a line."""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from bench.agent.cuda import MIB, Cuda, CudaError

ANSWER_S = 120.0
_STEP_MIB = 64
_SIMULATED_STEP_MIB = 16


class ProgramError(Exception):
    """The program did not do what was asked; the text says why."""


class LimitedProgram:
    """A process in `cgroup` that uses the GPU with that UUID; a context manager that ends it.

    Args:
        cgroup: the process joins it before it opens the driver.
        uuid: of the GPU.
        device: socket of a simulated driver; None: the real one.
    """

    def __init__(self, cgroup: Path, uuid: str, device: Path | None = None) -> None:
        command = [sys.executable, "-m", "bench.limits.limited_program", str(cgroup), uuid]
        if device:
            command.append(str(device))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        # No MPS server may allocate in the program's place.
        env = kept | {"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PIPE_DIRECTORY": str(cgroup / "none")}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)  # noqa: S603 (ourselves)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def size_mib(self) -> int:
        """The size of the GPU as the program sees it."""
        return self._ask("size")

    def take(self, mib: int) -> int:
        """Allocate memory; returns how many MiB of it the driver gave."""
        return self._ask("take", mib)

    def take_managed(self, mib: int) -> int:
        """Allocate unified memory, likewise."""
        return self._ask("take_managed", mib)

    def fill(self) -> int:
        """Allocate until the driver refuses it; returns how many MiB it gave."""
        return self._ask("fill")

    def _ask(self, what: str, *arguments: int) -> int:
        assert self._process.stdin
        assert self._process.stdout
        try:
            print(json.dumps([what, *arguments]), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
            answer: dict[str, Any] = json.loads(line)
        except (OSError, ValueError):
            raise ProgramError(f"the program ended with {self._process.wait(ANSWER_S)}") from None
        if "error" in answer:
            raise ProgramError(answer["error"])
        return int(answer["mib"])


class Device(Protocol):
    """A GPU as a program uses it. Methods raise CudaError or OSError."""

    def size(self) -> int: ...
    def take(self, mib: int) -> int: ...
    def take_managed(self, mib: int) -> int: ...
    def fill(self) -> int: ...


class CudaDevice:
    """The real one."""

    def __init__(self) -> None:
        self._cuda = Cuda()

    def size(self) -> int:
        _, total = self._cuda.memory_info()
        return total // MIB

    def take(self, mib: int) -> int:
        return _taken(mib, lambda: self._cuda.allocate(mib))

    def take_managed(self, mib: int) -> int:
        return _taken(mib, lambda: self._cuda.allocate_managed(mib))

    def fill(self) -> int:
        return self._cuda.fill(_STEP_MIB)


class SimulatedDevice:
    """One of a simulated box, at the socket of `gpuagent.simulation.devices.device_socket`."""

    def __init__(self, uuid: str, path: Path) -> None:
        self._uuid = uuid
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")

    def size(self) -> int:
        return int(self._ask("info", 1)["total"]) // MIB

    def take(self, mib: int) -> int:
        return mib if self._ask("alloc", mib * MIB)["ok"] else 0

    def take_managed(self, mib: int) -> int:
        return mib if self._ask("managed", mib * MIB)["ok"] else 0

    def fill(self) -> int:
        taken = 0
        while self.take(_SIMULATED_STEP_MIB):
            taken += _SIMULATED_STEP_MIB
        return taken

    def _ask(self, what: str, amount: int) -> dict[str, Any]:
        value: int | bool = True if what == "info" else amount
        self._socket.sendall(json.dumps({"gpu": self._uuid, what: value}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._lines.readline())
        return answer


def _taken(mib: int, allocate: Any) -> int:  # noqa: ANN401 (a call)
    try:
        allocate()
    except CudaError as err:
        if err.is_out_of_memory:
            return 0
        raise
    return mib


def main(arguments: list[str]) -> None:
    """Join the cgroup, open the GPU, and do what each line says."""
    cgroup, uuid, *device = arguments
    (Path(cgroup) / "cgroup.procs").write_text("0")
    opened: Device | None = None
    for line in sys.stdin:
        what, *amounts = json.loads(line)
        try:
            if opened is None:
                opened = SimulatedDevice(uuid, Path(device[0])) if device else CudaDevice()
            answer: dict[str, Any] = {"mib": getattr(opened, what)(*amounts)}
        except (OSError, CudaError) as err:
            answer = {"error": str(err)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        main(sys.argv[1:])
