"""Which GPUs a pod uses by its annotations, and how much of each.

Anyone who may edit the pod can write them. So they count only if they decide on this pod, and give it just its limits.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from gpuagent.domain.pods.annotations import gpu_names
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.scheduling.decision import ContainerUnits, Ignored, decided_units, for_another_pod
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GROUP_ANNOTATION
from gpuscheduler.core.gpu_request import NOTHING, WHOLE, Amounts, GpuRequest, RequestKind, Used


def decided_use(pod: Pod, request: GpuRequest) -> Used | None:
    """What the pod uses of each GPU by its annotations; None if they do not give the pod exactly its limits."""
    if request.kind is RequestKind.WHOLE:
        # Annotations of another pod, copied from a template, stay beside those of the Binding.
        if for_another_pod(pod):
            return None
        return _whole(pod, request.gpus)
    core_resource = GPU_CORE if request.need.core else None
    decided = decided_units(pod, GPU_MEM, core_resource, {})
    if decided is None or isinstance(decided, Ignored):
        return None
    _, tables = decided
    memory = _by_gpu(tables.get(GPU_MEM, {}))
    core = _by_gpu(tables.get(GPU_CORE, {}))
    containers = _containers_by_gpu(pod, tables)
    needs = _needs(request, containers)
    used: list[tuple[int, Amounts]] = []
    for minor in sorted(needs):
        given = Amounts(memory[minor], core[minor])
        amounts = given.at_least(needs[minor])
        used.append((minor, amounts))
    return tuple(used)


def _by_gpu(units: ContainerUnits) -> Counter[int]:
    """Units of one resource on each GPU, of all containers together."""
    total = Counter[int]()
    for gpus in units.values():
        total.update(gpus)
    return total


def _containers_by_gpu(pod: Pod, tables: Mapping[str, ContainerUnits]) -> dict[int, set[int]]:
    """Minor number of each GPU to the indexes in `spec.containers` of the containers with units there."""
    number_of: dict[str, int] = {}
    for number, container in enumerate(pod.app_containers):
        number_of[container.name] = number
    containers: dict[int, set[int]] = {}
    for units in tables.values():
        for name, gpus in units.items():
            for minor in gpus:
                on_gpu = containers.setdefault(minor, set())
                on_gpu.add(number_of[name])
    return containers


def _whole(pod: Pod, count: int) -> Used | None:
    """The whole GPUs that the annotation names; None unless they are as many as the pod asks for."""
    names = gpu_names(pod.annotations, GROUP_ANNOTATION)
    if not isinstance(names, tuple):
        return None
    # UUIDs are for agents: this scheduler knows GPUs by number.
    are_numbers = all(name.isdecimal() for name in names)
    if not are_numbers:
        return None
    minors = sorted({int(name) for name in names})
    if len(minors) != count:
        return None
    return tuple((minor, WHOLE) for minor in minors)


def _needs(request: GpuRequest, containers: Mapping[int, Collection[int]]) -> dict[int, Amounts]:
    """What Kubernetes counts on each GPU: the annotations do not name init containers and sidecars.

    `containers` has the indexes of the containers by GPU.
    """
    all_on_same_gpus = len(containers) == request.gpus
    if all_on_same_gpus:
        each = request.need.over(request.gpus)
        return dict.fromkeys(containers, each)
    needs = dict.fromkeys(containers, NOTHING)
    for group in request.groups:
        numbers = {number for number, _ in group.containers}
        each = group.need.over(request.gpus)
        for minor, on_gpu in containers.items():
            if not numbers.isdisjoint(on_gpu):
                needs[minor] += each
    return needs
