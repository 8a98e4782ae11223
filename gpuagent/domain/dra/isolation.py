"""The isolation that claims get on this node: the best that a driver has."""

from gpuagent.domain.sharing.isolation_layers import NONE, Layer
from gpuagent.domain.sharing.mode import PROMISES, Isolates, Mode
from gpuagent.domain.state import State

_BEST_FIRST = (Mode.CORE_MEM, Mode.CGPU, Mode.MPS)


def layer_mode(state: State) -> Mode:
    """The mode whose isolation driver serves claims with shares; `share` where no driver serves one."""
    served = [mode for mode in _BEST_FIRST if state.layer_of(mode).driver != NONE]
    for mode in served:
        layer = state.layer_of(mode)
        # A named driver may lack its partner for a mode, and serve the next one alone.
        if layer.installed and layer.could_keep(mode):
            return mode
    return served[0] if served else Mode.SHARE


def serving_mode(state: State) -> Mode:
    """The mode whose isolation driver serves new containers: the one in force, or for claims that of `layer_mode`."""
    mode = state.node.mode
    return layer_mode(state) if mode is Mode.DRA else mode


def serving_layer(state: State) -> Layer:
    """The isolation driver for new containers."""
    return state.layer_of(serving_mode(state))


def isolates_now(state: State) -> frozenset[Isolates]:
    """The resources that the driver isolates at this moment."""
    mode = layer_mode(state)
    layer = state.layer_of(mode)
    return PROMISES[mode] if layer.keeps(mode) else frozenset()
