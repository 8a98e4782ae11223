"""Why a pod with GPUs in its limits waits, in the words that kube-scheduler shows of this scheduler."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE
from gpuscheduler.core.choose_gpus import fit
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.explain import words
from gpuscheduler.core.gpu_request import GpuRequest, RequestKind
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reasons import common_unit, memory_words, reasons
from gpuscheduler.core.reasons import words as amounts_in_words

_MOST_REASONS = 4
"""Different reasons of nodes in a sentence."""
_CLAIMS_MODE = "dra"


def share_reason(pod: PodFacts, usage: ClusterUsage, modes: Mapping[str, int]) -> str:
    """Why no node takes the pod; empty if one has room for it.

    Args:
        pod: that waits.
        usage: the nodes, and what pods use of them.
        modes: how many nodes with GPUs are in each mode.
    """
    request = pod.request
    if request.problem:
        return f"the pod {request.problem}"
    off = {name: pod.rules.obstacle(node.facts.site) for name, node in usage.nodes.items()}
    open_nodes = {name: node for name, node in usage.nodes.items() if not off[name]}
    if any(fit(request, node) for node in open_nodes.values()):
        return ""
    parts = list(_by_node(request, open_nodes, Counter(filter(None, off.values()))))
    parts += _without_resources(modes, usage)
    parts += _most_free(request, open_nodes)
    parts += _out(open_nodes.values())
    return f"wants {_wants(request, open_nodes)}: {'; '.join(parts)}"


def nodes_with_room(pod: PodFacts, usage: ClusterUsage) -> list[str]:
    """Names of the nodes that have room for the pod, and where it may be."""
    named = []
    for name, node in sorted(usage.nodes.items()):
        if not pod.rules.obstacle(node.facts.site) and fit(pod.request, node):
            named.append(name)
    return named


def _wants(request: GpuRequest, nodes: Mapping[str, NodeUsage]) -> str:
    is_of_one_gpu = request.gpus == 1
    if request.kind is RequestKind.WHOLE:
        return "a whole GPU" if is_of_one_gpu else f"{request.gpus} whole GPUs on one node"
    unit = common_unit(nodes.values())
    if len(request.groups) > 1:
        containers = sum(len(group.containers) for group in request.groups)
        amounts = amounts_in_words(request.apart, unit)
        return f"{amounts} for {containers} containers"
    of_each_gpu = request.need.over(request.gpus)
    amounts = amounts_in_words(of_each_gpu, unit)
    if is_of_one_gpu:
        return f"{amounts} on one GPU"
    return f"{amounts} on each of {request.gpus} GPUs of one node"


def _by_node(request: GpuRequest, nodes: Mapping[str, NodeUsage], off: Mapping[str, int]) -> Iterator[str]:
    """The reasons of nodes, each with their number; those first that come closest."""
    result = reasons(request, nodes, nodes, {})
    failed = Counter(result.failed.values())
    unresolvable = Counter(result.unresolvable.values())
    texts = [*failed.most_common(), *unresolvable.most_common()]
    texts += [(f"node(s) {reason}", count) for reason, count in off.items()]
    for text, count in texts[:_MOST_REASONS]:
        yield f"{count} {text}"


def _without_resources(modes: Mapping[str, int], usage: ClusterUsage) -> Iterator[str]:
    """That nodes serve claims only, or that there are no nodes with GPUs."""
    for_claims = modes.get(_CLAIMS_MODE, 0)
    if for_claims:
        yield f"{words.count_are(for_claims, 'node', 'is', 'are')} in mode dra, which serves claims only"
    elif not usage.nodes:
        yield f"no node has {GPU_MEM} or {GPU_WHOLE}"


def _most_free(request: GpuRequest, nodes: Mapping[str, NodeUsage]) -> Iterator[str]:
    """The GPU that has most of what a share wants."""
    if request.kind is RequestKind.WHOLE or not request.need.memory:
        return
    best: tuple[int, str, int] | None = None
    for name, node in sorted(nodes.items()):
        for position, _ in node.usable():
            free_mib = node.free[position].memory * (node.facts.unit_mib or 1)
            if free_mib > 0 and (best is None or free_mib > best[0]):
                best = free_mib, name, position
    if best is None:
        return
    _, name, position = best
    node = nodes[name]
    free = memory_words(node.free[position].memory, node.facts.unit_mib)
    yield f"most free is {free}, on {name} GPU {node.facts.gpus.gpus[position].minor}"


def _out(nodes: Collection[NodeUsage]) -> Iterator[str]:
    """The GPUs of nodes that are ready, and take no pod."""
    out: list[str] = []
    for node in nodes:
        if not node.facts.unready:
            out += [f"{node.facts.name} GPU {gpu.minor}" for gpu in node.facts.gpus.gpus if not gpu.usable]
    if out:
        count = words.count_are(len(out), "GPU", "is", "are")
        yield f"{count} unhealthy, fenced or held in another mode ({words.some(sorted(out))})"
