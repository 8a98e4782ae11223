"""Containers that began while the agent was away and no MPS daemon ran: their programs may have no limits.

A kubelet that restarts meanwhile starts containers again without asking the agent first. Outside of exclusive compute
mode, a program that finds no daemon uses the GPU without MPS, and nothing reports an error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """When a container began; times are seconds since 1970.

    Attributes:
        pod: UID of its pod.
        container: its id at the runtime.
        began_at: when its first process began that still runs.
    """

    pod: str
    container: str
    began_at: float


@dataclass(frozen=True, slots=True)
class Unseen:
    """A container that may run without limits.

    Attributes:
        start: its start.
        name: of the container.
        gpus: UUIDs of its GPUs that had no daemon.
    """

    start: ContainerStart
    name: str
    gpus: tuple[str, ...]


def unseen(
    starts: Iterable[ContainerStart],
    names: Mapping[str, str],
    gpus: Mapping[str, Mapping[str, Iterable[str]]],
    daemons: Mapping[str, float],
    last_seen_at: float,
) -> tuple[Unseen, ...]:
    """The containers that began after the former agent's end, before a daemon of their GPU.

    Args:
        starts: of the containers of all pods.
        names: id of each container to its name; the runtime has more, such as the pod's sandbox.
        gpus: UID of each pod under MPS to its containers, and these to the UUIDs of their GPUs.
        daemons: UUID to when the daemon began that the GPU has now.
        last_seen_at: when the former agent was last alive.
    """
    late_starts = []
    for start in starts:
        name = names.get(start.container, "")
        held = gpus.get(start.pod, {}).get(name, ())
        if start.began_at <= last_seen_at:
            continue
        late = [uuid for uuid in held if daemons.get(uuid, float("inf")) > start.began_at]
        if late:
            container = Unseen(start, name, tuple(sorted(late)))
            late_starts.append(container)
    return tuple(late_starts)


def remaining(before: Iterable[Unseen], starts: Iterable[ContainerStart]) -> tuple[Unseen, ...]:
    """Those that still run."""
    running = {start.container for start in starts}
    return tuple([container for container in before if container.start.container in running])


def reason(container: Unseen, gpu_names: Mapping[str, str]) -> str:
    """Why a container may have no limits, and what to do."""
    gpus = ", ".join(gpu_names.get(uuid, uuid) for uuid in container.gpus)
    return (
        f"its container {container.name} began while the agent was away and {gpus} had no MPS daemon, so its programs "
        "may use the GPU without limits. Delete the pod"
    )
