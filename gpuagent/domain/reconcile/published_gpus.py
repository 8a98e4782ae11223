"""The annotations of the Node, in which the agent publishes its GPUs, and what pods hold, to schedulers."""

from gpuagent.domain.deviceplugin.advertise import at_zero
from gpuagent.domain.missing_gpus import known_gpus_annotation
from gpuagent.domain.node_state.known_gpus import NOT_READ
from gpuagent.domain.placed_units import Blocks, placed_kinds, placed_units
from gpuagent.domain.reconcile.published_holdings import held_annotation
from gpuagent.domain.reconcile.topology_report import bandwidths
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.scheduling.node_links import link_mbps, links_hash
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, Mode
from gpuagent.domain.state import State


def node_annotations(state: State) -> dict[str, str]:
    """The desired annotations of the Node.

    Those for schedulers are not there until the agent has read the mode, the GPUs, their isolation and kubelet's
    allocations. So a restart keeps the last text: for schedulers, a node without GPUs is none of theirs.
    """
    annotations = known_gpus_annotation(state)
    if _is_read(state):
        annotations[NODE_GPUS_ANNOTATION] = node_gpus_text(published_gpus(state))
        annotations |= held_annotation(state)
    return annotations


def _is_read(state: State) -> bool:
    """Whether the agent knows what schedulers have to know."""
    if not state.node.mode_known or state.isolation.unreported:
        return False
    has_holdings = state.holdings.listed is not None
    has_gpus = state.gpus.driver_problem != NOT_READ
    return has_holdings and has_gpus


def published_gpus(state: State) -> NodeGpus:
    """The node's GPUs by the device lists, so that a scheduler and kubelet count the same units.

    There are none while the mode advertises no resource that schedulers place.
    """
    kinds = placed_kinds(state)
    gpus: tuple[NodeGpu, ...] = ()
    # At zero, kubelet would refuse every pod that a scheduler sends.
    if kinds and not at_zero(state):
        gpus = _node_gpus(state)
    links = ""
    if gpus and GPU_WHOLE in kinds:
        # Only in mode `topology` does a ConfigMap have the bandwidths.
        minors = [gpu.minor for gpu in gpus]
        links = links_hash(link_mbps(bandwidths(state), minors))
    policy = state.policy
    limits = [policy.max_pods_per_gpu]
    if state.layer.max_sharers is not None:
        limits.append(state.layer.max_sharers)
    return NodeGpus(
        gpus,
        unit_mib=policy.unit.mib,
        most_pods=min(limits),
        core_step=policy.core_step,
        both=policy.core_mem_both and state.node.mode is Mode.CORE_MEM,
        links=links,
    )


def _node_gpus(state: State) -> tuple[NodeGpu, ...]:
    """The GPUs by minor number, with the units that schedulers place."""
    units = placed_units(state)
    gpus = []
    for minor, uuid in _by_minor(state):
        gpus.append(_node_gpu(minor, units.get(uuid, {})))
    return tuple(gpus)


def _by_minor(state: State) -> list[tuple[int, str]]:
    """Minor number and UUID of each GPU. A GPU that the driver lists now may have the number of a lost one."""
    gpus = state.gpus.by_uuid
    listed = state.gpus.topology.gpus
    lost_first = sorted(gpus, key=lambda uuid: uuid in listed)
    by_minor = {}
    for uuid in lost_first:
        minor = gpus[uuid].minor
        by_minor[minor] = uuid
    return sorted(by_minor.items())


def _node_gpu(minor: int, blocks: Blocks) -> NodeGpu:
    """A GPU with its units on the device lists; one that is on none is in MIG mode, or not free for this mode."""
    counts = {name: block.offered for name, block in blocks.items()}
    is_healthy = all(block.healthy for block in blocks.values())
    return NodeGpu(
        minor,
        memory=counts.get(GPU_MEM, 0),
        core=counts.get(GPU_CORE, 0),
        whole=GPU_WHOLE in blocks,
        usable=bool(blocks) and is_healthy,
    )
