"""What would have to change for a job whose pods do not all fit: a sentence for its pods."""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.choose_gpus import fits
from gpuscheduler.core.constraints.admission import Admission
from gpuscheduler.core.constraints.neighborhood import Neighborhood
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.jobs.places.groups import Group, Passed, groups_of
from gpuscheduler.core.jobs.places.rooms import look_tries
from gpuscheduler.core.jobs.places.trial import Places
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts

MOST_OBSTACLES = 4
"""Different obstacles that are named, those of the most nodes."""
MOST_GROUPS = 3
"""Groups of pods without a place that are looked at: a job may have as many as pods."""
_REFUSED = "were refused by kube-scheduler"
_GPUS = "had too little free of their GPUs"
_IN_GPUS = {GPU_CORE, GPU_MEM, GPU_WHOLE, "pods"}
"""Resources that are said in other words, or that every pod needs."""


def shortage(  # noqa: PLR0913 (what a plan is made of)
    pods: Collection[PodFacts],
    places: Places,
    nodes: Mapping[str, NodeUsage],
    beside: Neighborhood,
    without: Mapping[str, Passed],
    tries: Tries,
) -> str:
    """What the pods without a place need, and what keeps them off the nodes.

    Empty if all have one, or if GPUs alone are short on the nodes that kube-scheduler accepts: then the reason of the
    GPUs says more.

    Args:
        pods: of the plan.
        places: of those that have one.
        nodes: by name, with what is in use besides these pods.
        beside: all nodes and the pods on them.
        without: UID to the nodes that kube-scheduler does not accept for the pod.
        tries: that it may take.
    """
    if len(places) == len(pods):
        return ""
    groups, admission = groups_of(pods, without, beside, tries)
    filled = _with_places(groups, places, nodes, admission)
    short = [group for group in groups if any(pod.uid not in places for pod in group.pods)]
    for group in short[:MOST_GROUPS]:
        waiting = [pod for pod in group.pods if pod.uid not in places]
        if not tries.spend(look_tries(len(nodes), len(group.requests.others))):
            break
        obstacles = _obstacles(group, filled, admission)
        # Without an obstacle, a node takes one more pod, and then has no room for one of another group.
        del obstacles[""]
        if obstacles.keys() <= {_GPUS, _REFUSED}:
            continue
        example = waiting[0].name.name
        needs = _needs(group)
        why = _words(obstacles)
        return f"{len(waiting)} more like {example} need {needs} each on one node: of {len(nodes)} nodes, {why}"
    return ""


def _with_places(
    groups: Collection[Group],
    places: Places,
    nodes: Mapping[str, NodeUsage],
    admission: Admission,
) -> dict[str, NodeUsage]:
    """The nodes with the pods that have a place, which the admission counts, too."""
    filled = dict(nodes)
    copied: set[str] = set()
    for group in groups:
        for pod in group.pods:
            if pod.uid not in places:
                continue
            name, choice = places[pod.uid]
            if name not in copied:
                filled[name] = filled[name].copy()
                copied.add(name)
            filled[name].use(pod.uid, choice.used)
            filled[name].used += pod.requests
            admission.place(group.kind, name)
    return filled


def _obstacles(group: Group, nodes: Mapping[str, NodeUsage], admission: Admission) -> Counter[str]:
    """What keeps a pod of a group off nodes, each with the number of nodes; empty for those that take it."""
    obstacles: Counter[str] = Counter()
    tries = Tries()
    on_gpus: dict[Hashable, str] = {}
    for name, node in nodes.items():
        why = admission.obstacle(group.kind, name) or _short(group, node)
        if not why and name in group.passed:
            why = _REFUSED
        if not why:
            alike = node.alike()
            if alike not in on_gpus:
                on_gpus[alike] = "" if fits(group.request, node, tries) else _GPUS
            why = on_gpus[alike]
        obstacles[why] += 1
    return obstacles


def _short(group: Group, node: NodeUsage) -> str:
    """Which resource is short on a node; empty if none is."""
    short = group.requests.short_in(node.facts.allocatable, node.used)
    if short in _IN_GPUS - {"pods"}:
        return _GPUS
    if short == "pods":
        return "had as many pods as they take"
    return f"had less than {group.requests.words(short)} free" if short else ""


def _needs(group: Group) -> str:
    """What a pod of a group asks for."""
    request = group.request
    needs: list[str] = []
    if request.kind is RequestKind.WHOLE:
        needs.append(f"{request.gpus} GPU" if request.gpus == 1 else f"{request.gpus} GPUs")
    else:
        needs.append("its share of GPUs")
    others = sorted(group.requests.names() - _IN_GPUS)
    needs += [group.requests.words(name) for name in others]
    *first, last = needs
    return f"{', '.join(first)} and {last}" if first else last


def _words(obstacles: Counter[str]) -> str:
    """The obstacles, and how many nodes each leaves out."""
    by_name = Counter(dict(sorted(obstacles.items())))
    # Equal numbers stay in the order of the names.
    most_common = by_name.most_common(MOST_OBSTACLES)
    return ", ".join(f"{count} {why}" for why, count in most_common)
