"""The isolation that claims get on this node: the best that a driver has."""

from gpuagent.domain.sharing.isolation_layers import NONE, Layer
from gpuagent.domain.sharing.mode import PROMISES, Isolates, Mode
from gpuagent.domain.state import State

_BEST_FIRST = (Mode.CORE_MEM, Mode.CGPU, Mode.MPS)


def layer_mode(state: State) -> Mode:
    """The mode whose isolation driver serves claims with shares; `share` where no driver serves one."""
    for mode in _BEST_FIRST:
        layer = state.layer_of(mode)
        if layer.driver != NONE:
            return mode
    return Mode.SHARE


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
