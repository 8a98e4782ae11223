"""With which pods a job has started. A pod that comes in the place of one of them need not wait for a whole job.

After a restart of the scheduler, this is read from the plans that were written on the pods.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpuscheduler.core.pod_facts import PodFacts

MOST_PODS = 1000
"""Pods of a job. The plan of more does not fit into the annotation in which it is written."""


@dataclass(slots=True)
class Start:
    """The pods that a job started with, and those that were added to it or came again since.

    Attributes:
        uids: of all of them.
        owners: UIDs of their controllers, which create the pods that come again.
        names: of those without a controller. One that comes again has the same name.
        size: the most that there were at one time; 0 if that is not known, because a former run has started the job.
    """

    uids: set[str] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    size: int = 0

    def add(self, pods: Iterable[PodFacts]) -> None:
        """Take that these pods have started, too."""
        for pod in pods:
            self.uids.add(pod.uid)
            if pod.owner == pod.uid:
                self.names.add(pod.name.name)
            else:
                self.owners.add(pod.owner)

    def join(self, other: "Start") -> None:
        """Take that the pods of another start, which a former run recorded, are of this one."""
        self.uids |= other.uids
        self.owners |= other.owners
        self.names |= other.names

    def has(self, pod: PodFacts) -> bool:
        """Whether the pod is one of these, or comes in the place of one."""
        if pod.uid in self.uids:
            return True
        has_controller = pod.owner != pod.uid
        if has_controller:
            return pod.owner in self.owners
        return pod.name.name in self.names

    def has_all(self, pods: Iterable[PodFacts]) -> bool:
        """Whether it has each of the pods."""
        return all(map(self.has, pods))

    def has_any(self, pods: Iterable[PodFacts]) -> bool:
        """Whether it has one of the pods or more."""
        return any(map(self.has, pods))


def running_starts(
    plans: Iterable[Collection[str]],
    living: Collection[PodFacts],
    known: Mapping[str, PodFacts],
) -> tuple[list[Start], Start]:
    """The starts of the job that lives now, by the plans that a former run wrote; and the latest one of all.

    Plans of earlier jobs of the name may be among them. A start is of the job that lives if it has one of its pods, or
    their controller.

    Args:
        plans: UIDs of the pods of each.
        living: the pods of the job.
        known: all pods by UID, with those that have ended.
    """
    running: list[Start] = []
    latest = Start()
    latest_date = ""
    for uids in plans:
        pods = [known[uid] for uid in uids if uid in known]
        start = Start(set(uids))
        start.add(pods)
        if start.has_any(living):
            running.append(start)
        date = max((pod.created for pod in pods), default="")
        if date >= latest_date:
            latest_date = date
            latest = start
    return running, latest
