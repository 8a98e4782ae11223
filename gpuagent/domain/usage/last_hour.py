"""The last hour of each GPU that a container holds, minute by minute, for the page of the node.

A byte for each value keeps it small: 120 bytes for a GPU, and less than 2 KiB with its sums, whatever runs on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.usage.by_container import Samples

MINUTES = 60
MINUTE_S = 60.0
BYTES_PER_MIB = 2**20
UNKNOWN = 255
"""Stands for a minute without a reading."""
STEPS = 200
"""A part from 0 to 1 is kept in so many steps, so to half a percent."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What is in use of a GPU at one moment: parts from 0 to 1. None for what the driver does not report."""

    memory: float | None
    busy: float | None


@dataclass(frozen=True, slots=True)
class _Mean:
    """The mean of one value over a minute."""

    total: float = 0.0
    readings: int = 0

    def seen(self, part: float | None) -> "_Mean":
        return self if part is None else _Mean(self.total + part, self.readings + 1)

    def byte(self) -> int:
        """As it is kept."""
        if not self.readings:
            return UNKNOWN
        part = self.total / self.readings
        return round(min(max(part, 0.0), 1.0) * STEPS)


@dataclass(frozen=True, slots=True)
class GpuHour:
    """The last hour of one GPU.

    Attributes:
        minute: number of the minute in progress.
        memory: a byte for each of the minutes before it, the oldest first: the part of the memory that was in use.
        busy: the same of the time in which it worked.
    """

    minute: int
    memory: bytes = b""
    busy: bytes = b""
    memory_now: _Mean = _Mean()
    busy_now: _Mean = _Mean()

    def until(self, minute: int) -> "GpuHour":
        """At the beginning of a later minute. Minutes in between had no reading."""
        if minute <= self.minute:
            return self
        gap = bytes([UNKNOWN]) * min(minute - self.minute - 1, MINUTES)
        return GpuHour(
            minute,
            _last(self.memory, self.memory_now, gap),
            _last(self.busy, self.busy_now, gap),
        )

    def seen(self, reading: GpuReading) -> "GpuHour":
        """After a reading in the minute in progress."""
        return replace(
            self,
            memory_now=self.memory_now.seen(reading.memory),
            busy_now=self.busy_now.seen(reading.busy),
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to show."""
        has_past = any(value != UNKNOWN for value in (*self.memory, *self.busy))
        return not (has_past or self.memory_now.readings or self.busy_now.readings)


@dataclass(frozen=True, slots=True)
class LastHour:
    """The last hour of the GPUs of a node, by UUID."""

    by_uuid: Mapping[str, GpuHour] = field(default_factory=dict)

    def next(self, readings: Mapping[str, GpuReading], at: float) -> "LastHour":
        """After readings of the GPUs that containers hold. `at` is in monotonic seconds."""
        minute = int(at // MINUTE_S)
        hours = {}
        for uuid in {**self.by_uuid, **readings}:
            hour = self.by_uuid.get(uuid, GpuHour(minute)).until(minute)
            reading = readings.get(uuid)
            if reading:
                hour = hour.seen(reading)
            if not hour.is_over:
                hours[uuid] = hour
        return LastHour(hours)

    def shown(self, at: float) -> dict[str, GpuHour]:
        """As it is now: the minutes since the last reading had none."""
        minute = int(at // MINUTE_S)
        hours = {uuid: hour.until(minute) for uuid, hour in self.by_uuid.items()}
        return {uuid: hour for uuid, hour in hours.items() if not hour.is_over}


def gpu_readings(samples: Samples, held: Iterable[str], gpus: Mapping[str, Gpu]) -> dict[str, GpuReading]:
    """Of the driver's samples, by UUID, those of held GPUs that answer."""
    readings = {}
    for uuid in held:
        sample = samples.by_uuid.get(uuid)
        gpu = gpus.get(uuid)
        if sample is None or gpu is None or uuid in samples.failing:
            continue
        used_bytes = sample.memory_used_bytes
        memory = None
        if used_bytes is not None and gpu.memory_mib:
            memory = used_bytes / (gpu.memory_mib * BYTES_PER_MIB)
        readings[uuid] = GpuReading(memory, sample.busy)
    return readings


def _last(values: bytes, now: _Mean, gap: bytes) -> bytes:
    after = values + bytes([now.byte()]) + gap
    return after[-MINUTES:]
