"""Containers that failed after they had used all of their GPU memory, which their pods are told."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import ContainerRef, FailedRun, Pod
from gpuagent.domain.usage.over_time import ContainerUsage, NodeUsage

FULL = 0.95
"""Part of the held memory. A program rarely reaches the last bytes: it fails when a piece does not fit."""
RECENT_S = 30.0
"""For this long before a failure is seen, a reading says something about it."""
AGAIN_S = 600.0
"""A container that fails over and over is reported this often."""
MOST_AT_ONCE = 16
"""Reports for one reading. If a whole node fails, more would say no more."""

_GIB = 1 << 30

Run = tuple[str, str]
"""Pod UID and container id."""


@dataclass(frozen=True, slots=True)
class ExhaustedContainers:
    """What was reported already.

    Attributes:
        known: failed runs that were looked at; None before the first look, when nothing is known about their use.
        reported: when each container was reported last, in monotonic seconds.
    """

    known: frozenset[Run] | None = None
    reported: Mapping[ContainerRef, float] = field(default_factory=dict)

    def next(
        self, pods: Iterable[Pod], usage: NodeUsage, gpus: Mapping[str, Gpu], at: float
    ) -> "tuple[ExhaustedContainers, tuple[Announcement, ...]]":
        """Look at the pods. `gpus` are by UUID.

        Returns what is reported then, and an announcement for each container that has failed and is to be reported.
        """
        failed: dict[Run, tuple[Pod, FailedRun]] = {}
        for pod in pods:
            for run in pod.failed_runs:
                failed[pod.uid, run.container_id] = pod, run
        known = frozenset(failed)
        if self.known is None:
            return ExhaustedContainers(known), ()
        reported = {owner: then for owner, then in self.reported.items() if at - then < AGAIN_S}
        announcements: list[Announcement] = []
        for key, (pod, run) in failed.items():
            owner = ContainerRef(pod.name, run.container)
            # Whoever deletes a pod ends its containers, mostly with a code.
            is_new = key not in self.known and not pod.deleting
            if not is_new or owner in reported or len(announcements) == MOST_AT_ONCE:
                continue
            for uuid, of_gpu in _full_gpus(owner, usage, at):
                reported[owner] = at
                message = _message(run, gpus.get(uuid), uuid, of_gpu, at)
                announcements.append(Announcement("GPUMemoryExhausted", message, warning=True, pods=(pod.name,)))
                break
        return ExhaustedContainers(known, reported), tuple(announcements)


def _full_gpus(owner: ContainerRef, usage: NodeUsage, at: float) -> Iterator[tuple[str, ContainerUsage]]:
    """The GPUs of whose memory the container has used nearly all that it may."""
    for (uuid, holder), of_gpu in usage.by_container.items():
        if holder != owner or not of_gpu.reading.limited:
            continue
        held_bytes = of_gpu.reading.held_bytes
        if held_bytes and of_gpu.memory.most_since(at - RECENT_S) >= held_bytes * FULL:
            yield uuid, of_gpu


def _message(run: FailedRun, gpu: Gpu | None, uuid: str, of_gpu: ContainerUsage, at: float) -> str:
    used_bytes = of_gpu.memory.most_since(at - RECENT_S)
    held_bytes = of_gpu.reading.held_bytes or 0
    name = f"GPU {gpu.minor} ({uuid})" if gpu else f"GPU {uuid}"
    return (
        f"container {run.container} exited with code {run.exit_code} after it had used {used_bytes / _GIB:.1f} GiB of "
        f"the {held_bytes / _GIB:.1f} GiB that it has of {name}. If its log says that memory ran out, let it ask for "
        "more, or use less"
    )
