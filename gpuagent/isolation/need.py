"""The need for each isolation driver, from the agent's state."""

from collections.abc import Iterable

from gpuagent.domain.dra.isolation import serving_layer
from gpuagent.domain.state import State
from gpuagent.isolation.interface import Need


def isolation_needs(state: State, drivers: Iterable[str]) -> dict[str, Need]:
    """The need for each driver now. The mode in a container's device ids shows which driver serves the container."""
    gpus = tuple(state.gpus.by_index)
    unknown = state.holdings.listed is None or not state.node.mode_known
    held_by = [(state.layer_of(mode).driver, uuid) for mode, uuid in state.held_under]
    held_by += [(claim.layer, gpu.uuid) for claim in state.claims.prepared.values() for gpu in claim.used]
    serving = serving_layer(state)
    needs = {}
    for driver in drivers:
        held = frozenset(uuid for name, uuid in held_by if name == driver)
        needs[driver] = Need(
            gpus=gpus,
            serves=state.node.mode_known and serving.driver == driver,
            in_use=bool(held) or unknown,
            held=held,
            disabled=state.node.isolation_disabled,
        )
    return needs
