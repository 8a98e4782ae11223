"""Answers lines: what the server's threads call."""

import logging
from dataclasses import replace

from gpuagent.host.limits_client import Description, Limit, LimitDriverError, LimitsError, Target
from gpuagent.limits_helper.driver_thread import DriverThread, HangsError
from gpuagent.limits_helper.limit_setter import LimitSetter
from gpuagent.limits_helper.requests import (
    Describe,
    Get,
    Request,
    Set,
    description_answer,
    error_answer,
    limit_answer,
    parse,
)

log = logging.getLogger(__name__)

_NOTHING_KNOWN = Description("", None, "", {}, None)


class LimitsService:
    """Parses, checks and carries out one request after the other.

    Args:
        setter: makes the calls, in `thread` only.
        thread: where it makes them.
    """

    def __init__(self, setter: LimitSetter, thread: DriverThread) -> None:
        self._setter = setter
        self._thread = thread
        self._described = _NOTHING_KNOWN

    def answer(self, line: bytes) -> bytes:
        """The answer to a line, whatever it says."""
        try:
            return self._carry_out(parse(line))
        except LimitsError as err:
            return error_answer(err)
        except Exception:
            log.exception("Failed to answer a request")
            return error_answer(LimitDriverError("the helper failed, see its log"))

    def describe(self) -> Description:
        """What can be limited; also while the driver hangs."""
        try:
            self._described = self._thread.run(self._setter.describe)
        except HangsError as err:
            return replace(self._described, problem=str(err))
        return self._described

    def _carry_out(self, request: Request) -> bytes:
        match request:
            case Describe():
                return description_answer(self.describe())
            case Get(target):
                return limit_answer(self._thread.run(lambda: self._setter.get(target)))
            case Set(target, size):
                return limit_answer(self._set(target, size))

    def _set(self, target: Target, size: int) -> Limit:
        try:
            return self._thread.run(lambda: self._setter.set(target, size))
        except LimitsError as err:
            fields = {"gpu": target.gpu, "pod": target.pod, "leaf": target.leaf, "bytes": size, "error": str(err)}
            log.warning("Failed to set a limit", extra=fields)
            raise
