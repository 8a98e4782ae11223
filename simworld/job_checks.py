"""Holds what gpuscheduler keeps for jobs against the promises: nothing for pods that cannot start, and all else starts.

What is held is seen in no entry of the history. So it looks at that after each decision, and once in a while.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuscheduler.core.scheduling import Scheduling
from simworld.history import MEMORY, WHOLE
from simworld.parts.amounts import ENDED
from simworld.parts.job_controllers import Workload, has_foreign_gate
from simworld.parts.node import SimulatedNode
from simworld.runtime.kernel import Process, kernel
from simworld.waiting import certainly_free, has_just_changed
from standin.api.objects import Json

if TYPE_CHECKING:
    from simworld.world import World

LOOK_S = 0.25
"""Time between two looks."""
HELD_S = 5.0
"""How long GPUs may be held for pods that can no longer start: a watch may be behind by 3 s."""
MODES = {MEMORY: ("share", "cgpu", "mps"), WHOLE: ("topology",)}
"""Where a resource alone is enough for a pod."""


class JobChecks:
    """Looks at what is held while a world runs.

    Args:
        world: which has jobs.
        core: of the scheduler that runs; None while none does.
    """

    def __init__(self, world: "World", core: Callable[[], Scheduling | None]) -> None:
        self._world = world
        self._core = core
        self._held_since: dict[str, float] = {}

    def check_reserved(self, core: Scheduling, asked: set[str]) -> None:
        """Check that kube-scheduler has asked about each pod of a job for which GPUs are reserved.

        Others may never start, and GPUs would be held for them. Single pods may be decided before that.
        """
        reserved = core.reservations._all  # noqa: SLF001 (what the process knows)
        for uid in reserved.keys() - asked:
            pod = core.pods.get(uid)
            if pod and core.jobs.is_member(pod):
                what = f"GPUs are reserved for {pod.name.name}, and kube-scheduler has not asked about it"
                self._world.history.break_promise(what)

    def start(self) -> None:
        kernel().spawn(self._watch, "job checks", Process("job checks"))

    def _watch(self) -> None:
        while True:
            kernel().sleep(LOOK_S)
            core = self._core()
            if core is None or self._world.api.is_away:
                self._held_since.clear()
                continue
            for workload in self._world.jobs.workloads:
                self._look(core, workload)

    def _look(self, core: Scheduling, workload: Workload) -> None:
        pods = self._world.jobs.pods_of(workload)
        held = [pod for pod in pods if core.reservations.get(pod["metadata"]["uid"])]
        for pod in pods:
            if has_foreign_gate(pod):
                self._look_at_gated(pod, is_held=pod in held)
        if not held or _may_start(workload, pods):
            self._held_since.pop(workload.name, None)
            return
        since = self._held_since.setdefault(workload.name, kernel().now)
        if kernel().now - since > HELD_S:
            what = f"GPUs are held for {len(held)} pods of {workload.name}, which cannot start"
            self._world.history.break_promise(what)

    def _look_at_gated(self, pod: Json, *, is_held: bool) -> None:
        name = pod["metadata"]["name"]
        if is_held:
            self._world.history.break_promise(f"GPUs are reserved for {name}, which has a scheduling gate")
        node = (pod.get("status") or {}).get("nominatedNodeName")
        if node:
            self._world.history.break_promise(f"{name} is nominated for {node}, and has a scheduling gate")

    # -- in a quiet world -----------------------------------------------------------------------------------------

    def check_quiet(self) -> None:
        """Check that each job that may start runs, none in part, and that nothing is kept for one that waits."""
        core = self._core()
        if core is None:
            return
        for workload in self._world.jobs.workloads:
            self._check_nominations(core, workload)
            self._check_whole(workload)
            self._check_runs(workload)

    def _check_nominations(self, core: Scheduling, workload: Workload) -> None:
        for pod in self._world.jobs.pods_of(workload):
            metadata = pod["metadata"]
            node = (pod.get("status") or {}).get("nominatedNodeName")
            is_waiting = not pod["spec"].get("nodeName")
            if node and is_waiting and core.reservations.get(metadata["uid"]) is None:
                what = f"{metadata['name']} is nominated for {node}, where nothing is reserved for it"
                self._world.history.break_promise(what)

    def _check_whole(self, workload: Workload) -> None:
        """A job of which no pod was lost runs whole or not at all."""
        if workload.disturbed:
            return
        pods = self._world.jobs.pods_of(workload)
        # A user may have deleted a pod and taken over its name, so that its controller cannot make it again.
        is_lost = len(pods) < len(workload.pods)
        if is_lost:
            return
        bound = [pod for pod in pods if pod["spec"].get("nodeName")]
        if 0 < len(bound) < workload.members:
            what = f"{workload.name} has started in part: {len(bound)} of {workload.members} pods"
            self._world.history.break_promise(what)

    def _check_runs(self, workload: Workload) -> None:
        is_waited_for = not workload.ended and workload.is_possible
        if not is_waited_for or has_just_changed(self._world):
            return
        pods = self._world.jobs.pods_of(workload)
        if not _may_start(workload, pods):
            return
        waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
        room = self._room(workload)
        if waiting and room >= len(waiting):
            what = f"{workload.name} waits with {len(waiting)} pods, and there is room for {room}"
            self._world.history.break_promise(what)

    def _room(self, workload: Workload) -> int:
        """How many pods of a job fit on what is free."""
        return sum(self._room_on(node, workload) for node in self._world.nodes)

    def _room_on(self, node: SimulatedNode, workload: Workload) -> int:
        """How many pods of a job fit on what is free on a node."""
        resource = workload.resource
        stored = self._world.api.objects.get(("nodes", "", node.name))
        mode = stored["metadata"]["labels"].get(MODE_LABEL)
        if mode not in MODES[resource]:
            return 0
        allocatable = stored["status"].get("allocatable") or {}
        offered = int(allocatable.get(resource, 0))
        # A problem of the node says why it offers less, which is checked elsewhere.
        if offered < _units(node, resource):
            return 0
        pods = 0
        for free in certainly_free(self._world, node).values():
            free_units = max(free[resource], 0)
            pods += free_units // workload.amount
        return pods


def _units(node: SimulatedNode, resource: str) -> int:
    """What the GPUs of a node have of a resource: whole GPUs, or GiB of memory."""
    gpus = node.box.gpus
    if resource == WHOLE:
        return len(gpus)
    return sum(gpu.memory_mib // 1024 for gpu in gpus)


def _may_start(workload: Workload, pods: list[Json]) -> bool:
    """Whether a job runs already, or all of its pods are there and may be placed."""
    living = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ENDED]
    if any(pod["spec"].get("nodeName") for pod in living):
        return True
    free = [pod for pod in living if not has_foreign_gate(pod) and "volumes" not in pod["spec"]]
    return len(free) == workload.members
