"""Why a pod waits: one reason for each node, in few different texts, because kube-scheduler counts equal ones.

Its message is then ``0/40 nodes are available: 3 40 of aliyun.com/gpu-mem wanted on one GPU, at most 36 are free.``
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.fit import keeps_rules
from gpuscheduler.core.gpu_request import Amounts, GpuRequest, RequestKind
from gpuscheduler.core.node_usage import NodeUsage

NO_GPUS = "no GPUs of this scheduler"


@dataclass(slots=True)
class Reasons:
    """Node name to reason: where preemption may help, and where it cannot."""

    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)


def reasons(
    request: GpuRequest, names: Iterable[str], nodes: Mapping[str, NodeUsage], resting: Mapping[str, str]
) -> Reasons:
    """The reasons of all nodes on which the request does not fit.

    Args:
        request: of the pod.
        names: of the nodes that kube-scheduler asks about.
        nodes: with their users.
        resting: node name to why the scheduler passes it over at the moment.
    """
    found = Reasons()
    short: list[str] = []
    never: dict[int, str] = {}
    for name in names:
        if (node := nodes.get(name)) is None or not node.facts.gpus.gpus:
            found.unresolvable[name] = NO_GPUS
            continue
        alike = id(node.facts.gpus)  # nodes of one kind share this value, see `node_facts`
        if (why := never.get(alike)) is None:
            why = never[alike] = _never(request, node)
        if why:
            found.unresolvable[name] = why
        elif name in resting:
            found.failed[name] = resting[name]
        else:
            short.append(name)
    text = _short(request, [nodes[name] for name in short])
    found.failed.update(dict.fromkeys(short, text))
    return found


def main_reason(request: GpuRequest, names: Iterable[str], nodes: Mapping[str, NodeUsage]) -> str:
    """The reason of most nodes among those that come closest to serving the request."""
    found = reasons(request, names, nodes, {})
    texts = [text for text in found.unresolvable.values() if text != NO_GPUS]
    return Counter([*found.failed.values()] or texts or [NO_GPUS]).most_common(1)[0][0]


def short_in_all(requests: Iterable[GpuRequest], units: Amounts, whole: int) -> tuple[str, int, int] | None:
    """A resource of which requests want more than all nodes have, with both amounts; None if there is none."""
    wanted: Counter[str] = Counter()
    for request in requests:
        wanted[GPU_WHOLE] += request.gpus if request.kind is RequestKind.WHOLE else 0
        wanted[GPU_MEM] += request.need.memory
        wanted[GPU_CORE] += request.need.core
    there = {GPU_WHOLE: whole, GPU_MEM: units.memory, GPU_CORE: units.core}
    return next(((name, amount, there[name]) for name, amount in wanted.items() if amount > there[name]), None)


def _never(request: GpuRequest, node: NodeUsage) -> str:
    """Why the node cannot serve the request even if no other pod is on it; empty if it can."""
    gpus = [gpu for gpu in node.facts.gpus.gpus if gpu.usable]
    if request.kind is RequestKind.WHOLE:
        whole = sum(gpu.whole for gpu in gpus)
        return "" if whole >= request.gpus else f"fewer than {request.gpus} usable GPUs for {GPU_WHOLE}"
    if not keeps_rules(request, node):
        return f"amounts that its mode does not serve ({GPU_MEM} and {GPU_CORE} together, in its step)"
    largest = max((group.need for group in request.groups), default=request.need).over(request.gpus)
    fitting = sum(largest.within(Amounts(gpu.memory, gpu.core)) for gpu in gpus)
    if fitting >= request.gpus:
        return ""
    lead = "no GPU has" if request.gpus == 1 else f"fewer than {request.gpus} GPUs have"
    return f"{lead} {words(largest)} in all"


def _short(request: GpuRequest, nodes: Iterable[NodeUsage]) -> str:
    """The reason where too little is free: the same text for all nodes."""
    if request.kind is RequestKind.WHOLE:
        unused = max((len(node.room.unused) for node in nodes), default=0)
        return f"{request.gpus} of {GPU_WHOLE} wanted, at most {unused} are free on one node"
    free = [node.room.most for node in nodes]
    memory = max((most.memory for most in free), default=0)
    core = max((most.core for most in free), default=0)
    each = request.need.over(request.gpus)
    most = " and ".join([f"{memory}"] * bool(each.memory) + [f"{core} %"] * bool(each.core))
    spread = f" (label {GPU_COUNT_LABEL})" if request.gpus > 1 else ""
    return f"{words(each)} wanted on {_gpus(request)}{spread}, at most {most} free on one GPU"


def _gpus(request: GpuRequest) -> str:
    if request.gpus > 1:
        return f"each of {request.gpus} GPUs"
    containers = sum(len(group.containers) for group in request.groups)
    return f"GPUs of one node for {containers} containers" if len(request.groups) > 1 else "one GPU"


def words(amounts: Amounts) -> str:
    """Amounts in messages: ``8 of aliyun.com/gpu-mem and 30 of aliyun.com/gpu-core.percentage``."""
    parts = [f"{amounts.memory} of {GPU_MEM}"] * bool(amounts.memory)
    return " and ".join([*parts, *[f"{amounts.core} of {GPU_CORE}"] * bool(amounts.core)])
