"""Makes the calls to NVML: initializes it, checks each answer, and shows the call in progress."""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from gpuagent.nvml import answers
from gpuagent.nvml.answers import unsigned
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError, driver_error

T = TypeVar("T")

ABSENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""Codes for a value that the driver or the GPU does not have."""
INVALID_ARGUMENT = int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
GPU_IS_LOST = int(pynvml.NVML_ERROR_GPU_IS_LOST)
UNKNOWN = int(pynvml.NVML_ERROR_UNKNOWN)
GONE = DRIVER_WIDE | {GPU_IS_LOST}
"""Codes after which no other call about this GPU can succeed."""
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Where a field's value lies, by its value type."""


@dataclass(frozen=True, slots=True)
class Handle:
    """NVML's handle of the GPU at `index`. `address` is the same for the same GPU while NVML stays initialized."""

    index: int
    pointer: Any
    address: int | None


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that has not returned yet; `since` in monotonic seconds."""

    function: str
    gpu: int | None
    since: float

    def __str__(self) -> str:
        return self.function if self.gpu is None else f"{self.function} on GPU {self.gpu}"


class NvmlCalls:
    """Calls for one thread. Other threads may read `pending`: the call in progress, None between calls.

    Every method raises CallError if NVML refuses, unless its docstring differs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.pending: Pending | None = None
        self.waiting_since: float | None = None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Keep NVML initialized (NVML counts, so sessions may overlap). Raises DriverError if that fails."""
        try:
            self._call("nvmlInit")
        except CallError as err:
            raise driver_error(err) from err
        try:
            yield
        finally:
            with suppress(CallError):  # the driver may be gone by now
                self._call("nvmlShutdown")

    def _call(self, function: str, *args: object, gpu: int | None = None) -> Any:  # noqa: ANN401 (untyped binding)
        self.pending = Pending(function, gpu, self._clock())
        try:
            return getattr(pynvml, function)(*args)
        except pynvml.NVMLError as err:
            # NVML's exceptions are unhashable and compare by number, so they end here.
            raise CallError(function, err.value, str(err)) from None
        except UnicodeDecodeError as err:
            # The binding decodes texts itself.
            raise answers.undecodable(function, err) from None
        finally:
            self.pending = None

    def _ask(self, function: str, gpu: Handle, *args: object) -> Any:  # noqa: ANN401 (untyped binding)
        return self._call(function, gpu.pointer, *args, gpu=gpu.index)

    def _read(self, function: str, gpu: Handle, parse: Callable[[Any], T], *args: object) -> T:
        """The checked answer."""
        return answers.read(function, self._ask(function, gpu, *args), parse)

    def _fields(self, gpu: Handle, *fields: int) -> dict[int, int | None]:
        """Each field's value; None for one that driver or GPU lacks. Raises CallError if another one fails."""
        values: dict[int, int | None] = dict.fromkeys(fields)
        function = "nvmlDeviceGetFieldValues"
        try:
            results = self._read(function, gpu, _field_results, fields)
        except CallError as err:
            if err.code in ABSENT:
                return values
            raise
        # An unknown field is invalid.
        lacking = ABSENT | {INVALID_ARGUMENT}
        for field, code, value in results:
            if not code:
                values[field] = value
            elif code not in lacking:
                raise CallError(function, code, str(pynvml.NVMLError(code)))
        return values


def _field_results(fields: Any) -> list[tuple[int, int, int | None]]:  # noqa: ANN401 (NVML's structures)
    """Number, NVML's code and value of each field."""
    results = []
    for field in fields:
        value = None
        if not field.nvmlReturn:
            member = _MEMBERS[field.valueType]
            value = unsigned(getattr(field.value, member))
        results.append((unsigned(field.fieldId), unsigned(field.nvmlReturn), value))
    return results


def address_of(pointer: Any) -> int | None:  # noqa: ANN401 (untyped binding)
    """Where a handle points to."""
    return ctypes.cast(pointer, ctypes.c_void_p).value
