"""An NVML session that stays open: while it is, no GPU is shut down, which would end all limits."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from gpuagent.host.limits_client import LimitDriverError, NoTargetError
from gpuagent.nvml.binding.calls import GPU_IS_LOST, INVALID_ARGUMENT, UNKNOWN, Handle
from gpuagent.nvml.binding.limit_calls import LimitCalls
from gpuagent.nvml.driver_errors import DRIVER_WIDE, VERSION_MISMATCH, CallError, DriverError, driver_error

log = logging.getLogger(__name__)

T = TypeVar("T")

MAY_BE_STALE = frozenset({INVALID_ARGUMENT, GPU_IS_LOST, UNKNOWN})
"""What calls return for the handle of a GPU that has been away, as after a reset."""


class OpenDriver:
    """Opens NVML at the first call, and again after the driver was unloaded. For one thread.

    Args:
        nvml: makes the calls.

    Attributes:
        is_outdated: NVML's library is of a former driver.
    """

    def __init__(self, nvml: LimitCalls) -> None:
        self._nvml = nvml
        self._session = ExitStack()
        self._gpus: dict[str, Handle] | None = None
        """By UUID; None while NVML is closed."""
        self._left_out: dict[int, str] = {}
        self._has_worked = False
        self.is_outdated = False

    def gpu(self, uuid: str) -> Handle:
        """A GPU's handle. Raises LimitDriverError and NoTargetError."""
        try:
            gpus = self._open()
            if uuid not in gpus:
                # A GPU that came later. NVML stays open, so that the others are not shut down.
                gpus = self._list_again()
        except (DriverError, CallError) as err:
            raise LimitDriverError(f"the NVIDIA driver cannot be used: {err}") from err
        if uuid not in gpus:
            raise NoTargetError(f"the node has no GPU {uuid}, or the driver does not show it")
        return gpus[uuid]

    def ask(self, uuid: str, call: Callable[[Handle], T]) -> T:
        """The result of a call for a GPU. Raises CallError, and what `gpu` raises."""
        gpu = self.gpu(uuid)
        try:
            return call(gpu)
        except CallError as err:
            if err.code not in MAY_BE_STALE:
                raise
            self._list_again()
        # If it was away, it has another handle by now.
        return call(self.gpu(uuid))

    def listed(self) -> dict[str, Handle]:
        """The GPUs, with handles of now: a GPU that was away has another one since. Raises DriverError."""
        self._open()
        try:
            return self._list_again()
        except CallError as err:
            self.close()
            raise driver_error(err) from err

    def is_there(self) -> bool:
        """Whether NVML is open, and the driver still answers."""
        if self._gpus is None:
            return False
        try:
            self.check()
        except DriverError:
            return False
        return True

    def check(self) -> None:
        """Close NVML if the driver was unloaded, so that the next call opens it again. Raises DriverError then."""
        try:
            self._nvml.count()
        except CallError as err:
            if err.code in DRIVER_WIDE:
                self.close()
                raise driver_error(err) from err

    def close(self) -> None:
        """Close NVML. The next call opens it again."""
        self._gpus = None
        self._session.close()

    def _open(self) -> dict[str, Handle]:
        """The GPUs, in an open NVML. Raises DriverError."""
        if self._gpus is None:
            try:
                self._session.enter_context(self._nvml.session())
            except DriverError as err:
                self._check_outdated(err)
                raise
            try:
                self._gpus = self._list_gpus()
            except CallError as err:
                self.close()
                raise driver_error(err) from err
            self._has_worked = True
        return self._gpus

    def _list_again(self) -> dict[str, Handle]:
        """The GPUs as listed now. One that is missing keeps its handle, so that a call says why. Raises CallError."""
        gpus = {**self._open(), **self._list_gpus()}
        self._gpus = gpus
        return gpus

    def _list_gpus(self) -> dict[str, Handle]:
        """Raises CallError if the driver as a whole fails."""
        gpus: dict[str, Handle] = {}
        left_out: dict[int, str] = {}
        for index in range(self._nvml.count()):
            try:
                handle = self._nvml.handle(index)
                gpus[self._nvml.uuid(handle)] = handle
            except CallError as err:
                if err.code in DRIVER_WIDE:
                    raise
                left_out[index] = str(err)
        if left_out != self._left_out:
            log.warning("Left out GPUs", extra={"errors": left_out})
        self._left_out = left_out
        return gpus

    def _check_outdated(self, err: DriverError) -> None:
        cause = err.__cause__
        if self._has_worked and isinstance(cause, CallError) and cause.code == VERSION_MISMATCH:
            self.is_outdated = True
