"""The driver's events: faults that it reports by itself."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pynvml

from gpuagent.nvml import answers
from gpuagent.nvml.answers import unsigned
from gpuagent.nvml.binding.calls import ABSENT, Handle, NvmlCalls, address_of
from gpuagent.nvml.driver_errors import CallError

XID = int(pynvml.nvmlEventTypeXidCriticalError)
DOUBLE_BIT_ECC = int(pynvml.nvmlEventTypeDoubleBitEccError)
_TIMEOUT = int(pynvml.NVML_ERROR_TIMEOUT)


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """The result of the event wait: the GPU's handle (None: no GPU), its address, an event type, the XID in `data`."""

    device: Any
    address: int | None
    kind: int
    data: int


class FaultEvents(NvmlCalls):
    """Sets of events, and the wait for one. Every method raises CallError if NVML refuses."""

    def supported_events(self, gpu: Handle) -> int:
        """Bits of the event types that this GPU can report; 0 if it has no events at all."""
        try:
            return self._read("nvmlDeviceGetSupportedEventTypes", gpu, unsigned)
        except CallError as err:
            if err.code in ABSENT:
                return 0
            raise

    @contextmanager
    def event_set(self) -> Iterator[Any]:
        events = self._call("nvmlEventSetCreate")
        try:
            yield events
        finally:
            with suppress(CallError):  # the driver may be gone by now
                self._call("nvmlEventSetFree", events)

    def register(self, gpu: Handle, kinds: int, events: Any) -> None:  # noqa: ANN401 (opaque)
        self._ask("nvmlDeviceRegisterEvents", gpu, kinds, events)

    def wait(self, events: Any, timeout_s: float) -> NvmlEvent | None:  # noqa: ANN401 (opaque)
        """Block until an event arrives; None after `timeout_s`. Not in `pending`, as it may last long."""
        self.waiting_since = self._clock()
        try:
            got = pynvml.nvmlEventSetWait_v2(events, int(timeout_s * 1000))
        except pynvml.NVMLError as err:
            if err.value == _TIMEOUT:
                return None
            raise CallError("nvmlEventSetWait_v2", err.value, str(err)) from None
        finally:
            self.waiting_since = None
        # A null pointer: the event is about no GPU in particular.
        address = address_of(got.device)
        return NvmlEvent(
            device=got.device if address else None,
            address=address,
            kind=int(got.eventType),
            data=int(got.eventData),
        )

    def uuid_of(self, event: NvmlEvent) -> str:
        """The UUID of the GPU in an event."""
        function = "nvmlDeviceGetUUID"
        return answers.read(function, self._call(function, event.device), answers.gpu_uuid)
