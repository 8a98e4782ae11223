"""Reads all GPUs at once, each in a thread of its own: one whose call hangs costs no other; a late answer counts."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gpuagent.domain.gpu import Gpu, Inventory, UnreadableGpu
from gpuagent.domain.wiring import Wiring
from gpuagent.nvml.binding import Nvml
from gpuagent.nvml.errors import DRIVER_WIDE, CallError, driver_error, gpu_reason
from gpuagent.nvml.source import read_gpu
from gpuagent.nvml.wiring import read_wiring, related


class Reading:
    """One GPU being read, in two steps: what it says of itself, then how near the others are.

    When a step has `ended`, either `gpu` or `error` is there.

    Args:
        index: NVML's.
        nvml: the facade of its threads.
        sysfs: where sysfs is mounted.
        late: called at the end of a step if somebody gave up waiting for it.
    """

    def __init__(self, index: int, nvml: Nvml, sysfs: Path, late: Callable[[], None]) -> None:
        self.index = index
        self.gpu: Gpu | None = None
        self.wiring = Wiring()
        self.related = False
        self.error: Exception | None = None
        self._nvml = nvml
        self._sysfs = sysfs
        self._late = late
        self._given_up = False
        self._end = threading.Condition()
        self.ended = False

    def start(self) -> None:
        """Begin the first step."""
        self._begin(self._read)

    def relate(self, bus_ids: Mapping[int, str]) -> None:
        """Begin the second step, when the first has ended: `bus_ids` of the GPUs that could be read, by index."""
        self.related = True
        self._begin(lambda: self._relate(bus_ids))

    def wait(self, timeout_s: float) -> bool:
        """Whether the step has ended; if not in time, `late` is called when it does."""
        with self._end:
            if not self._end.wait_for(lambda: self.ended, timeout_s):
                self._given_up = True
        return self.ended

    @property
    def hangs_in(self) -> str:
        """What it waits for, for people."""
        return str(self._nvml.pending or f"reading GPU {self.index}")

    def _begin(self, step: Callable[[], None]) -> None:
        with self._end:
            self.ended = self._given_up = False
        threading.Thread(target=self._run, args=(step,), name=f"nvml-read-{self.index}", daemon=True).start()

    def _read(self) -> None:
        gpu = read_gpu(self._nvml, self.index, self._sysfs)
        self.wiring = read_wiring(self._nvml, self._nvml.handle(self.index))
        self.gpu = gpu

    def _relate(self, bus_ids: Mapping[int, str]) -> None:
        self.wiring = related(self._nvml, self.index, self.wiring, bus_ids)

    def _run(self, step: Callable[[], None]) -> None:
        try:
            with self._nvml.session():
                step()
        except Exception as err:  # noqa: BLE001 (handed to whoever waits)
            self.error = err
        with self._end:
            self.ended = True
            self._end.notify_all()
            late = self._given_up
        if late:
            self._late()


class Readings:
    """Looks at all GPUs; a GPU whose reading has not ended is not asked again until it has.

    Nothing is asked about two GPUs before both could be read: one that hangs would take the other along.

    Args:
        patience_s: how long each step of one look waits for the slowest GPU.
        clock: monotonic seconds, for the facades.
        sysfs: where sysfs is mounted.
        late: called when a GPU that was waited for in vain has answered: the next look takes the answer.
    """

    def __init__(self, *, patience_s: float, clock: Callable[[], float], sysfs: Path, late: Callable[[], None]) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._sysfs = sysfs
        self._late = late
        self._waited_in_vain: dict[int, Reading] = {}

    def look(self, count: int) -> list[Reading]:
        """The reading of each of `count` GPUs, ended or, where a step takes longer than `patience_s`, not."""
        open_ = self._waited_in_vain
        readings = [open_.pop(index) if index in open_ else self._begin(index) for index in range(count)]
        self._wait(readings)
        bus_ids = {reading.index: reading.gpu.pci_bus_id for reading in readings if reading.ended and reading.gpu}
        unrelated = [reading for reading in readings if reading.index in bus_ids and not reading.related]
        if len(bus_ids) > 1:
            for reading in unrelated:
                reading.relate(bus_ids)
            self._wait(unrelated)
        return readings

    def _begin(self, index: int) -> Reading:
        reading = Reading(index, Nvml(self._clock), self._sysfs, self._late)
        reading.start()
        return reading

    def _wait(self, readings: Iterable[Reading]) -> None:
        until = time.monotonic() + self._patience_s
        for reading in readings:
            if not reading.wait(max(0.0, until - time.monotonic())):
                self._waited_in_vain[reading.index] = reading


def inventory_of(  # noqa: PLR0913 (all by name)
    readings: Iterable[Reading],
    *,
    hung: Mapping[int, str],
    former: Inventory | None,
    patience_s: float,
    version: str,
    nodes: frozenset[str],
) -> Inventory:
    """What one look found.

    Args:
        readings: one for each GPU, ended or not.
        hung: NVML index and reason of GPUs about which another call hangs.
        former: what was known; a GPU whose reading has not ended stays as it was there, with its links, and is
            unreadable besides.
        patience_s: how long was waited for the slowest.
        version: the driver's.
        nodes: its device nodes.

    Raises:
        DriverError: a reading failed for the driver's sake.
    """
    known = {gpu.index: gpu for gpu in former.gpus} if former else {}
    gpus: list[Gpu] = []
    unreadable: list[UnreadableGpu] = []
    wiring: dict[str, Wiring] = {}
    for reading in readings:
        index, error = reading.index, reading.error
        if not reading.ended:
            unreadable.append(UnreadableGpu(index, f"{reading.hangs_in} has not returned for {patience_s:g} s"))
            if former and index in known:
                gpus.append(known[index])
                wiring[known[index].uuid] = former.wiring[known[index].uuid]
        elif isinstance(error, CallError) and error.code not in DRIVER_WIDE:
            unreadable.append(UnreadableGpu(index, gpu_reason(error)))
        elif isinstance(error, CallError):
            raise driver_error(error) from error
        elif error:
            raise error
        elif reading.gpu:
            gpus.append(reading.gpu)
            wiring[reading.gpu.uuid] = reading.wiring
            unreadable += [UnreadableGpu(index, hung[index])] if index in hung else []
    return Inventory(tuple(gpus), tuple(unreadable), version, nodes, wiring)
