"""Why a pod waits: one reason for each node, in few different texts, because kube-scheduler counts equal ones.

It writes the number of nodes before each reason. So a reason reads on from a number, as those of Kubernetes do:
``0/40 nodes are available: 3 node(s) had at most 36 GiB free on one GPU, 40 GiB wanted.``
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpuagent.domain.scheduling.node_gpus import NodeGpu
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.choose_gpus import keeps_rules
from gpuscheduler.core.gpu_request import Amounts, GpuRequest, RequestKind
from gpuscheduler.core.node_facts import NodeFacts
from gpuscheduler.core.node_usage import NodeUsage

NO_GPUS = "node(s) had no GPUs of this scheduler"
MIB_A_GIB = 1024


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
    short: dict[int, list[str]] = {}
    never: dict[object, str] = {}
    for name in names:
        node = nodes.get(name)
        if node is None or not node.facts.gpus.gpus:
            result.unresolvable[name] = NO_GPUS
            continue
        # Nodes of one kind have the same reason.
        kind = node.facts.kind
        why = never.get(kind)
        if why is None:
            why = _never(request, node)
            never[kind] = why
        if why:
            result.unresolvable[name] = why
        elif name in resting:
            result.failed[name] = resting[name]
        else:
            of_unit = short.setdefault(node.facts.unit_mib, [])
            of_unit.append(name)
    for unit_mib, of_unit in short.items():
        # kube-scheduler counts equal texts, so all of these nodes get the same one.
        text = _short(request, [nodes[name] for name in of_unit], unit_mib)
        result.failed.update(dict.fromkeys(of_unit, text))
    return result


def problem_words(request: GpuRequest) -> str:
    """The reason of a request that no node can serve."""
    return f"node(s) cannot serve a pod that {request.problem}"


def gave_up_words(request: GpuRequest, tries: int) -> str:
    """The reason where the search for GPUs ended before it was certain that there are none."""
    containers = sum(len(group.containers) for group in request.groups)
    return f"node(s) had no room found in {tries} tries for {containers} containers that need several GPUs"


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
    facts = node.facts
    if facts.unready:
        return f"node(s) {facts.unready}"
    if request.kind is RequestKind.WHOLE:
        return _never_whole(request, facts)
    against_mode = _not_of_mode(request, node)
    if against_mode:
        return against_mode
    # Groups may be on different GPUs, so a GPU need not have more than the largest of them needs.
    largest = _largest(request)
    large_enough = [gpu for gpu in facts.gpus.gpus if largest.within(Amounts(gpu.memory, gpu.core))]
    which = f"with {words(largest, facts.unit_mib)}"
    return _fewer(request.gpus, large_enough, which)


def _never_whole(request: GpuRequest, facts: NodeFacts) -> str:
    whole = [gpu for gpu in facts.gpus.gpus if gpu.whole]
    if not whole:
        return f"node(s) give no whole GPUs{_by_mode(facts)}"
    return _fewer(request.gpus, whole, "")


def _not_of_mode(request: GpuRequest, node: NodeUsage) -> str:
    """That the node's mode does not serve shares, or none in such amounts; empty if it does."""
    facts = node.facts
    gpus = facts.gpus.gpus
    if request.need.memory and not any(gpu.memory for gpu in gpus):
        return f"node(s) share no GPU memory{_by_mode(facts)}"
    if request.need.core and not any(gpu.core for gpu in gpus):
        return f"node(s) share no compute of GPUs{_by_mode(facts)}"
    if keeps_rules(request, node):
        return ""
    step = facts.gpus.core_step
    if request.core_divisor % step:
        return f"node(s) share compute of GPUs in steps of {step} %"
    return f"node(s) share memory and compute of GPUs only together{_by_mode(facts)}"


def _fewer(wanted: int, gpus: Collection[NodeGpu], which: str) -> str:
    """That too few of these GPUs are usable, or that there are too few; empty if there are enough."""
    usable = sum(gpu.usable for gpu in gpus)
    if usable >= wanted:
        return ""
    words = ["usable"] if len(gpus) >= wanted else []
    words.append("GPU" if wanted == 1 else "GPUs")
    if which:
        words.append(which)
    number = "no" if wanted == 1 else f"fewer than {wanted}"
    return f"node(s) had {number} {' '.join(words)}"


def _by_mode(facts: NodeFacts) -> str:
    """That the mode is why, if it is known."""
    return f": their mode is {facts.mode}" if facts.mode else ""


def _largest(request: GpuRequest) -> Amounts:
    """The most that a group of containers needs on one GPU."""
    need = max((group.need for group in request.groups), default=request.need)
    return need.over(request.gpus)


def _short(request: GpuRequest, nodes: Collection[NodeUsage], unit_mib: int) -> str:
    """The reason where too little is free: the same text for all nodes."""
    if request.kind is RequestKind.WHOLE:
        unused = max((len(node.room.unused) for node in nodes), default=0)
        return f"node(s) had at most {unused} unused GPUs, {request.gpus} wanted"
    each = _largest(request)
    # On one GPU of one node, which may be another one for memory than for compute.
    most = [node.room.most for node in nodes]
    memory = max((units.memory for units in most), default=0)
    core = max((units.core for units in most), default=0)
    if memory < each.memory:
        free = memory_words(memory, unit_mib)
        return f"node(s) had at most {free} free on one GPU, {memory_words(each.memory, unit_mib)} wanted"
    if core < each.core:
        return f"node(s) had at most {core} % of compute free on one GPU, {each.core} % wanted"
    if len(request.groups) > 1:
        containers = sum(len(group.containers) for group in request.groups)
        return f"node(s) had no room for {containers} containers that want {words(request.apart, unit_mib)} together"
    if request.gpus > 1:
        roomy = max((_gpus_with(each, node, request.gpus) for node in nodes), default=0)
        free = f"{words(each, unit_mib)} free"
        return f"node(s) had at most {roomy} GPUs with {free}, {request.gpus} wanted (label {GPU_COUNT_LABEL})"
    return f"node(s) had no GPU with {words(each, unit_mib)} free"


def _gpus_with(each: Amounts, node: NodeUsage, wanted: int) -> int:
    """How many GPUs of the node have as much free; fewer than `wanted`, as the node is short of them."""
    # Most nodes are too full for a single one, and thousands are asked.
    if not each.within(node.room.most):
        return 0
    roomy = sum(each.within(node.free[position]) for position, _ in node.usable())
    return min(roomy, wanted - 1)


def words(amounts: Amounts, unit_mib: int) -> str:
    """Amounts in messages: ``8 GiB and 30 % of compute``."""
    parts = []
    if amounts.memory:
        parts.append(memory_words(amounts.memory, unit_mib))
    if amounts.core:
        parts.append(f"{amounts.core} % of compute")
    return " and ".join(parts)


def memory_words(units: int, unit_mib: int) -> str:
    """Units of memory in messages: ``8 GiB``; ``8 of aliyun.com/gpu-mem`` if the size of a unit is 0, not known."""
    if not unit_mib:
        return f"{units} of {GPU_MEM}"
    mib = units * unit_mib
    if mib % MIB_A_GIB == 0:
        return f"{mib // MIB_A_GIB} GiB"
    is_short_in_gib = mib > MIB_A_GIB and mib % 256 == 0
    return f"{mib / MIB_A_GIB} GiB" if is_short_in_gib else f"{mib} MiB"


def common_unit(nodes: Iterable[NodeUsage]) -> int:
    """MiB of one unit of memory; 0 if the nodes have different ones, or it is not known."""
    units = {node.facts.unit_mib for node in nodes}
    return units.pop() if len(units) == 1 else 0
