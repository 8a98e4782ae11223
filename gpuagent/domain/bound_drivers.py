"""The isolation driver of running containers, which they keep whatever an agent that starts would choose today."""

from collections.abc import Collection
from dataclasses import replace

from gpuagent.domain import events as ev
from gpuagent.domain.sharing.isolation_layers import NONE, with_pairs
from gpuagent.domain.sharing.mode import PROMISES, Mode
from gpuagent.domain.sharing.units import parse_id
from gpuagent.domain.state import State


def with_bound_drivers(state: State, event: ev.Event) -> State:
    """The state with each mode bound to the driver of its running containers."""
    has_read = isinstance(event, ev.HoldingsRead) and state.holdings.problem is None
    # Otherwise containers that an agent finds at its start would wait for the next read, and a driver that changes
    # meanwhile could hand them over to another one.
    has_completed = isinstance(event, ev.LayerSeen)
    if not has_read and not has_completed:
        return state
    # After a start, the driver that serves them may be the last to report. Those before it serve none of them.
    if state.isolation.unreported:
        return state
    # Containers end between two reads, and only a read shows that.
    bound: dict[Mode, str] = {} if has_read else dict(state.isolation.bound)
    recorded = _recorded_drivers(state)
    # Also modes whose GPUs are away, or were not read yet.
    held_modes = {unit.kind.mode for unit in state.held_units}
    for mode in held_modes:
        driver = _driver_of(state, mode, recorded.get(mode, set()))
        if PROMISES[mode] and driver != NONE:
            bound[mode] = driver
    if bound == state.isolation.bound:
        return state
    return replace(state, isolation=replace(state.isolation, bound=bound))


def _driver_of(state: State, mode: Mode, recorded: Collection[str]) -> str:
    present = state.layer_of(mode).driver
    if not recorded or present in recorded:
        return present
    # The strongest one, if containers of a mode have several.
    known = [driver for driver in with_pairs(state.isolation.layers) if driver in recorded]
    return known[0] if known else present


def _recorded_drivers(state: State) -> dict[Mode, set[str]]:
    """Mode to the drivers of its living containers, by what the agent told kubelet when they were admitted."""
    with_record = [entry for entry in state.holdings.checkpoint if entry.isolation]
    if not with_record:
        return {}
    held = frozenset[str]().union(*[holding.ids for holding in state.living_holdings])
    drivers: dict[Mode, set[str]] = {}
    for entry in with_record:
        living_ids = entry.ids & held
        modes = {unit.kind.mode for unit in map(parse_id, living_ids) if unit is not None}
        for mode in modes:
            of_mode = drivers.setdefault(mode, set())
            of_mode.add(entry.isolation)
    return drivers
