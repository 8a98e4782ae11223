"""What a driver is needed for, from the agent's state."""

from gpuagent.domain.state import State
from gpuagent.isolation import Need


def isolation_need(state: State, driver: str) -> Need:
    """What the node wants of `driver` now. Containers are told by the mode that is part of their device ids."""
    held = frozenset(uuid for mode, uuid in state.held_under if state.layer_of(mode).driver == driver)
    return Need(
        gpus=tuple(sorted(state.gpus.values(), key=lambda gpu: gpu.index)),
        serves=state.mode_known and state.layer.driver == driver,
        in_use=bool(held) or state.holdings is None or not state.mode_known,
        held=held,
        disabled=state.isolation_disabled,
    )
