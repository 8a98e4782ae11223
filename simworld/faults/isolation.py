"""Faults in what the agent makes of its isolation driver."""

from typing import Any

from gpuagent.isolation.interface import IsolationError
from gpuagent.isolation.limits.driver import LimitsIsolation
from gpuagent.isolation.limits.foreign import ForeignLimits
from gpuagent.isolation.limits.in_force import LimitsInForce
from simworld.faults.replacing import put


def a_failing_isolation_driver_is_ignored() -> None:
    """A container starts whether its driver could limit it or not."""
    verify = LimitsIsolation.verify

    def verify_or_not(self: LimitsIsolation, grant: Any, starting: Any) -> None:  # noqa: ANN401 (of the product)
        try:
            verify(self, grant, starting)
        except IsolationError:
            return

    put(LimitsIsolation, "verify", verify_or_not)


def containers_are_limited_after_their_start() -> None:
    """The next audit limits a pod, and kubelet's call does not wait for it."""

    def verify_later(self: LimitsIsolation, _grant: Any, _starting: Any) -> None:  # noqa: ANN401 (of the product)
        keeper = self._keeper
        if keeper is not None:
            keeper.audit_soon()

    put(LimitsIsolation, "verify", verify_later)


def limits_of_dead_pods_are_inherited() -> None:
    """On backend `misc`, a container has the limit of the dead one whose cgroup was at the same address."""
    put(ForeignLimits, "_clear", lambda *_: None)
    put(ForeignLimits, "_clear_each", lambda *_: None)


def limits_of_pods_that_are_gone_are_kept() -> None:
    """The agent never forgets which limits it has set."""
    put(LimitsInForce, "forget", lambda *_: None)


FAULTS = (
    a_failing_isolation_driver_is_ignored,
    containers_are_limited_after_their_start,
    limits_of_dead_pods_are_inherited,
    limits_of_pods_that_are_gone_are_kept,
)
