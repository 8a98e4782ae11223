"""The GPU that is checked, and its driver: the real one, or a simulated one for the check's own test."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.limits.limited_program import LimitedProgram
from gpuagent.limits_helper import host_facts
from gpuagent.limits_helper.probe import NAME, TellBackend, backend_by_files, probe
from gpuagent.nvml.binding.calls import Handle
from gpuagent.nvml.binding.limit_calls import LimitCalls
from gpuagent.nvml.driver_errors import DriverError
from gpuagent.simulation import boxes, simulator
from gpuagent.simulation.devices.device_memory import CgroupSource

MIB = 1 << 20
CLOSED_S = 3.0
"""How long the GPU is left closed, for the driver to shut it down."""
ENDING_S = 30.0
"""How long the driver may take to free the memory of a program that was killed."""
REMOVED_S = 0.3
"""How long the kernel takes to free a removed cgroup, generously."""
_COMMAND_S = 60.0


class CannotCheckError(Exception):
    """There is nothing to check here; the text says why."""


class Machine(Protocol):
    """What NVML's calls about limits do not have."""

    device: Path | None
    """Socket of a simulated GPU; None: programs use the real one."""
    simulate: tuple[str, ...]
    """Arguments for other processes that have to simulate the same; empty: they use the real driver."""
    closed_s: float
    removed_s: float

    def users(self, uuid: str) -> list[str]:
        """Processes that compute on the GPU."""

    def persistence(self, uuid: str) -> bool:
        """Whether the driver keeps the GPU initialized without users."""

    def set_persistence(self, uuid: str, *, enabled: bool) -> None:
        """Switch that. Raises CannotCheckError."""

    def tell_backend(self, directory: Path, size: int) -> str:
        """The backend that has set a limit of a cgroup."""


class RealMachine:
    """By nvidia-smi."""

    device: Path | None = None
    simulate: tuple[str, ...] = ()
    closed_s = CLOSED_S
    removed_s = REMOVED_S

    def users(self, uuid: str) -> list[str]:
        return _smi("-i", uuid, "--query-compute-apps=pid,name", "--format=csv,noheader").splitlines()

    def persistence(self, uuid: str) -> bool:
        return _smi("-i", uuid, "--query-gpu=persistence_mode", "--format=csv,noheader").strip() == "Enabled"

    def set_persistence(self, uuid: str, *, enabled: bool) -> None:
        _smi("-i", uuid, "-pm", str(int(enabled)))

    def tell_backend(self, directory: Path, size: int) -> str:
        return backend_by_files(directory, size)


class SimulatedMachine:
    """A simulated box in this process."""

    closed_s = 0.02
    removed_s = 0.0

    def __init__(self, box: str, backend: str, root: Path, folder: Path) -> None:
        self._driver = simulator.install(boxes.load(box), CgroupSource(root))
        self._driver.limits(backend)
        self.device: Path | None = folder / "device.sock"
        self._driver.listen_for_processes(self.device)
        self.simulate: tuple[str, ...] = (box, backend, str(root))
        self._persistent = True

    def close(self) -> None:
        self._driver.close()

    def users(self, uuid: str) -> list[str]:  # noqa: ARG002 (that of every machine)
        return []

    def persistence(self, uuid: str) -> bool:  # noqa: ARG002
        return self._persistent

    def set_persistence(self, uuid: str, *, enabled: bool) -> None:
        self._driver.persistence(uuid, enabled)
        self._persistent = enabled

    def tell_backend(self, directory: Path, size: int) -> str:  # noqa: ARG002
        return self._driver.backend


@dataclass
class CheckedGpu:
    """One GPU. NVML is open, except in `closed`.

    Attributes:
        memory: of the GPU, in bytes.
        backend: of the driver: ``dmem`` or ``misc``; empty before `try_limits`.
    """

    machine: Machine
    nvml: LimitCalls
    uuid: str
    memory: int
    driver: str
    model: str
    backend: str = ""
    _session: ExitStack = field(default_factory=ExitStack)

    @property
    def handle(self) -> Handle:
        return self.nvml.handle_of(self.uuid)

    def try_limits(self, root: Path) -> None:
        """Find out whether limits can be set, as the agent's helper does. Raises CannotCheckError."""
        tell_backend: TellBackend = self.machine.tell_backend
        gpus = {self.uuid: self.handle}
        probed = probe(self.nvml, gpus, root / NAME, host_facts.read(root), tell_backend)
        if probed.problem:
            raise CannotCheckError(f"GPU {self.handle.index} cannot be limited: {probed.problem}")
        self.backend = probed.backend

    def limit(self, cgroup: Path, mib: int) -> None:
        """Set a hard limit. Raises CallError."""
        self.nvml.set_memory_limits(self.handle, cgroup, 0, mib * MIB)

    def limit_of(self, cgroup: Path) -> int | None:
        """The limit in force in MiB; None if there is none. Raises CallError."""
        limits = self.nvml.memory_limits(self.handle, cgroup)
        # Without a limit, backend dmem reports the largest number.
        has_limit = limits is not None and limits.hard <= self.memory
        return limits.hard // MIB if limits and has_limit else None

    def used_by(self, cgroup: Path) -> int:
        """MiB that count against the limit."""
        limits = self.nvml.memory_limits(self.handle, cgroup)
        return limits.used // MIB if limits else 0

    def wait_unused(self, cgroup: Path) -> None:
        """Wait until the driver has seen that the programs there have ended. Raises TimeoutError."""
        until = time.monotonic() + ENDING_S
        while self.used_by(cgroup):
            if time.monotonic() > until:
                raise TimeoutError(f"{self.used_by(cgroup)} MiB of a program that has ended are still in use")
            time.sleep(0.02)

    def program(self, cgroup: Path) -> LimitedProgram:
        """A program that uses the GPU there."""
        return LimitedProgram(cgroup, self.uuid, self.machine.device)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Have NVML closed for a while, so that no process has the GPU open."""
        self._session.close()
        try:
            time.sleep(self.machine.closed_s)
            yield
        finally:
            self._session.enter_context(self.nvml.session())


@contextmanager
def opened(index: int | None, root: Path, simulate: tuple[str, str] | None) -> Iterator[CheckedGpu]:
    """The GPU with that index, the last one if it is None. Raises CannotCheckError."""
    with ExitStack() as stack:
        machine: Machine = RealMachine()
        if simulate:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="limits-")))
            machine = SimulatedMachine(*simulate, root, folder)
            stack.callback(machine.close)
        nvml = LimitCalls()
        session = stack.enter_context(ExitStack())
        try:
            session.enter_context(nvml.session())
        except DriverError as err:
            raise CannotCheckError(f"no NVIDIA driver to check here: {err}") from err
        yield _gpu(index, machine, nvml, session)


def _gpu(index: int | None, machine: Machine, nvml: LimitCalls, session: ExitStack) -> CheckedGpu:
    count = nvml.count()
    chosen = count - 1 if index is None else index
    if not 0 <= chosen < count:
        raise CannotCheckError(f"the driver has {count} GPUs: there is no GPU {chosen}")
    handle = nvml.handle(chosen)
    uuid = nvml.uuid(handle)
    if users := machine.users(uuid):
        raise CannotCheckError(f"GPU {chosen} is in use, so end these programs or choose another: {'; '.join(users)}")
    total, reserved = nvml.memory_bytes(handle)
    return CheckedGpu(
        machine,
        nvml,
        uuid,
        total - reserved,
        nvml.driver_version(),
        nvml.name(handle),
        _session=session,
    )


def _smi(*arguments: str) -> str:
    """What nvidia-smi prints. Raises CannotCheckError."""
    try:
        done = subprocess.run(  # noqa: S603 (no shell, and arguments of ours)
            ["nvidia-smi", *arguments],  # noqa: S607 (where the driver has it)
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_S,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise CannotCheckError(f"nvidia-smi cannot be asked: {err}") from err
    if done.returncode:
        raise CannotCheckError(f"nvidia-smi {' '.join(arguments)}: {(done.stdout + done.stderr).strip()}")
    return done.stdout
