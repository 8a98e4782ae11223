"""Why a pod waits: one reason for each node, in few different texts, because kube-scheduler counts equal ones.

Its message is then ``0/40 nodes are available: 3 40 of aliyun.com/gpu-mem wanted on one GPU, at most 36 are free.``
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.choose_gpus import keeps_rules
from gpuscheduler.core.gpu_request import Amounts, GpuRequest, RequestKind
from gpuscheduler.core.node_usage import NodeUsage

NO_GPUS = "no GPUs of this scheduler"


@dataclass(slots=True)
class Reasons:
    """Node name to reason: where preemption may help, and where it cannot."""

    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)


def reasons(
    request: GpuRequest,
    names: Iterable[str],
    nodes: Mapping[str, NodeUsage],
    resting: Mapping[str, str],
) -> Reasons:
    """The reasons of all nodes on which the request does not fit.

    Args:
        request: of the pod.
        names: of the nodes that kube-scheduler asks about.
        nodes: with their users.
        resting: node name to why the scheduler passes it over at the moment.
    """
    result = Reasons()
    short: list[str] = []
    never: dict[int, str] = {}
    for name in names:
        node = nodes.get(name)
        if node is None or not node.facts.gpus.gpus:
            result.unresolvable[name] = NO_GPUS
            continue
        # Nodes of one kind share this value (see `node_facts`), and with it the reason.
        kind = id(node.facts.gpus)
        why = never.get(kind)
        if why is None:
            why = _never(request, node)
            never[kind] = why
        if why:
            result.unresolvable[name] = why
        elif name in resting:
            result.failed[name] = resting[name]
        else:
            short.append(name)
    # kube-scheduler counts equal texts, so all of these nodes get the same one.
    text = _short(request, [nodes[name] for name in short])
    result.failed.update(dict.fromkeys(short, text))
    return result


def main_reason(
    request: GpuRequest,
    names: Iterable[str],
    nodes: Mapping[str, NodeUsage],
) -> str:
    """The reason of most nodes among those that come closest to serving the request."""
    result = reasons(request, names, nodes, {})
    texts = list(result.failed.values())
    if not texts:
        texts = [text for text in result.unresolvable.values() if text != NO_GPUS]
    if not texts:
        return NO_GPUS
    counts = Counter(texts)
    [(most_common, _)] = counts.most_common(1)
    return most_common


def short_in_all(
    requests: Iterable[GpuRequest],
    units: Amounts,
    whole: int,
) -> tuple[str, int, int] | None:
    """A resource of which requests want more than all nodes have, with both amounts; None if there is none."""
    wanted: Counter[str] = Counter()
    for request in requests:
        if request.kind is RequestKind.WHOLE:
            wanted[GPU_WHOLE] += request.gpus
        wanted[GPU_MEM] += request.need.memory
        wanted[GPU_CORE] += request.need.core
    there = {
        GPU_WHOLE: whole,
        GPU_MEM: units.memory,
        GPU_CORE: units.core,
    }
    for resource, in_all in there.items():
        if wanted[resource] > in_all:
            return resource, wanted[resource], in_all
    return None


def _never(request: GpuRequest, node: NodeUsage) -> str:
    """Why the node cannot serve the request even if no other pod is on it; empty if it can."""
    gpus = [gpu for gpu in node.facts.gpus.gpus if gpu.usable]
    if request.kind is RequestKind.WHOLE:
        whole = sum(gpu.whole for gpu in gpus)
        if whole >= request.gpus:
            return ""
        return f"fewer than {request.gpus} usable GPUs for {GPU_WHOLE}"
    if not keeps_rules(request, node):
        return f"amounts that its mode does not serve ({GPU_MEM} and {GPU_CORE} together, in its step)"
    # Groups may be on different GPUs, so a GPU need not have more than the largest of them needs.
    need = max((group.need for group in request.groups), default=request.need)
    largest = need.over(request.gpus)
    fitting = 0
    for gpu in gpus:
        units = Amounts(gpu.memory, gpu.core)
        fitting += largest.within(units)
    if fitting >= request.gpus:
        return ""
    lead = "no GPU has" if request.gpus == 1 else f"fewer than {request.gpus} GPUs have"
    return f"{lead} {words(largest)} in all"


def _short(request: GpuRequest, nodes: Iterable[NodeUsage]) -> str:
    """The reason where too little is free: the same text for all nodes."""
    if request.kind is RequestKind.WHOLE:
        unused = max((len(node.room.unused) for node in nodes), default=0)
        return f"{request.gpus} of {GPU_WHOLE} wanted, at most {unused} are free on one node"
    each = request.need.over(request.gpus)
    # On one GPU of one node, which may be another one for memory than for compute.
    most = [node.room.most for node in nodes]
    free = []
    if each.memory:
        memory = max((units.memory for units in most), default=0)
        free.append(f"{memory}")
    if each.core:
        core = max((units.core for units in most), default=0)
        free.append(f"{core} %")
    most_free = " and ".join(free)
    spread = f" (label {GPU_COUNT_LABEL})" if request.gpus > 1 else ""
    where = f"{_gpus(request)}{spread}"
    wanted = words(each)
    return f"{wanted} wanted on {where}, at most {most_free} free on one GPU"


def _gpus(request: GpuRequest) -> str:
    """The GPUs that the request wants, in words."""
    if request.gpus > 1:
        return f"each of {request.gpus} GPUs"
    if len(request.groups) <= 1:
        return "one GPU"
    containers = sum(len(group.containers) for group in request.groups)
    return f"GPUs of one node for {containers} containers"


def words(amounts: Amounts) -> str:
    """Amounts in messages: ``8 of aliyun.com/gpu-mem and 30 of aliyun.com/gpu-core.percentage``."""
    parts = []
    if amounts.memory:
        parts.append(f"{amounts.memory} of {GPU_MEM}")
    if amounts.core:
        parts.append(f"{amounts.core} of {GPU_CORE}")
    return " and ".join(parts)
