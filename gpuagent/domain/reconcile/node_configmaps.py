"""Every ConfigMap of a node: the topology for arena, the unhealthy GPUs for the gpushare scheduler extender."""

from gpuagent.domain.reconcile.configmap import MANAGED_BY, ConfigMapFacts
from gpuagent.domain.state import State
from gpuagent.domain.status import topology_page


def config_maps(state: State, node_name: str) -> tuple[ConfigMapFacts, ...]:
    """What shall be true of them as follows from `state`; nothing of one while it is not known."""
    return (*topology_page.config_maps(state, node_name), *_unhealthy(state, node_name))


def _unhealthy(state: State, node_name: str) -> tuple[ConfigMapFacts, ...]:
    """There while a GPU is unhealthy, in every mode; one of an earlier run stands until the driver was read."""
    if not state.gpus and state.driver_problem is not None:
        return ()
    ill = state.unhealthy
    # A number that a lost GPU had may be another's now.
    well = {gpu.minor for uuid, gpu in state.gpus.items() if uuid not in ill}
    numbers = sorted({state.gpus[uuid].minor for uuid in ill} - well)
    # The extender takes what is no number, an empty text too, for GPU 0.
    data = {"gpus": ",".join(map(str, numbers))} if numbers else None
    labels = {MANAGED_BY: "gpuagent", "nodename": node_name}
    return (ConfigMapFacts("kube-system", f"unhealthy-gpu-{node_name}", labels, data, frozenset({"gpus"})),)
