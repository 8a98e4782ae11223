"""Fragmentation: enough is free in all, and no GPU has enough. Which amounts count, and what would help a pod."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuscheduler.core.calls import Report
from gpuscheduler.core.gpu_request import NOTHING, Amounts, GpuRequest, RequestKind
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reasons import common_unit, words
from gpuscheduler.core.single_pods.victims import victims

HOUR_S = 3600.0
"""How long the amounts of a pod count as a demand."""
MOST_DEMANDS = 256
"""How many different amounts are kept, the latest ones."""
ADVISE_AGAIN_S = 600.0
"""After this time, another Event advises pods of one owner that ask for the same."""
MOST_NAMED = 3
"""Pods of its own namespace that an Event names."""
_ANY_PRIORITY = 1 << 62


class Fragmentation:
    """The demands of the last hour, and the pods that were advised."""

    def __init__(self) -> None:
        self._asked: OrderedDict[Amounts, float] = OrderedDict()
        self._advised: dict[tuple[str, str, GpuRequest], float] = {}

    def asked(self, request: GpuRequest, now: float) -> None:
        """Keep what a pod asks for on one GPU."""
        for group in request.groups:
            need = group.need.over(request.gpus)
            self._asked[need] = now
            # The oldest comes first, and is the first to be forgotten.
            self._asked.move_to_end(need)
        while len(self._asked) > MOST_DEMANDS:
            self._asked.popitem(last=False)

    def demands(self, now: float) -> list[Amounts]:
        """The least amounts on one GPU that pods of the last hour asked for: each other demand needs more."""
        recent = [need for need, at in self._asked.items() if now - at < HOUR_S]
        least: list[Amounts] = []
        # In ascending order, no demand needs less of memory than one before it.
        for need in sorted(recent):
            has_smaller = any(smaller.within(need) for smaller in least)
            if not has_smaller:
                least.append(need)
        return least

    def advise(
        self,
        pod: PodFacts,
        nodes: Iterable[NodeUsage],
        pods: Mapping[str, PodFacts],
        now: float,
    ) -> Report | None:
        """A warning for a pod that fits on none of `nodes`; None if they have too little, or its owner was advised."""
        # A tenant may name the controller of another tenant's pods, so the namespace counts too.
        key = pod.name.namespace, pod.owner or pod.uid, pod.request
        until = self._advised.get(key, now)
        if now < until:
            return None
        is_whole = pod.request.kind is RequestKind.WHOLE
        text = _whole(pod.request, nodes) if is_whole else _share(pod, nodes, pods)
        if not text:
            return None
        # Only those that still keep an Event back stay, so that the table does not grow for ever.
        self._advised = {advised: until for advised, until in self._advised.items() if now < until}
        self._advised[key] = now + ADVISE_AGAIN_S
        return Report(pod.name, pod.uid, "GPUsFragmented", text)


def _whole(request: GpuRequest, nodes: Iterable[NodeUsage]) -> str:
    """What nodes together have for a request for whole GPUs; empty if it is not enough."""
    counts = [len(node.room.unused) for node in nodes]
    unused = [count for count in counts if count]
    total = sum(unused)
    if total < request.gpus:
        return ""
    wanted = f"{request.gpus} whole GPUs wanted on one node"
    free = f"{total} are unused on {len(unused)} nodes, at most {max(unused)} on one"
    return f"{wanted}: {free}. A job of several pods can use them"


def _share(
    pod: PodFacts,
    nodes: Iterable[NodeUsage],
    pods: Mapping[str, PodFacts],
) -> str:
    """What nodes together have for a request for a share, and which pods hold it up; empty if it is not enough."""
    request = pod.request
    if len(request.groups) > 1:
        # Its containers may be on several GPUs.
        return ""
    roomy = [node for node in nodes if node.room.gpus]
    if not roomy:
        return ""
    total = sum((node.room.total for node in roomy), NOTHING)
    if not request.need.within(total):
        return ""
    roomiest = max(roomy, key=_roominess)
    largest = roomiest.room.largest
    each = request.need.over(request.gpus)
    gpus = sum(node.room.gpus for node in roomy)
    unit_mib = common_unit(roomy)
    wanted = f"{words(each, unit_mib)} wanted on one GPU"
    free = f"{words(total, unit_mib)} are free on {gpus} GPUs of {len(roomy)} nodes"
    text = f"{wanted}: {free}, at most {words(largest, unit_mib)} on one"
    # Whatever their priority: the owner learns what the pod waits for, and nothing is evicted.
    above_all = replace(pod, priority=_ANY_PRIORITY)
    in_the_way = victims(above_all, roomiest, pods)
    if not in_the_way:
        return text
    pods_in_words = named([pods[uid] for uid in in_the_way], pod.name.namespace)
    return f"{text}. The pod fits on node {roomiest.facts.name} without {pods_in_words}"


def _roominess(node: NodeUsage) -> tuple[Amounts, str]:
    """By the GPU that has most, then by name, so that the advice stays the same while nothing changes."""
    return node.room.largest, node.facts.name


def named(pods: Sequence[PodFacts], namespace: str) -> str:
    """These pods, for an Event in `namespace`: its readers need not know the names of others' pods."""
    names = [str(pod.name) for pod in pods if pod.name.namespace == namespace]
    names.sort()
    parts = names[:MOST_NAMED]
    unnamed = len(names) - len(parts)
    if unnamed:
        parts.append(f"{unnamed} more")
    others = len(pods) - len(names)
    if others:
        plural = "s" if others > 1 else ""
        parts.append(f"{others} pod{plural} of other namespaces")
    *first, last = parts
    if not first:
        return last
    return f"{', '.join(first)} and {last}"
