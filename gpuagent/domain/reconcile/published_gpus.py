"""The annotations of the Node, in which the agent publishes its GPUs, and what pods hold, to schedulers."""

from collections import defaultdict
from collections.abc import Mapping

from gpuagent.domain.certain_holdings import RESOURCES
from gpuagent.domain.deviceplugin.advertise import at_zero
from gpuagent.domain.missing_gpus import known_gpus_annotation
from gpuagent.domain.node_state.device_lists import DeviceRange
from gpuagent.domain.node_state.known_gpus import NOT_READ
from gpuagent.domain.reconcile.published_holdings import held_annotation
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.scheduling.node_links import link_mbps, links_hash
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, Mode
from gpuagent.domain.state import State
from gpuagent.domain.status.topology_page import bandwidths


def node_annotations(state: State) -> dict[str, str]:
    """The desired annotations of the Node.

    Those for schedulers are not there until the agent has read the mode, the GPUs, their isolation and kubelet's
    allocations. So a restart keeps the last text: for schedulers, a node without GPUs is none of theirs.
    """
    holdings, driver = state.holdings.listed, state.gpus.driver_problem
    unread = not state.node.mode_known or holdings is None or driver == NOT_READ or bool(state.isolation.unheard)
    known_gpus = known_gpus_annotation(state)
    if unread:
        return known_gpus
    return {**known_gpus, NODE_GPUS_ANNOTATION: node_gpus_text(published_gpus(state)), **held_annotation(state)}


def published_gpus(state: State) -> NodeGpus:
    """The node's GPUs by the device lists, so that a scheduler and kubelet count the same units.

    There are none while the mode advertises no resource that schedulers place.
    """
    kinds = {name: kind for name, kind in state.resource_kinds.items() if name in RESOURCES}
    listed: dict[str, dict[str, DeviceRange]] = defaultdict(dict)
    for name, kind in kinds.items():
        for block in state.advertised.lists.get(name, ()):
            if block.kind is kind:
                listed[block.gpu.uuid][name] = block
    at_all = bool(kinds) and not at_zero(state)
    gpus = tuple(_node_gpu(minor, listed[uuid]) for minor, uuid in _by_minor(state)) if at_all else ()
    known = GPU_WHOLE in kinds and bool(gpus)
    policy, most = state.policy, state.layer.max_sharers
    return NodeGpus(
        gpus,
        unit_mib=policy.unit.mib,
        most_pods=policy.max_pods_per_gpu if most is None else min(policy.max_pods_per_gpu, most),
        core_step=policy.core_step,
        both=policy.core_mem_both and state.node.mode is Mode.CORE_MEM,
        # Only in mode `topology` does a ConfigMap have the bandwidths.
        links=links_hash(link_mbps(bandwidths(state), [gpu.minor for gpu in gpus])) if known else "",
    )


def _by_minor(state: State) -> list[tuple[int, str]]:
    """Minor number and UUID of each GPU. A GPU that the driver lists now may have the number of a lost one."""
    uuids = sorted(state.gpus.by_uuid, key=lambda uuid: uuid in state.gpus.topology.gpus)
    return sorted({state.gpus.by_uuid[uuid].minor: uuid for uuid in uuids}.items())


def _node_gpu(minor: int, blocks: Mapping[str, DeviceRange]) -> NodeGpu:
    """A GPU with its units on the device lists; one that is on none is in MIG mode, or not free for this mode."""
    memory, core = (blocks[name].count if name in blocks else 0 for name in (GPU_MEM, GPU_CORE))
    usable = bool(blocks) and all(block.healthy for block in blocks.values())
    return NodeGpu(minor, memory, core, whole=GPU_WHOLE in blocks, usable=usable)
