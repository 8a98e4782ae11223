"""Nodes of several kinds, as the agent leaves them: amounts, labels, and the annotation that names their GPUs."""

from collections.abc import Mapping, Sequence

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT, GPU_MEM, GPU_WHOLE, MODE_LABEL, PLACEMENT_LABEL
from tests.e2e.cluster.manifests import Json

MODEL_LABEL = "aliyun.accelerator/nvidia_name"


def share_node(name: str, gpus: int = 8, units: int = 80, **labels: str) -> Json:
    """Equal GPUs that are shared by memory."""
    return node(name, [NodeGpu(n, memory=units) for n in range(gpus)], {MODE_LABEL: "cgpu"} | labels)


def core_node(name: str, gpus: int = 4, units: int = 24, **labels: str) -> Json:
    """Equal GPUs that are shared by memory and compute."""
    found = [NodeGpu(n, memory=units, core=100) for n in range(gpus)]
    return node(name, found, {MODE_LABEL: "core_mem"} | labels)


def whole_node(name: str, gpus: int = 8, **labels: str) -> Json:
    """GPUs that are allocated whole."""
    return node(name, [NodeGpu(n, whole=True) for n in range(gpus)], {MODE_LABEL: "topology"} | labels)


def broken_node(name: str) -> Json:
    """GPUs with a gap in their numbers, one of which is out of service. Its amounts count the healthy ones."""
    gpus = [NodeGpu(n, memory=40, usable=n != 3) for n in (0, 1, 3, 5, 6)]
    return node(name, gpus, {MODE_LABEL: "cgpu", PLACEMENT_LABEL: "spread"})


def silent_node(name: str, gpus: int = 4, units: int = 32) -> Json:
    """As other plugins leave a node: amounts, and no annotation."""
    made = share_node(name, gpus, units)
    del made["metadata"]["annotations"][NODE_GPUS_ANNOTATION]
    return made


def node(name: str, gpus: Sequence[NodeGpu], labels: Mapping[str, str]) -> Json:
    """A node with these GPUs; the API server's watch shows the annotation and the amounts together."""
    usable = [gpu for gpu in gpus if gpu.usable]
    amounts = {
        GPU_MEM: sum(gpu.memory for gpu in usable),
        GPU_CORE: sum(gpu.core for gpu in usable),
        GPU_WHOLE: sum(gpu.whole for gpu in usable),
        GPU_COUNT: len(gpus),
        "cpu": 64,
        "memory": "512Gi",
        "pods": 250,
    }
    quantities = {resource: str(amount) for resource, amount in amounts.items() if amount}
    text = node_gpus_text(NodeGpus(tuple(gpus), both=any(gpu.core for gpu in gpus)))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, MODEL_LABEL: "A100", **labels},
            "annotations": {NODE_GPUS_ANNOTATION: text},
        },
        "status": {"capacity": quantities, "allocatable": quantities},
    }
