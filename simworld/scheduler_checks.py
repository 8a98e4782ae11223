"""Holds what two whole replicas of gpuscheduler know, and whom they let wait, against the promises in a quiet world."""

from typing import TYPE_CHECKING

from gpuagent.domain.sharing.mode import JOB_LABEL, MODE_LABEL
from gpuscheduler.core.gangs.kueue import GROUP as KUEUES_GROUP
from gpuscheduler.core.scheduling import Scheduling
from simworld.history import GIB_PER_GPU, MEMORY
from simworld.parts.amounts import limits
from simworld.parts.leader_election import LEASE
from simworld.runtime.kernel import kernel
from simworld.waiting import certainly_free
from standin.api.objects import Json

if TYPE_CHECKING:
    from simworld.world import World

MEMORY_MODES = ("share", "cgpu", "mps")
BOUND_S = 20.0
"""How long a pod that fits may wait in a quiet world."""


def check_schedulers(world: "World") -> None:
    """Check the leader, what it knows, and that no pod waits that would fit."""
    core = _leaders_core(world)
    if core is None:
        world.history.break_promise("no replica of gpuscheduler leads")
        return
    _check_view(world, core)
    _check_reservations(world, core)
    _check_waiting(world)
    _probe(world)


def _leaders_core(world: "World") -> Scheduling | None:
    """The core beside the kube-scheduler that holds the lease, if that replica alone counts as the leader."""
    holder = world.api.objects.get(LEASE)["spec"]["holderIdentity"]
    for replica in world.replicas.replicas:
        is_holder = holder.startswith(f"{replica.host_name}_")
        if replica.leads != is_holder:
            word = "does not count" if is_holder else "counts"
            world.history.break_promise(f"{replica.host_name} {word} as the leader, and {holder} holds the lease")
    for replica in world.replicas.replicas:
        if replica.leads and replica.app is not None:
            return replica.app._core  # noqa: SLF001 (what the process knows)
    return None


def _check_view(world: "World", core: Scheduling) -> None:
    for pod in world.api.objects.peek("pods"):
        uid = pod["metadata"]["uid"]
        name = pod["metadata"]["name"]
        node = pod["spec"].get("nodeName") or ""
        known = core.pods.get(uid)
        if known is None:
            if limits(pod) and pod["status"].get("phase") in {"Pending", "Running"}:
                world.history.break_promise(f"the leader does not know {name}")
        elif known.node != node:
            world.history.break_promise(f"{name} is on {node or 'no node'}, and the leader has it on {known.node!r}")


def _check_reservations(world: "World", core: Scheduling) -> None:
    pods = {pod["metadata"]["uid"]: pod for pod in world.api.objects.peek("pods")}
    for uid, name in world.history.pods.items():
        if core.reservations.get(uid) is None:
            continue
        pod = pods.get(uid)
        if pod is None:
            world.history.break_promise(f"GPUs are reserved for {name}, which is gone")
        elif pod["spec"].get("nodeName"):
            world.history.break_promise(f"GPUs are still reserved for {name}, which is bound")


def _check_waiting(world: "World") -> None:
    """No single pod waits for memory that a GPU has."""
    for pod in world.api.objects.peek("pods"):
        spec = pod["spec"]
        wanted = limits(pod)
        is_simple = set(wanted) == {MEMORY} and len(spec["containers"]) == 1
        # The other checks have the pods of jobs.
        is_single = {JOB_LABEL, KUEUES_GROUP}.isdisjoint(pod["metadata"].get("labels") or {})
        is_waiting = not spec.get("nodeName") and "schedulerName" in spec
        if not (is_simple and is_single and is_waiting):
            continue
        node = _node_with_room(world, wanted[MEMORY])
        if node:
            name = pod["metadata"]["name"]
            world.history.break_promise(f"{name} waits for {wanted[MEMORY]} {MEMORY}, and a GPU of {node} has them")


def _node_with_room(world: "World", amount: int) -> str:
    """A node of which one GPU has so much memory free; empty if none has."""
    for node in world.nodes:
        stored = world.api.objects.get(("nodes", "", node.name))
        full = world.scenario.gpus * GIB_PER_GPU
        shares_memory = stored["metadata"]["labels"].get(MODE_LABEL) in MEMORY_MODES
        is_whole = int((stored["status"].get("allocatable") or {}).get(MEMORY, 0)) == full
        if not (shares_memory and is_whole):
            continue
        free = [left[MEMORY] for left in certainly_free(world, node).values()]
        if max(free, default=0) >= amount:
            return node.name
    return ""


def _probe(world: "World") -> None:
    """A new pod, and then a new job, are placed within their bound, and run."""
    for members in (1, 2):
        if not _node_with_room(world, members):
            return
        pods = [world.create_probe(f"scheduled-probe-{members}-{number}", members) for number in range(members)]
        uids = [pod["metadata"]["uid"] for pod in pods]
        what = "a pod" if members == 1 else f"a job of {members} pods"
        if not kernel().run(lambda uids=uids: _all_bound(world, uids), BOUND_S):  # type: ignore[misc]
            world.history.break_promise(f"{what} of 1 {MEMORY} each is not bound within {BOUND_S:g} s")
        # What is free is counted by the containers that live, so the next check begins when these do.
        elif not kernel().run(lambda uids=uids: _all_run(world, uids), BOUND_S):  # type: ignore[misc]
            world.history.break_promise(f"{what} of 1 {MEMORY} each is bound, and does not run within {BOUND_S:g} s")
        elif members > 1:
            _lose_one(world, pods, members)


def _lose_one(world: "World", pods: list[Json], members: int) -> None:
    """A pod that comes in the place of one that a job has just lost is placed within its bound."""
    world.delete(pods[0], 0)
    pod = world.create_probe(f"scheduled-probe-{members}-again", members)
    uid = pod["metadata"]["uid"]
    if not kernel().run(lambda: _all_bound(world, [uid]), BOUND_S):
        what = "a pod in the place of one that a job has lost"
        world.history.break_promise(f"{what} is not bound within {BOUND_S:g} s")
    kernel().run(lambda: _all_run(world, [uid]), BOUND_S)


def _all_bound(world: "World", uids: list[str]) -> bool:
    bound = {pod["metadata"]["uid"] for pod in world.api.objects.peek("pods") if _is_bound(pod)}
    return bound.issuperset(uids)


def _all_run(world: "World", uids: list[str]) -> bool:
    return all((uid, "main-0") in world.history.living for uid in uids)


def _is_bound(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName"))
