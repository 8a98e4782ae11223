"""Taints of devices: each names why no new claim gets the GPU, and goes when the reason does.

Prepared claims keep the GPU, unless the operator wants pods evicted from a GPU that needs a repair. A claim can
tolerate a taint by its key.
"""

from collections.abc import Iterator
from typing import Any

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.health_verdict import GpuHealth
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.domain.state import State

Json = dict[str, Any]

UNHEALTHY_TAINT = f"{DRA_DRIVER}/unhealthy"
"""The GPU has a fault, which is the taint's value: ``xid-79``, ``lost``."""
SETTLING_TAINT = f"{DRA_DRIVER}/settling"
"""The fault has ended, and the settle time has not."""
UNREADABLE_TAINT = f"{DRA_DRIVER}/unreadable"
"""The driver does not answer, so the GPU's health is not known."""
FENCED_TAINT = f"{DRA_DRIVER}/fenced"
"""The operator's file names the GPU."""
HELD_TAINT = f"{DRA_DRIVER}/held"
"""Pods of another mode or plugin have the GPU."""


def taints(gpu: Gpu, state: State) -> Iterator[Json]:
    """Taints of a GPU in a ResourceSlice; no two have the same key."""
    health = state.health.by_uuid.get(gpu.uuid, GpuHealth())
    if health.cause is not None:
        yield from _health_taint(health, state)
    driver_fails = state.gpus.driver_problem is not None
    is_unread = health.only_unread or gpu.uuid in state.health.unasked
    if driver_fails or is_unread:
        yield taint(UNREADABLE_TAINT)
    if gpu.uuid in state.gpus.fenced:
        yield taint(FENCED_TAINT)
    if gpu.uuid in state.blocked:
        yield taint(HELD_TAINT)


def _health_taint(health: GpuHealth, state: State) -> Iterator[Json]:
    """The taint of a GPU that has, or had, a fault."""
    if health.healthy_since is not None:
        yield taint(SETTLING_TAINT, health.fault)
        return
    if health.only_unread:
        return  # the GPU is not at fault if the driver does not answer; that has a taint of its own
    evicts = state.policy.evict_claims and bool(health.against)
    effect = "NoExecute" if evicts else "NoSchedule"
    yield taint(UNHEALTHY_TAINT, health.fault, effect)


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Json:
    """A taint as a device has it."""
    made = {"key": key, "effect": effect}
    if value:
        made["value"] = value
    return made
