"""What a driver is needed for, from the agent's state."""

from gpuagent.domain.isolation import chosen
from gpuagent.domain.mode import Mode
from gpuagent.domain.state import State
from gpuagent.domain.units import parse_id
from gpuagent.isolation import Need


def isolation_need(state: State, driver: str) -> Need:
    """What the node wants of `driver` now. Containers are told by the mode that is part of their device ids."""
    return Need(
        gpus=tuple(sorted(state.gpus.values(), key=lambda gpu: gpu.index)),
        serves=state.mode_known and state.layer.driver == driver,
        in_use=any(chosen(mode, state.policy.isolation, state.layers).driver == driver for mode in _modes_held(state)),
        disabled=state.isolation_disabled,
    )


def _modes_held(state: State) -> set[Mode]:
    units = (parse_id(next(iter(holding.ids), "")) for holding in state.living_holdings)
    return {unit.kind.mode for unit in units if unit}
