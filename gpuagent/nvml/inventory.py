"""Reads all GPUs at once: a GPU that hangs affects no other, and a hanging query of links affects no GPU."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gpuagent.domain.gpus.gpu import Gpu, Inventory, UnreadableGpu
from gpuagent.domain.gpus.link_reports import Wiring
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.bounded_query import BoundedQueries, BoundedQuery
from gpuagent.nvml.driver_errors import (
    DRIVER_WIDE,
    ODD,
    CallError,
    DriverError,
    driver_error,
    gpu_reason,
    may_be_shared,
)
from gpuagent.nvml.gpu_reader import PROC, read_gpu, sysfs_name
from gpuagent.nvml.link_queries import joined, read_links, read_relations

log = logging.getLogger(__name__)

T = TypeVar("T")

_About = tuple[str, str]
"""UUID of a GPU, and the kind of its connections."""
_Part = tuple[_About, BoundedQuery[Wiring]]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU as one pass over all GPUs read it.

    Attributes:
        index: NVML's.
        gpu: None if it could not be read.
        wiring: as much as is known of it.
        error: why it could not be read.
        hangs_in: the call that its reading waits for, in words for people; empty if it has ended.
    """

    index: int
    gpu: Gpu | None = None
    wiring: Wiring = Wiring()
    error: Exception | None = None
    hangs_in: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One GPU in the inventory.

    Attributes:
        index: NVML's.
        gpu: None if nothing is known of it.
        wiring: as much as is known of it.
        problem: why it is unreadable; empty if it is not.
    """

    index: int
    gpu: Gpu | None = None
    wiring: Wiring = Wiring()
    problem: str = ""


class Readings:
    """Reads all GPUs: each GPU's own data, then the links of those that answered, and their PCIe paths to the others.

    These are three queries, so that one that hangs delays no other. A query about two GPUs starts only once both
    could be read: otherwise a GPU that hangs would block the query of the other.

    Args:
        patience_s: how long one look waits for the slowest GPU.
        links_patience_s: how long it then waits for the slowest links.
        clock: monotonic seconds, for the facades.
        sysfs: where sysfs is mounted.
        proc: where procfs is mounted.
        late: called when an answer comes after its wait has timed out: the next look takes the answer.
    """

    def __init__(  # noqa: PLR0913 (all by name)
        self,
        *,
        patience_s: float,
        links_patience_s: float,
        clock: Callable[[], float],
        sysfs: Path,
        late: Callable[[], None],
        proc: Path = PROC,
    ) -> None:
        self._patience_s = links_patience_s
        self._sysfs = sysfs
        self._proc = proc
        self._gpus: BoundedQueries[int, Gpu] = BoundedQueries(patience_s=patience_s, clock=clock, late=late)
        self._wiring: BoundedQueries[_About, Wiring] = BoundedQueries(
            patience_s=links_patience_s, clock=clock, late=late
        )
        self._answers: dict[_About, Wiring] = {}

    def look(self, count: int) -> list[GpuReading]:
        """The reading of each of `count` GPUs. Raises DriverError if the driver as a whole fails."""
        queries = [self._ask_gpu(index) for index in range(count)]
        self._gpus.wait()
        readings = []
        for index, query in enumerate(queries):
            readings.append(_reading(index, query))
        gpus = [reading.gpu for reading in readings if reading.gpu]
        # Only GPUs that have just answered: a call about one that hangs does not return.
        bus_ids = {gpu.index: gpu.pci_bus_id for gpu in gpus if gpu.pci_bus_id}
        parts = {gpu.uuid: self._ask_wiring(gpu, bus_ids) for gpu in gpus}
        self._wiring.wait()
        return [self._with_wiring(reading, parts) for reading in readings]

    def _with_wiring(self, reading: GpuReading, parts: Mapping[str, tuple[_Part, _Part]]) -> GpuReading:
        if reading.gpu is None:
            return reading
        links, relations = parts[reading.gpu.uuid]
        wiring = joined(self._known(links), self._known(relations))
        return replace(reading, wiring=wiring)

    def _ask_gpu(self, index: int) -> BoundedQuery[Gpu]:
        def read(nvml: Nvml) -> Iterator[Gpu]:
            return _contained(index, lambda: [read_gpu(nvml, index, self._sysfs, self._proc)])

        return self._gpus.ask(index, f"nvml-read-{index}", read)

    def _ask_wiring(self, gpu: Gpu, bus_ids: Mapping[int, str]) -> tuple[_Part, _Part]:
        index = gpu.index

        def links(nvml: Nvml) -> Iterator[Wiring]:
            return _contained(index, lambda: read_links(nvml, index))

        def relations(nvml: Nvml) -> Iterator[Wiring]:
            return _contained(index, lambda: read_relations(nvml, index, bus_ids))

        about_links = gpu.uuid, "links"
        about_relations = gpu.uuid, "relations"
        return (
            (about_links, self._wiring.ask(about_links, f"nvml-links-{index}", links)),
            (about_relations, self._wiring.ask(about_relations, f"nvml-near-{index}", relations)),
        )

    def _known(self, part: _Part) -> Wiring:
        """The answer; until there is one, the former answer, or the part of the new one so far."""
        about, query = part
        if query.ended:
            known = _answer(query)
            # It is shown again while a later query hangs.
            self._answers[about] = known
            return known
        uuid, kind = about
        pending = query.pending
        function = pending.function if pending else f"reading its {kind}"
        # Logged once: a query that still hangs at the next look is outdated.
        if not query.outdated:
            log.warning("Failed to read the links of a GPU", extra={"uuid": uuid, "call": function})
        known = self._answers.get(about) or query.known or Wiring()
        problem = f"{function} has not returned for {self._patience_s:g} s"
        return replace(known, problems=(*known.problems, problem))


def _answer(query: BoundedQuery[Wiring]) -> Wiring:
    """The answer of a query that has ended, with its error as a problem. Raises DriverError, and unknown errors."""
    known = query.known or Wiring()
    error = query.error
    if error is None:
        return known
    if not isinstance(error, CallError):
        raise error
    if error.code in DRIVER_WIDE:
        raise driver_error(error) from error
    return replace(known, problems=(*known.problems, str(error)))


def _contained(index: int, ask: Callable[[], Iterable[T]]) -> Iterator[T]:
    """Yield the answers of `ask`. An error of this agent about one GPU must not hide the others."""
    try:
        yield from ask()
    except (CallError, DriverError):
        raise
    except Exception as err:
        log.exception("Failed to read a GPU", extra={"gpu": index})
        words = f"{type(err).__name__}, which this agent does not expect; its log says where"
        raise CallError("reading it", ODD, words) from err


def _reading(index: int, query: BoundedQuery[Gpu]) -> GpuReading:
    if not query.ended:
        return GpuReading(index, hangs_in=str(query.pending or f"reading GPU {index}"))
    return GpuReading(index, query.known, error=query.error)


def shared_failure(readings: Collection[GpuReading]) -> CallError | None:
    """The error that every GPU gives, if its cause may be one that they share; None if a GPU can be read.

    A GPU with a fault of its own, or one that hangs, does not hide what the others share.
    """
    suspects = []
    for reading in readings:
        if reading.gpu:
            return None
        error = reading.error
        if isinstance(error, CallError) and may_be_shared(error):
            suspects.append(error)
    codes = {error.code for error in suspects}
    return suspects[0] if len(codes) == 1 else None


def inventory_of(  # noqa: PLR0913 (all by name)
    readings: Collection[GpuReading],
    *,
    hung: Mapping[int, str],
    former: Inventory | None,
    patience_s: float,
    version: str,
    nodes: frozenset[str],
    on_bus: Mapping[str, str] | None = None,
) -> Inventory:
    """The inventory from one pass over all GPUs.

    Args:
        readings: one for each GPU.
        hung: NVML index and reason of GPUs about which another call hangs.
        former: the last inventory; a GPU whose reading has not ended stays as it was there, with its links, and is
            also unreadable.
        patience_s: how long the pass waited for the slowest.
        version: the driver's.
        nodes: its device nodes.
        on_bus: PCI address of each GPU on the bus to its kernel driver.

    Raises:
        DriverError: a reading failed because of the driver as a whole.
    """
    known = _still_known(former, readings)
    entries = []
    for reading in readings:
        if reading.hangs_in:
            problem = f"{reading.hangs_in} has not returned for {patience_s:g} s"
            entries.append(_entry_while_it_hangs(reading.index, known.get(reading.index), former, problem))
        elif reading.error:
            entries.append(_Entry(reading.index, problem=_own_error(reading.error)))
        elif reading.gpu:
            problem = hung.get(reading.index, "")
            entries.append(_Entry(reading.index, reading.gpu, reading.wiring, problem))
    gpus = [entry.gpu for entry in entries if entry.gpu]
    unreadable = [UnreadableGpu(entry.index, entry.problem) for entry in entries if entry.problem]
    return Inventory(
        gpus=tuple(gpus),
        unreadable=tuple(unreadable),
        driver_version=version,
        device_nodes=nodes,
        wiring={entry.gpu.uuid: entry.wiring for entry in entries if entry.gpu},
        # The address of a GPU that cannot be read is unknown, so any address may be its.
        absent={} if unreadable else _absent(gpus, on_bus or {}),
    )


def _still_known(former: Inventory | None, readings: Collection[GpuReading]) -> dict[int, Gpu]:
    """The GPUs of the last inventory that no reading shows, by index.

    Indexes move when a GPU is lost: the GPU that hangs is not the one that has its former index now.
    """
    if former is None:
        return {}
    read_uuids = {reading.gpu.uuid for reading in readings if reading.gpu}
    return {gpu.index: gpu for gpu in former.gpus if gpu.uuid not in read_uuids}


def _entry_while_it_hangs(index: int, gpu: Gpu | None, former: Inventory | None, problem: str) -> _Entry:
    """A GPU whose reading hangs stays as it was read last, because it may answer again soon."""
    if gpu is None or former is None:
        return _Entry(index, problem=problem)
    return _Entry(index, gpu, former.wiring[gpu.uuid], problem)


def _own_error(error: Exception) -> str:
    """Why this GPU alone cannot be read. Raises DriverError, and errors that this agent does not expect."""
    if not isinstance(error, CallError):
        raise error
    if error.code in DRIVER_WIDE:
        raise driver_error(error) from error
    return gpu_reason(error)


def _absent(gpus: Collection[Gpu], on_bus: Mapping[str, str]) -> dict[str, str]:
    """GPUs on the bus that the driver should list and does not. One that is given to a virtual machine is none."""
    if not all(gpu.pci_bus_id for gpu in gpus):
        return {}  # any of those on the bus may be the one without an address
    listed = {sysfs_name(gpu.pci_bus_id) for gpu in gpus}
    words = {"": "bound to no driver", "nvidia": "bound to driver nvidia"}
    absent = {}
    for name, driver in on_bus.items():
        if name not in listed and driver in words:
            absent[name] = words[driver]
    return absent
