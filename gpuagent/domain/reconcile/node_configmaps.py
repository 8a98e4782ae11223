"""Every ConfigMap of a node: the topology for arena, the unhealthy GPUs for the gpushare scheduler extender."""

from gpuagent.domain.reconcile import topology_report
from gpuagent.domain.reconcile.configmap import MANAGED_BY, ConfigMapFacts
from gpuagent.domain.state import State


def config_maps(state: State, node_name: str) -> tuple[ConfigMapFacts, ...]:
    """The desired state of each ConfigMap by `state`; a ConfigMap whose content is not determined yet is absent."""
    return (*topology_report.config_maps(state, node_name), *_unhealthy(state, node_name))


def _unhealthy(state: State, node_name: str) -> tuple[ConfigMapFacts, ...]:
    """Present while a GPU is unhealthy, in every mode. One of an earlier run stays until the driver was read."""
    gpus = state.gpus.by_uuid
    if not gpus and state.gpus.driver_problem is not None:
        return ()
    unhealthy = set[int]()
    healthy = set[int]()
    for uuid, gpu in gpus.items():
        minors = unhealthy if uuid in state.unhealthy else healthy
        minors.add(gpu.minor)
    # Another GPU may have the minor number of a lost one now.
    numbers = sorted(unhealthy - healthy)
    data = None
    if numbers:
        # The extender reads any text that is not a number, even an empty one, as GPU 0.
        data = {"gpus": ",".join(map(str, numbers))}
    facts = ConfigMapFacts(
        namespace="kube-system",
        name=f"unhealthy-gpu-{node_name}",
        labels={MANAGED_BY: "gpuagent", "nodename": node_name},
        data=data,
        keys=frozenset({"gpus"}),
    )
    return (facts,)
