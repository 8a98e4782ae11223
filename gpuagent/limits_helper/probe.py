"""Finds out by trying whether the driver limits memory on each GPU, on a cgroup in which no process ever is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuagent.limits_helper import diagnosis
from gpuagent.limits_helper.diagnosis import HostFacts
from gpuagent.nvml.binding.calls import Handle
from gpuagent.nvml.binding.limit_calls import LimitCalls
from gpuagent.nvml.driver_errors import CallError
from gpuagent.system.printable import error_words

NAME = "gpuagent.limits-probe"
"""The cgroup, beside those of pods. It is never removed: on backend misc, the driver finds a limit by the address of
the cgroup in the kernel, and keeps it when the cgroup is removed. A later cgroup at this address would inherit it.

Kubelet removes cgroups there that are left of ended pods, and knows them by "pod" in the last part of their names
(`GetAllPodsFromCgroups`). This name has no such part, so kubelet leaves it alone."""
DMEM = "dmem"
MISC = "misc"
_SIZES = (1 << 30, 2 << 30)

TellBackend = Callable[[Path, int], str]
"""Which backend has set a limit of that many bytes for a directory."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The result.

    Attributes:
        backend: `DMEM` or `MISC`; empty if no GPU's memory can be limited.
        gpus: UUID of each GPU to why its memory cannot be limited; None if it can.
        problem: why nothing can be limited; None if a GPU's memory can.
    """

    backend: str
    gpus: Mapping[str, str | None]
    problem: str | None


def backend_by_files(directory: Path, size: int) -> str:
    """The backend by what it did: dmem is the kernel's accounting, so the limit stands in the cgroup's own file.

    That the file exists does not suffice: a driver told to use misc leaves it as it is.
    """
    try:
        text = (directory / "dmem.max").read_text(encoding="ascii", errors="replace")
    except OSError:
        return MISC
    return DMEM if str(size) in text.split() else MISC


def probe(
    nvml: LimitCalls, gpus: Mapping[str, Handle], directory: Path, facts: HostFacts, tell_backend: TellBackend
) -> Probed:
    """Set a limit on each GPU, and read it back.

    Args:
        nvml: makes the calls.
        gpus: by UUID.
        directory: the cgroup to try it on, which is made if it does not exist.
        facts: of the node, which explain a refusal.
        tell_backend: see `TellBackend`.
    """
    try:
        directory.mkdir(mode=0o755, exist_ok=True)
    except OSError as err:
        problem = diagnosis.cannot_make_probe(str(directory), error_words(err), facts)
        return Probed("", dict.fromkeys(gpus, problem), problem)
    driver = nvml.driver_version()
    backend = ""
    results: dict[str, str | None] = {}
    for uuid, gpu in gpus.items():
        try:
            size, results[uuid] = _try(nvml, gpu, directory)
        except CallError as err:
            results[uuid] = diagnosis.why_refused(err, facts, driver=driver, mig=has_mig(nvml, gpu))
            continue
        if results[uuid] is None:
            backend = backend or tell_backend(directory, size)
    return Probed(backend, results, _problem(results))


def _try(nvml: LimitCalls, gpu: Handle, directory: Path) -> tuple[int, str | None]:
    """The limit that was tried, and why it does not hold; None if it does. Raises CallError."""
    former = nvml.memory_limits(gpu, directory)
    # Another limit than the one in force: else a driver that does nothing would seem to work.
    first, second = _SIZES
    size = second if former and former.hard == first else first
    nvml.set_memory_limits(gpu, directory, 0, size)
    limits = nvml.memory_limits(gpu, directory)
    hard = limits.hard if limits else None
    return size, None if hard == size else diagnosis.why_ignored(size, hard)


def has_mig(nvml: LimitCalls, gpu: Handle) -> bool:
    """Whether the GPU is in MIG mode, as far as the driver reports it."""
    try:
        return nvml.mig_enabled(gpu)
    except CallError:
        return False


def _problem(results: Mapping[str, str | None]) -> str | None:
    """Why nothing can be limited; None if a GPU's memory can."""
    if not results:
        return "the NVIDIA driver reports no GPU: look at `nvidia-smi` and `dmesg` on the node"
    reasons = [reason for reason in results.values() if reason]
    if len(reasons) < len(results):
        return None
    return "; ".join(sorted(set(reasons)))
