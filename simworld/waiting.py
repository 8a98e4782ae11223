"""Which pods could run: a pod that waits in a quiet world although there is room for it breaks a promise."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.sharing.mode import JOB_LABEL, MODE_LABEL
from gpuagent.domain.sharing.units import parse_id
from gpuagent.simulation.boxes import BoxGpu
from gpuscheduler.core.gangs.kueue import GROUP
from simworld.history import CORES, GIB_PER_GPU, MEMORY, WHOLE, Living
from simworld.parts.amounts import ENDED, fits, limits
from simworld.parts.gpu_scheduler import LONGEST_BACK_OFF_S, NAME
from simworld.parts.node import SimulatedNode
from simworld.runtime.kernel import kernel
from standin.api.objects import Json

if TYPE_CHECKING:
    from simworld.world import World

RESOURCES = {
    "share": {MEMORY},
    "cgpu": {MEMORY},
    "mps": {MEMORY},
    "core_mem": {MEMORY, CORES},
    "topology": {WHOLE},
}
"""What a container asks for in each mode. Any other container gets nothing there, or is told so."""

NOT_BY_LIMITS = ("core_mem", "mps")
"""Modes that driver `limits` serves only together with MPS, which no node has."""

MOST_PODS = 20
"""How many pods may share a GPU, by the default of `--max-pods-per-gpu`."""

TRIED_AGAIN_S = LONGEST_BACK_OFF_S + 5.0
"""A pod is tried again after its back-off, and there are many of them."""


def check_waiting(world: "World") -> None:
    """Each pod of gpuscheduler that waits fits nowhere. Pods that wait for others of their job are left out."""
    if has_just_changed(world):
        return
    for pod in world.api.objects.peek("pods"):
        if _waits_alone(world, pod):
            nodes = [node.name for node in world.nodes if has_room(world, node, pod)]
            if nodes:
                name = world.history.name(pod["metadata"]["uid"])
                world.history.break_promise(f"{name} waits, and {', '.join(nodes)} has room for it")


def has_just_changed(world: "World") -> bool:
    """Whether a container has ended since the waiting pods were certainly tried again."""
    return kernel().now - world.history.last_end_at < TRIED_AGAIN_S


def _waits_alone(world: "World", pod: Json) -> bool:
    """Whether a pod waits for gpuscheduler, and for no other pod of its job."""
    if not _may_be_placed(pod):
        return False
    meta = pod["metadata"]
    if meta["uid"] in world.history.forgotten:
        return False
    labels = meta.get("labels") or {}
    is_member = JOB_LABEL in labels or GROUP in labels
    if not is_member:
        return True
    return _is_last_of_its_job(world, meta["uid"])


def _may_be_placed(pod: Json) -> bool:
    """Whether it is for gpuscheduler to place a pod now."""
    spec = pod["spec"]
    is_for_gpuscheduler = spec.get("schedulerName") == NAME
    is_bound = bool(spec.get("nodeName"))
    if is_bound or not is_for_gpuscheduler:
        return False
    # kube-scheduler does not ask about a pod with gates.
    if spec.get("schedulingGates"):
        return False
    status = pod.get("status") or {}
    has_ended = status.get("phase") in ENDED
    is_being_deleted = "deletionTimestamp" in pod["metadata"]
    return not has_ended and not is_being_deleted


def _is_last_of_its_job(world: "World", uid: str) -> bool:
    """Whether a pod came again after all others of its job had succeeded, and these are still there."""
    others = world.history.retried.get(uid)
    if others is None:
        return False
    succeeded = set()
    for pod in world.api.objects.peek("pods"):
        status = pod.get("status") or {}
        if status.get("phase") == "Succeeded":
            succeeded.add(pod["metadata"]["uid"])
    return succeeded.issuperset(others)


def has_room(world: "World", node: SimulatedNode, pod: Json) -> bool:
    """Whether the node certainly has room: one healthy GPU for all of the pod, or that many whole ones."""
    stored = world.api.objects.get(("nodes", "", node.name))
    mode = stored["metadata"]["labels"].get(MODE_LABEL)
    wanted = limits(pod)
    if set(wanted) != RESOURCES.get(mode):
        return False
    if not fits(pod, stored, world.api.objects.peek("pods")):
        return False
    return has_room_on(certainly_free(world, node).values(), wanted, Counter())


def has_room_on(gpus: Collection[Counter[str]], wanted: Counter[str], besides: Counter[str]) -> bool:
    """Whether a pod fits on one of these GPUs, by what each has left, or on that many whole ones.

    `besides` is what others are to have first, wherever they get it.
    """
    if WHOLE in wanted:
        untouched = sum(left[WHOLE] > 0 for left in gpus)
        return untouched >= wanted[WHOLE] + besides[WHOLE]
    together = wanted + besides
    return any(_has_all(left, together) for left in gpus)


def _has_all(left: Counter[str], wanted: Mapping[str, int]) -> bool:
    """Whether one GPU has all of this."""
    return all(amount <= left[resource] for resource, amount in wanted.items())


def certainly_free(world: "World", node: SimulatedNode) -> dict[str, Counter[str]]:
    """The same as `free_by_gpu`, less what gpuscheduler counts on each GPU because of pods whose GPU is lost."""
    free = free_by_gpu(world, node)
    for most in _on_lost_gpus(world, node):
        for left in free.values():
            left.subtract(most)
    return free


def _on_lost_gpus(world: "World", node: SimulatedNode) -> Iterator[Counter[str]]:
    """What each pod with a lost GPU has of one GPU, at most.

    An agent that starts afterwards does not publish the lost GPU. So for gpuscheduler, the pod may be on any other one.
    """
    by_pod: dict[str, Counter[str]] = {}
    for living in world.history.on_node(node.name):
        if node.lost.keys().isdisjoint(living.gpus):
            continue
        units = {resource: len(ids) for resource, ids in living.units.items()}
        if WHOLE in units:
            # Whichever GPU it has, nothing of that one is left.
            units |= {MEMORY: GIB_PER_GPU, CORES: 100}
        by_pod.setdefault(living.pod_uid, Counter()).update(units)
    yield from by_pod.values()


def free_by_gpu(world: "World", node: SimulatedNode, ended_after: float = math.inf) -> dict[str, Counter[str]]:
    """UUID of each GPU that may take another pod to what it has left, by the containers that live.

    Those that have ended after `ended_after` count, too.

    A GPU is left out if it is unhealthy, if another mode or a claim uses it, or if as many pods as may share it do.
    """
    free = {
        gpu.uuid: Counter({MEMORY: gpu.memory_mib // 1024, CORES: 100, WHOLE: 1})
        for gpu in usable_gpus(world, node, ended_after)
    }
    pods: defaultdict[str, set[str]] = defaultdict(set)
    for living in world.history.on_node(node.name, ended_after):
        for uuid in living.gpus:
            left = free.get(uuid)
            if left is None:
                continue
            pods[uuid].add(living.pod_uid)
            _take(left, living)
    for kept, units in world.history.kept_on_node(node.name):
        for uuid in kept.gpus:
            if uuid in free and any(units.values()):
                _take(free[uuid], replace(kept, units=units))
    _take_without_container(world, node, free)
    return {uuid: left for uuid, left in free.items() if len(pods[uuid]) < MOST_PODS}


def _take_without_container(world: "World", node: SimulatedNode, free: Mapping[str, Counter[str]]) -> None:
    """Take what kubelet has given to containers that cannot start, or keeps back since it was refused a preference.

    For example, the agent lets no container start in mode core_mem that has memory and no compute.
    """
    counted: set[str] = set()
    for living in world.history.on_node(node.name):
        counted.update(*living.units.values())
    for _, units in world.history.kept_on_node(node.name):
        counted.update(*units.values())
    uuids = {key_of(uuid): uuid for uuid in free}
    for resource, ids in node.kubelet.reserved().items():
        for unit in filter(None, map(parse_id, ids - counted)):
            if unit.gpu_key in uuids:
                free[uuids[unit.gpu_key]][resource] -= 1


def _is_of_mode(living: Living, mode: str) -> bool:
    """Whether a container was given its units in this mode. Several modes have memory under one resource name."""
    if not living.units.keys() <= RESOURCES.get(mode, set()):
        return False
    units = [parse_id(device_id) for device_id in living.units.get(MEMORY, ())]
    return all(unit is not None and unit.kind.mode == mode for unit in units)


def usable_gpus(world: "World", node: SimulatedNode, ended_after: float = math.inf) -> list[BoxGpu]:
    """Healthy GPUs of a node of which no container has something by a claim, or that another mode gave it."""
    stored = world.api.objects.get(("nodes", "", node.name))
    mode = stored["metadata"]["labels"].get(MODE_LABEL)
    if is_unisolated(node, mode):
        return []
    taken: set[str] = set()
    for living in world.history.on_node(node.name, ended_after):
        taken.update(world.claims.scheduler.claimed_gpus(living.pod_uid))
        if not _is_of_mode(living, mode):
            taken.update(living.gpus)
    return [gpu for gpu in healthy_gpus(node) if gpu.uuid not in taken]


def is_unisolated(node: SimulatedNode, mode: str) -> bool:
    """Whether a mode promises isolation that the driver of the node does not have: nothing is offered there then."""
    return node.limits is not None and mode in NOT_BY_LIMITS


def healthy_gpus(node: SimulatedNode) -> list[BoxGpu]:
    """GPUs of a node that are neither lost for good nor fenced: in a quiet world, all faults of the others are over.

    The agent is not asked. One that took each GPU for unhealthy would break no promise otherwise.
    """
    return [gpu for gpu in node.box.gpus if gpu.uuid not in node.lost and gpu.uuid not in node.fenced]


def _take(left: Counter[str], living: Living) -> None:
    """Take what a container holds from what its GPU has left."""
    # A GPU of which a container has any part is no longer free as a whole.
    left[WHOLE] = 0
    for resource, ids in living.units.items():
        if resource != WHOLE:
            left[resource] -= len(ids)
