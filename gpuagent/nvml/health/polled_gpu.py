"""What is known of a GPU whose health is polled, as a value; each method returns what is known after an event."""

from dataclasses import dataclass, replace

from gpuagent.domain.gpus.health_verdict import HealthReading


@dataclass(frozen=True, slots=True)
class PolledGpu:
    """The GPU at one index of NVML.

    Attributes:
        uuid: as it was read last; empty if it never was.
        reading: its last health reading.
        mig: whether MIG mode is enabled, by the last reading that reported it.
        memory_mib: the size of its memory, by the last reading that reported it.
        has_answered: it has answered completely, or failed to.
        failed: the last poll failed.
        error: the failure that was logged last; empty since the last answer.
        lost: it was posted as lost.
        away: it fell off the bus, or the driver was gone. Its next answer counts as a return from a reset.
        uncounted: the driver counts fewer GPUs than this index needs.
        driver_away: the driver as a whole does not answer.
        owes_reading: its next answer is posted in any case, because an XID was posted without one.
        owes_first: its next complete answer is posted in any case, because the first one did not come in time.
    """

    uuid: str = ""
    reading: HealthReading | None = None
    mig: bool | None = None
    memory_mib: int | None = None
    has_answered: bool = False
    failed: bool = False
    error: str = ""
    lost: bool = False
    away: bool = False
    uncounted: bool = False
    driver_away: bool = False
    owes_reading: bool = False
    owes_first: bool = False

    @property
    def is_fine(self) -> bool:
        """Whether it answers completely and has no fault, so that it is polled rarely."""
        reading = self.reading
        if self.failed or reading is None:
            return False
        is_complete = not reading.silent_on and not reading.partial
        return reading.well and is_complete

    def fails(self, error: str) -> "PolledGpu":
        """After a poll without an answer."""
        return replace(self, failed=True, has_answered=True, error=error)

    def answers_too_late(self, reading: HealthReading) -> "PolledGpu":
        """After an answer from before the GPU was found to be lost: it says nothing of the GPU now."""
        return replace(self, failed=True, has_answered=self.has_answered or not reading.partial)

    def is_lost(self, error: str, *, away: bool) -> "PolledGpu":
        """After it was found to be lost; `away`: it fell off the bus, and comes back only with a reset."""
        return replace(self, lost=True, away=self.away or away, error=self.error if self.lost else error)

    def without_driver(self) -> "PolledGpu":
        """After the driver as a whole has stopped answering."""
        return replace(self, driver_away=True, away=True)

    def answers(self, uuid: str, reading: HealthReading, *, awaited: bool) -> "Answer":
        """After an answer of the GPU that has this index now.

        Args:
            uuid: its UUID.
            reading: its answer.
            awaited: an XID waits for this answer and posts it itself.
        """
        moved = self.uuid not in {"", uuid}
        was_out = self.away or self.lost
        is_complete = not reading.partial
        is_due = self.owes_reading or (self.owes_first and is_complete)
        is_new = self._differs(reading, moved=moved) and not awaited
        after = replace(
            self,
            uuid=uuid,
            reading=reading,
            mig=self.mig if reading.mig is None else reading.mig,
            memory_mib=self.memory_mib if reading.memory_mib is None else reading.memory_mib,
            has_answered=self.has_answered or is_complete,
            failed=False,
            error="",
            lost=False,
            away=False,
            uncounted=False,
            owes_reading=False,
            # The reading of the GPU that had the index before does not count for the one that has it now.
            owes_first=(self.owes_first or moved) and not is_complete,
        )
        return Answer(
            after,
            # A GPU that was posted as lost stays so until a reading is posted.
            is_posted=is_due or was_out or moved or is_new,
            is_return=self.away,
            needs_rescan=was_out or moved or self._switches_mig(reading) or self._is_resized(reading),
        )

    def _differs(self, reading: HealthReading, *, moved: bool) -> bool:
        if self.reading is None:
            return not reading.unremarkable
        return moved or reading != self.reading

    def _switches_mig(self, reading: HealthReading) -> bool:
        """Whether MIG mode differs from the last reading that reported it."""
        return reading.mig is not None and self.mig not in {None, reading.mig}

    def _is_resized(self, reading: HealthReading) -> bool:
        """Whether the size of the memory differs from the last reading that reported it."""
        return reading.memory_mib is not None and self.memory_mib not in {None, reading.memory_mib}


@dataclass(frozen=True, slots=True)
class Answer:
    """What follows from an answer.

    Attributes:
        gpu: what is known now.
        is_posted: the reading is posted.
        is_return: it counts as a return from a reset.
        needs_rescan: the GPUs must be read again.
    """

    gpu: PolledGpu
    is_posted: bool
    is_return: bool
    needs_rescan: bool
