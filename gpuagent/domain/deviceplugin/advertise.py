"""The device list of each resource: pure functions of the state.

Two rules keep every list safe:

* An advertised device leaves its list in two steps. First the agent lists it as unhealthy, so that kubelet sends no
  new Allocate for it. The agent drops it when no Allocate has been in progress for `SETTLE_S`. Kubelet 1.34-1.37
  crashes if a device vanishes while kubelet waits for an answer.
* The agent advertises a GPU in a mode only while no unit of another mode is in use there. Such a unit must not be
  held or listed, and the agent must have read kubelet's allocations after it dropped the unit.
"""

from dataclasses import replace

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.node_state.device_lists import Advertised, DeviceRange, Draining, Lists
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import MAX_LIST_BYTES, list_bytes, units_of
from gpuagent.domain.state import State
from gpuagent.domain.usable_gpus import gives_units, usable_gpus

SETTLE_S = 2.0


def unkept_promise(state: State) -> bool:
    """Whether the mode promises isolation that no driver provides here now. If so, its resources stay at zero."""
    return not state.layer.keeps(state.node.mode) and not state.policy.allow_unisolated


def at_zero(state: State) -> bool:
    """Whether no GPU may be advertised: the mode or kubelet's allocations are unknown, or isolation is missing."""
    unknown = not state.node.mode_known or state.holdings.listed is None
    return unknown or unkept_promise(state) or state.other_plugin_gpus > 0


def wanted(state: State) -> Lists:
    """The lists to advertise once every other unit has left them."""
    lists: dict[str, tuple[DeviceRange, ...]] = dict.fromkeys(state.policy.resources.names, ())
    if at_zero(state):
        return lists
    unit, blocked = state.policy.unit, state.blocked
    usable = {gpu.uuid for gpu in usable_gpus(state)}
    # GPUs without MIG mode count for the size of a list, so that it does not depend on isolation or running pods.
    counted = tuple(gpu for gpu in state.gpus.by_index if not gpu.mig)
    listed = [gpu for gpu in counted if gives_units(gpu, state) and gpu.uuid not in blocked]
    for resource, kind in state.resource_kinds.items():
        if list_bytes(counted, kind, unit) <= MAX_LIST_BYTES:
            lists[resource] = tuple(
                DeviceRange(_listed(gpu, kind, state), kind, units_of(gpu, kind, unit), healthy=gpu.uuid in usable)
                for gpu in listed
            )
    return lists


def _listed(gpu: Gpu, kind: Kind, state: State) -> Gpu:
    """The GPU as kubelet should see it. Without a NUMA node, the Topology Manager does not limit the choice."""
    return gpu if kind.is_whole or state.policy.numa_of_shares else replace(gpu, numa_node=None)


def advertise(state: State, now: float) -> State:
    """The state with `lists` and `draining` moved as far toward `wanted` as is safe at `now`."""
    while True:
        after = _advertise_once(state, now)
        # Dropping the last unit of another mode may free its GPU at once; one more pass settles it.
        if after == state.advertised:
            return state  # keeps its cached properties
        state = replace(state, advertised=after)


def _advertise_once(state: State, now: float) -> Advertised:
    target, before = wanted(state), state.advertised
    former = {(one.resource, one.block.key): one for one in before.draining}
    lists: dict[str, tuple[DeviceRange, ...]] = {}
    draining: list[Draining] = []
    dropped: list[DeviceRange] = []
    for resource, blocks in target.items():
        kept = {block.key for block in blocks}
        leaving = []
        for block in before.lists.get(resource, ()):
            if block.key in kept:
                continue
            one = former.get((resource, block.key)) or Draining(resource, replace(block, healthy=False), now)
            if state.allocates.in_flight == 0 and now >= _quiet_at(state, one):
                dropped.append(block)
            else:
                draining.append(one)
                leaving.append(one.block)
        lists[resource] = (*blocks, *leaving)
    resold = {block.gpu.uuid for block in dropped if block.kind.mode is not state.node.mode}
    return replace(
        before,
        lists=lists,
        draining=tuple(draining),
        unaudited=before.unaudited | resold,
        cleared_at=now if resold else before.cleared_at,
    )


def _quiet_at(state: State, one: Draining) -> float:
    return max(one.since, state.allocates.last_end) + SETTLE_S


def deadline(state: State) -> float | None:
    """Monotonic seconds when the next change is due without an event; None if none is.

    Then a draining unit may leave its list, a recovered GPU becomes healthy, or a note expires.
    """
    changes = (due for health in state.health.by_uuid.values() if (due := health.next) is not None)
    return min((*(_quiet_at(state, one) for one in state.advertised.draining), *changes), default=None)
