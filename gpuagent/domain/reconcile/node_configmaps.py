"""Every ConfigMap of a node: the topology for arena, the unhealthy GPUs for the gpushare scheduler extender."""

from gpuagent.domain.reconcile.configmap import MANAGED_BY, ConfigMapFacts
from gpuagent.domain.state import State
from gpuagent.domain.status import topology_page


def config_maps(state: State, node_name: str) -> tuple[ConfigMapFacts, ...]:
    """The desired state of each ConfigMap by `state`; a ConfigMap whose content is not determined yet is absent."""
    return (*topology_page.config_maps(state, node_name), *_unhealthy(state, node_name))


def _unhealthy(state: State, node_name: str) -> tuple[ConfigMapFacts, ...]:
    """Present while a GPU is unhealthy, in every mode. One of an earlier run stays until the driver was read."""
    if not state.gpus.by_uuid and state.gpus.driver_problem is not None:
        return ()
    unhealthy = state.unhealthy
    # Another GPU may have the minor number of a lost one now.
    well = {gpu.minor for uuid, gpu in state.gpus.by_uuid.items() if uuid not in unhealthy}
    numbers = sorted({state.gpus.by_uuid[uuid].minor for uuid in unhealthy} - well)
    # The extender reads any text that is no number, also an empty one, as GPU 0.
    data = {"gpus": ",".join(map(str, numbers))} if numbers else None
    labels = {MANAGED_BY: "gpuagent", "nodename": node_name}
    return (ConfigMapFacts("kube-system", f"unhealthy-gpu-{node_name}", labels, data, frozenset({"gpus"})),)
