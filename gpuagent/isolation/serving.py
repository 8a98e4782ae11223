"""Find the isolation driver for a share, and check that it works."""

from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.snapshot import Snapshot
from gpuagent.isolation.interface import IsolationError


def serving_layer(share: Grant, snap: Snapshot) -> Layer:
    """The isolation driver for this share. Raises IsolationError: it does not work now, or not on these GPUs."""
    mode = share.kind.mode
    layer = snap.layer(mode)
    if not layer.keeps(mode) and not snap.policy.allow_unisolated:
        words = layer.problem_in(mode) or "it does not keep what the mode promises"
        raise IsolationError(f"isolation driver {layer.driver} does not serve mode {mode} now: {words}")
    for gpu in share.gpus:
        if gpu.uuid in layer.left_out:
            raise IsolationError(f"GPU {gpu.index} cannot be isolated: {layer.left_out[gpu.uuid]}")
    return layer
