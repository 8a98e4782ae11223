"""The isolation that claims get on this node: the best that a driver offers."""

from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.mode import PROMISES, Isolates, Mode
from gpuagent.domain.state import State

_BEST_FIRST = (Mode.CORE_MEM, Mode.CGPU, Mode.MPS)


def layer_mode(state: State) -> Mode:
    """The mode whose isolation driver serves claims with shares; `share` where no driver serves one."""
    return next((mode for mode in _BEST_FIRST if state.layer_of(mode).driver != NONE), Mode.SHARE)


def isolates_now(state: State) -> frozenset[Isolates]:
    """What the driver isolates at this moment."""
    mode = layer_mode(state)
    return PROMISES[mode] if state.layer_of(mode).keeps(mode) else frozenset()
