"""What must hold when everything has arrived: every pod runs, waits or was refused for a reason that is true."""

from collections.abc import Iterator

from simworld.small.model import ENDED, WAIT_S, Move, World, at_rest
from simworld.small.node_part import wanted
from simworld.small.scheduler_part import started, used

WAITS = 3


def broken_in_quiet(world: World) -> Iterator[str]:
    """Let a world come to rest, and say which promises are broken then, in words."""
    world = world.after(Move("everything is left in peace", lambda _world: None))
    for _ in range(WAITS):
        try:
            world = at_rest(world)
        except RuntimeError as error:
            yield str(error)
            return
        world = world.after(Move(f"{WAIT_S:g} s pass", _wait))
    yield from world.broken
    yield from _of_pods(world)
    yield from _of_books(world)


def _wait(world: World) -> None:
    for name in world.parts:
        world.own_node(name).wait(WAIT_S)
    world.own_scheduler().wait(WAIT_S)


def _of_pods(world: World) -> Iterator[str]:
    roomiest = max(max(part.free().values()) for part in world.parts.values())
    for uid, pod in world.pods.items():
        phase = pod.json["status"]["phase"]
        node = pod.json["spec"].get("nodeName", "")
        refusal = world.refusals.get(uid)
        if phase == "Failed" and refusal is not None and uid not in world.excused:
            yield f"{uid} was refused on {node}, where the scheduler had decided it: {refusal.message}"
        if phase in ENDED:
            continue
        if node and uid not in world.parts[node].held:
            yield f"{uid} is bound to {node}, and neither runs nor was refused"
        elif not node and wanted(pod) <= roomiest:
            yield f"{uid} waits for {wanted(pod)} units although a GPU has {roomiest}"


def _of_books(world: World) -> Iterator[str]:
    core = world.scheduler.core
    assert core is not None, "a world at rest has its scheduler"
    if len(core.reservations):
        yield "the scheduler still reserves GPUs, and no pod is on its way"
    read_again = used(started(world.nodes, world.pods, world.scheduler.now()))
    if used(core) != read_again:
        yield f"the scheduler counts {used(core)}, and one that reads everything again counts {read_again}"
    for name, part in world.parts.items():
        assert part.agent is not None
        assert part.agent.snapshot is not None
        counted = {holding.ids for holding in part.agent.snapshot.holdings}
        if counted != set(part.held.values()):
            yield f"the agent of {name} counts {sorted(map(sorted, counted))}, and kubelet has other allocations"
