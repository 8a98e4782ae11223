"""The health query of a GPU: the recovery action first, then all else with a bounded wait."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuagent.domain.gpus.health_verdict import ACTION, REST, HealthReading
from gpuagent.nvml.answers import MIB
from gpuagent.nvml.binding.calls import GONE, INVALID_ARGUMENT, Handle
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.bounded_query import BoundedQueries
from gpuagent.nvml.driver_errors import CallError, gpu_reason

log = logging.getLogger(__name__)

REST_PATIENCE_S = 0.02
"""How long the recovery action waits for the other answers; a later answer is reported when it comes."""
SILENT_S = 1.0
"""A query without an answer for this long counts as unanswered."""
_NOT_THERE = GONE | {INVALID_ARGUMENT}


class HealthQuery:
    """Queries one GPU. A thread of its own reads the clock reasons, so that they never delay the recovery action.

    Args:
        index: NVML's.
        clock: monotonic seconds.
        late: called when an answer came that was not waited for.
    """

    def __init__(self, index: int, clock: Callable[[], float], late: Callable[[], None]) -> None:
        self._index = index
        self._clock = clock
        self._late = late
        self._uuid = ""
        self._begin()

    def _begin(self) -> None:
        """Drop all values and pending queries."""
        self._queries = BoundedQueries[str, HealthReading](
            patience_s=REST_PATIENCE_S, clock=self._clock, late=self._late
        )
        self._known: HealthReading | None = None
        self._memory_mib: int | None = None
        self._asked_at: float | None = None
        self._silent: dict[str, str] = {}

    def ask(self, nvml: Nvml, gpu: Handle, uuid: str, *, in_a_hurry: bool = False) -> HealthReading:
        """Read the GPU's health as far as it answers; `in_a_hurry` reads the action only and keeps the other values.

        `uuid` names the GPU that has the index now: readings of another GPU do not count for it. Raises CallError if
        the GPU is gone.
        """
        if uuid != self._uuid:
            # Queries about the GPU that had the index before may still be open.
            self._uuid = uuid
            self._begin()
        silent: dict[str, str] = {}
        action = None
        try:
            action = nvml.recovery_action(gpu)
        except CallError as err:
            if err.code in _NOT_THERE:
                raise
            silent[ACTION] = gpu_reason(err)
        missing = self._silent.get(REST, "") if in_a_hurry else self._ask_rest(gpu)
        if missing:
            silent[REST] = missing
        self._log_new(silent)
        self._silent = silent
        return replace(
            self._known or HealthReading(),
            action=action,
            memory_mib=self._memory_mib,
            silent_on=frozenset(silent),
            partial=self._known is None and not missing,
        )

    def _log_new(self, silent: Mapping[str, str]) -> None:
        """Log why values are missing, once for each reason."""
        for what, words in silent.items():
            if self._silent.get(what) != words:
                log.warning("Got no answer from a GPU", extra={"gpu": self._index, "silent_on": what, "error": words})

    def _ask_rest(self, gpu: Handle) -> str:
        """Read the other values, or keep the former ones if that takes long; why they are missing, or empty."""
        name = f"nvml-condition-{self._index}"
        query = self._queries.ask("condition", name, lambda nvml: [nvml.condition(gpu)])
        # The memory size does not belong to health. In a thread of its own, it neither hides nor delays the rest.
        memory = self._queries.ask("memory", f"nvml-memory-{self._index}", lambda nvml: [_memory(nvml, gpu)])
        if self._asked_at is None:
            self._asked_at = self._clock()
        self._queries.wait()
        if memory.ended and memory.known:
            self._memory_mib = memory.known.memory_mib
        if not query.ended:
            # The query stays open, and a later poll takes its answer.
            if self._clock() - self._asked_at < SILENT_S:
                return ""
            return f"{query.pending or 'an answer'} has not returned for {SILENT_S:g} s"
        self._asked_at = None
        error = query.error
        if error is None:
            self._known = query.known or HealthReading()
            return ""
        if not isinstance(error, CallError) or error.code in _NOT_THERE:
            raise error
        return gpu_reason(error)


def _memory(nvml: Nvml, gpu: Handle) -> HealthReading:
    """A reading with nothing but the size of the memory. Raises CallError."""
    total, _ = nvml.memory_bytes(gpu)
    return HealthReading(memory_mib=total // MIB)
