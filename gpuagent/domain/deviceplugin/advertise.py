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
    if state.policy.allow_unisolated:
        return False
    return not state.layer.keeps(state.node.mode)


def at_zero(state: State) -> bool:
    """Whether no GPU may be advertised: the mode or kubelet's allocations are unknown, or isolation is missing."""
    if not state.node.mode_known or state.holdings.listed is None:
        return True
    # Another plugin would give away the same GPUs a second time.
    return unkept_promise(state) or state.other_plugin_gpus > 0


def wanted(state: State) -> Lists:
    """The lists to advertise once every other unit has left them."""
    lists: dict[str, tuple[DeviceRange, ...]] = dict.fromkeys(state.policy.resources.names, ())
    if at_zero(state):
        return lists
    unit = state.policy.unit
    blocked = state.blocked
    usable = {gpu.uuid for gpu in usable_gpus(state)}
    # GPUs without MIG mode count for the size of a list, so that it does not depend on isolation or running pods.
    counted = tuple(gpu for gpu in state.gpus.by_index if not gpu.mig)
    unblocked = [gpu for gpu in counted if gpu.uuid not in blocked]
    listed = [gpu for gpu in unblocked if gives_units(gpu, state)]
    for resource, kind in state.resource_kinds.items():
        # Kubelet would end the connection on a larger message. A problem says so instead.
        if list_bytes(counted, kind, unit) > MAX_LIST_BYTES:
            continue
        blocks = []
        for gpu in listed:
            seen_gpu = _listed(gpu, kind, state)
            units = units_of(gpu, kind, unit)
            former_units = state.former_units.get(gpu.uuid)
            if former_units and kind.is_memory:
                units -= former_units.withheld
            withheld = state.resizes.withheld_below(gpu.key, kind, units)
            block = DeviceRange(seen_gpu, kind, units, healthy=gpu.uuid in usable, withheld=withheld)
            blocks.append(block)
        lists[resource] = tuple(blocks)
    return lists


def _listed(
    gpu: Gpu,
    kind: Kind,
    state: State,
) -> Gpu:
    """The GPU as kubelet should see it. Without a NUMA node, the Topology Manager does not limit the choice."""
    if kind.is_whole or state.policy.numa_of_shares:
        return gpu
    return replace(gpu, numa_node=None)


def advertise(state: State, at: float) -> State:
    """The state with `lists` and `draining` moved as far toward `wanted` as is safe at these monotonic seconds."""
    while True:
        advertised = _advertise_once(state, at)
        if advertised == state.advertised:
            # Not an equal copy: this one keeps its cached properties.
            return state
        # Dropping the last unit of another mode may free its GPU at once; one more pass settles it.
        state = replace(state, advertised=advertised)


def _advertise_once(state: State, at: float) -> Advertised:
    target = wanted(state)
    before = state.advertised
    lists: dict[str, tuple[DeviceRange, ...]] = {}
    draining: list[Draining] = []
    dropped: list[DeviceRange] = []
    for resource, blocks in target.items():
        former_blocks = {block.key: block for block in before.lists.get(resource, ())}
        staying = []
        for block in blocks:
            former = former_blocks.pop(block.key, None)
            entries = _leaving_units(resource, block, former, state, at)
            draining += entries
            leaving_numbers = frozenset[int]().union(*[entry.numbers for entry in entries])
            staying.append(replace(block, leaving=leaving_numbers))
        leaving = []
        for block in former_blocks.values():
            entry = _leaving_block(resource, block, state, at)
            if _may_drop(state, entry, at):
                dropped.append(block)
            else:
                draining.append(entry)
                leaving.append(entry.block)
        lists[resource] = (*staying, *leaving)
    # Kubelet may have given such a GPU away before the drop. So read its allocations before another mode has it.
    resold = {block.gpu.uuid for block in dropped if block.kind.mode is not state.node.mode}
    return replace(
        before,
        lists=lists,
        draining=tuple(draining),
        unaudited=before.unaudited | resold,
        cleared_at=at if resold else before.cleared_at,
    )


def _leaving_block(resource: str, block: DeviceRange, state: State, at: float) -> Draining:
    """The entry of a block that has to leave the list as a whole."""
    for entry in state.advertised.draining:
        is_same_block = (entry.resource, entry.block.key) == (resource, block.key)
        if is_same_block and not entry.numbers:
            return entry
    return Draining(resource, replace(block, healthy=False), since=at)


def _leaving_units(
    resource: str,
    block: DeviceRange,
    former: DeviceRange | None,
    state: State,
    at: float,
) -> list[Draining]:
    """The entries of units that have to leave the list while the rest of their block stays.

    A new list begins without them, because kubelet has not had them from this list.
    """
    if former is None or not block.withheld:
        return []
    still_listed = block.withheld - former.absent
    entries = []
    known = frozenset[int]()
    for entry in state.advertised.draining:
        if (entry.resource, entry.block.key) != (resource, block.key):
            continue
        known |= entry.numbers
        numbers = entry.numbers & still_listed
        if numbers and not _may_drop(state, entry, at):
            entries.append(Draining(resource, block, entry.since, numbers))
    new_numbers = still_listed - known
    if new_numbers:
        entries.append(Draining(resource, block, at, new_numbers))
    return entries


def _may_drop(state: State, entry: Draining, at: float) -> bool:
    """Whether no Allocate for these units can be in progress any more."""
    is_idle = state.allocates.in_flight == 0
    return is_idle and at >= _quiet_at(state, entry)


def _quiet_at(state: State, entry: Draining) -> float:
    """Monotonic seconds when the block may be dropped, unless another Allocate begins before."""
    return max(entry.since, state.allocates.last_end) + SETTLE_S


def deadline(state: State) -> float | None:
    """Monotonic seconds when the next change is due without an event; None if none is.

    Then a draining unit may leave its list, a recovered GPU becomes healthy, or a note expires.
    """
    changes = [_quiet_at(state, entry) for entry in state.advertised.draining]
    next_of_health = [health.next for health in state.health.by_uuid.values()]
    changes += [due for due in next_of_health if due is not None]
    return min(changes, default=None)
