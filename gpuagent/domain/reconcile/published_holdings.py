"""What the agent publishes of pods on its Node: what they hold, if their annotations do not say it.

Authors of pods can change annotations, and cannot change Nodes. So a scheduler takes the Node's word before that of a
pod's annotations. A pod whose annotations once said something else stays published until it is gone: then a tenant who
changes them again and again causes no further write of the Node.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from gpuagent.domain.certain_holdings import Amounts, PodHeld, certain, changed_pods
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.annotations import gpu_names
from gpuagent.domain.pods.json_values import mapping_at
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.scheduling.decision import ContainerUnits, Ignored, decided_units, for_another_pod
from gpuagent.domain.scheduling.held_gpus import HELD_GPUS_ANNOTATION, HeldGpu, PodsHeld, held_gpus, held_gpus_text
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, GROUP_ANNOTATION
from gpuagent.domain.state import State

GpusByUuid = Mapping[str, Gpu]
UnitsByMinor = dict[int, int]
UnitsByPosition = dict[tuple[str, int], UnitsByMinor]
"""Resource and position in `spec.containers` to minor number to units."""


def with_published_pods(before: State, after: State) -> PodsHeld:
    """The pods to publish, by UID, in the order in which they came."""
    former = after.published_pods
    knows_holdings = after.holdings.listed is not None
    if not knows_holdings or not after.pods.known:
        return former
    # The Node still shows what a former run of the agent has published.
    by_former_run = _on_node(after) - former.keys()
    has_same_pods = before.pods.seen is after.pods.seen
    has_changed = not has_same_pods or not after.same_allocations(before)
    if not has_changed and not by_former_run:
        return former
    gpus = after.gpus.by_uuid
    living_uids = after.pods.living_uids
    published = {uid: held_gpus for uid, held_gpus in former.items() if uid in living_uids}
    pods = _pods_to_judge(before, after, by_former_run)
    for held in certain(after, pods):
        uid = held.pod.uid
        stays_published = uid in former or uid in by_former_run
        if stays_published or not is_in_annotations(held, gpus):
            published[uid] = _gpus(held, gpus)
    # The same object, so that `step` sees that nothing has changed.
    return former if published == former else published


def _pods_to_judge(before: State, after: State, by_former_run: Collection[str]) -> list[Pod]:
    """The pods that have changed, and those that a former run has published (by UID)."""
    pods = changed_pods(after, before)
    changed_uids = {pod.uid for pod in pods}
    for pod in after.pods.seen:
        if pod.uid in by_former_run and pod.uid not in changed_uids:
            pods.append(pod)
    return pods


def held_annotation(state: State) -> dict[str, str]:
    """The annotation of the Node. There is none until the agent has read the pods, so the last text stays."""
    if not state.pods.known:
        return {}
    return {HELD_GPUS_ANNOTATION: held_gpus_text(state.published_pods)}


def is_in_annotations(held: PodHeld, gpus: GpusByUuid) -> bool:
    """Whether the pod's annotations, read as a scheduler reads them, say just what the pod holds."""
    whole = _by_minor(held.of(GPU_WHOLE), gpus)
    if whole:
        return _is_group(held.pod, whole)
    core_resource = GPU_CORE if held.of(GPU_CORE) else None
    decided = decided_units(held.pod, GPU_MEM, core_resource, {})
    if decided is None or isinstance(decided, Ignored):
        return False
    _, tables = decided
    held_by_position = {}
    for position, amounts in held.containers.items():
        held_by_position[position] = _by_minor(amounts, gpus)
    if _by_position(held.pod, tables) != held_by_position:
        return False
    if not any(held.unnumbered.values()):
        return True
    # No annotation can name what sidecars and init containers hold. It follows if the pod is on its own GPUs only.
    memory = _by_minor(held.of(GPU_MEM), gpus)
    core = _by_minor(held.of(GPU_CORE), gpus)
    minors = {*memory, *core}
    wanted_count = held.pod.gpu_count or 1
    return len(minors) == wanted_count


def _is_group(pod: Pod, minors: Iterable[int]) -> bool:
    """Whether the annotation of whole GPUs names exactly these, and is this pod's own."""
    names = gpu_names(pod.annotations, GROUP_ANNOTATION)
    if not isinstance(names, tuple) or for_another_pod(pod):
        return False
    texts = {str(minor) for minor in minors}
    return set(names) == texts


def _by_position(pod: Pod, tables: Mapping[str, ContainerUnits]) -> UnitsByPosition:
    """The decided units of each container."""
    positions = {}
    for position, container in enumerate(pod.app_containers):
        positions[container.name] = position
    units_of: UnitsByPosition = {}
    for resource, containers in tables.items():
        for name, units in containers.items():
            if units:
                units_of[resource, positions[name]] = units
    return units_of


def _gpus(held: PodHeld, gpus: GpusByUuid) -> tuple[HeldGpu, ...]:
    memory = _by_minor(held.of(GPU_MEM), gpus)
    core = _by_minor(held.of(GPU_CORE), gpus)
    whole = _by_minor(held.of(GPU_WHOLE), gpus)
    minors = sorted({*memory, *core, *whole})
    held_gpus_of_pod = []
    for minor in minors:
        gpu = HeldGpu(
            minor,
            memory=memory.get(minor, 0),
            core=core.get(minor, 0),
            whole=minor in whole,
        )
        held_gpus_of_pod.append(gpu)
    return tuple(held_gpus_of_pod)


def _by_minor(amounts: Amounts, gpus: GpusByUuid) -> UnitsByMinor:
    """Minor number to units, of all kinds together."""
    total: UnitsByMinor = {}
    for (uuid, _), units in amounts.items():
        minor = gpus[uuid].minor
        before = total.get(minor, 0)
        total[minor] = before + units
    return total


def _on_node(state: State) -> frozenset[str]:
    """UIDs of the pods that the Node shows now."""
    annotations = mapping_at(state.node.object, "metadata", "annotations")
    text = annotations.get(HELD_GPUS_ANNOTATION)
    if not isinstance(text, str):
        return frozenset()
    return _uids(text)


@lru_cache(maxsize=1)
def _uids(text: str) -> frozenset[str]:
    pods = held_gpus({HELD_GPUS_ANNOTATION: text})
    if not isinstance(pods, dict):
        return frozenset()
    return frozenset(pods)
