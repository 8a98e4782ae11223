"""The pods of a job, with the counts that decisions need. Each event keeps them up: a job may have thousands of pods.

Pods that have ended count as there for those that come again. If the last worker of a job fails while the others have
succeeded, its successor must not wait for them.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuscheduler.core.gangs.gang import Gang
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.jobs.latest_run import LatestRun, run_of
from gpuscheduler.core.pod_facts import PodEnd, PodFacts

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


class LabelNumbers:
    """The numbers of pods that the labels of a job's pods name.

    Each pod may have its own number, so they are kept in order instead of looked through.
    """

    def __init__(self) -> None:
        self._pods: Counter[int | None] = Counter()
        self._ascending: list[int] = []

    @property
    def all(self) -> Collection[int | None]:
        """Each number that the labels say; None for labels without a number."""
        return self._pods.keys()

    @property
    def ascending(self) -> Sequence[int]:
        """In order, without the None of labels without a number."""
        return self._ascending

    @property
    def highest(self) -> int:
        """0 if no label says a number."""
        return self._ascending[-1] if self._ascending else 0

    @property
    def are_one(self) -> bool:
        """Whether no two labels differ, and all say a number."""
        return len(self._pods) <= 1 and None not in self._pods

    def add(self, number: int | None) -> None:
        """Count the label of a pod."""
        self._pods[number] += 1
        is_first = self._pods[number] == 1
        if number and is_first:
            insort(self._ascending, number)

    def set_to(self, number: int | None) -> None:
        """Have this number only, which an object says; none if the object was not seen."""
        self._pods.clear()
        self._ascending.clear()
        if number is not None:
            self.add(number)

    def remove(self, number: int | None) -> None:
        """Count the label of a pod no longer."""
        self._pods[number] -= 1
        if self._pods[number]:
            return
        del self._pods[number]
        if number:
            index = bisect_left(self._ascending, number)
            del self._ascending[index]


class Members:
    """The pods of one job.

    Attributes:
        start: of the job as it runs now.
        labels: the numbers of pods that the labels of its pods name.
        ended: UID to each pod that has ended on a node and that the API server still has.
        done_and_gone: how many pods of this start have succeeded and are deleted. They are not lost.
        pending: UID to each living pod that asks for GPUs and is not bound, `surplus` ones included.
        held_back: UID to each pod with a scheduling gate that another controller has to remove. It is not there yet.
        unknown: why the number of pods is not known, if an object says it.
        version: changes with the pods.
    """

    def __init__(self) -> None:
        self.start = Start()
        self.ended: dict[str, PodFacts] = {}
        self.done_and_gone = 0
        self.pending: dict[str, PodFacts] = {}
        self.held_back: dict[str, PodFacts] = {}
        self.unknown = ""
        self.version = 0
        self._pods: dict[str, PodFacts] = {}
        self._living: dict[str, PodFacts] = {}
        self._bound: dict[str, PodFacts] = {}
        self._bad: dict[str, PodFacts] = {}
        self._counts = (self._living, self.pending, self.held_back, self._bound, self._bad)
        self.labels = LabelNumbers()
        self._run = LatestRun()
        self._surplus: frozenset[str] | None = None

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def __getitem__(self, uid: str) -> PodFacts:
        return self._pods[uid]

    def get(self, uid: str) -> PodFacts | None:
        """The pod, unless it is not a member."""
        return self._pods.get(uid)

    @property
    def living(self) -> Mapping[str, PodFacts]:
        """The pods that are there, by UID: not those that are being deleted, and belong to a former job of the name."""
        return self._living

    def put(self, pod: PodFacts) -> None:
        """Take a pod as it is now."""
        former = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        self.ended.pop(pod.uid, None)
        if self._run.begins_with(pod):
            self._uncount_former_run()
        # Most updates change nothing that is counted.
        if former and _counts_as(former) == _counts_as(pod):
            for pods in self._counts:
                if pod.uid in pods:
                    pods[pod.uid] = pod
            return
        if former:
            self._uncount(former)
        self._count(pod)

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        pod = self._pods.pop(uid, None)
        if pod:
            self._uncount(pod)

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all other pods."""
        others = [uid for uid in self._pods if uid not in uids]
        for uid in others:
            self.remove(uid)

    def started(self, uids: Iterable[str]) -> None:
        """Take that the plan of these pods is written. It adds to the job that runs, or a new one starts."""
        planned = [self._pods[uid] for uid in uids if uid in self._pods]
        is_running = self._bound or self.ended_before()
        if not is_running:
            self.start = Start()
            self.done_and_gone = 0
        self.start.size = max(self.start.size, self.present)
        self.start.add(planned)
        # No plan has the pods that run already, and those that ask for no GPUs.
        for pod in self._living.values():
            if pod.node or pod.request.kind is RequestKind.NONE:
                self.start.add([pod])
        self.changed()

    def started_before(self, plans: Iterable[Collection[str]], known: Mapping[str, PodFacts]) -> None:
        """Take the plans that a former run wrote, as UIDs. `known` are all pods, with those that have ended.

        Plans of earlier jobs of the name may be among them. The one that runs now has pods that live, or has created
        them; without any, it is the latest.
        """
        living = self._living.values()
        starts: list[Start] = []
        latest: list[Start] = []
        latest_date = ""
        for uids in plans:
            pods = [known[uid] for uid in uids if uid in known]
            start = Start(set(uids))
            start.add(pods)
            starts.append(start)
            date = max((pod.created for pod in pods), default="")
            if date >= latest_date:
                latest_date = date
                latest = [start]
        running = [start for start in starts if start.has_any(living)]
        for start in running or latest:
            self.start.uids |= start.uids
            self.start.owners |= start.owners
            self.start.names |= start.names
        self.start.size = max(self.start.size, self._size_before([start.uids for start in running]))
        self.changed()

    def _size_before(self, plans: Sequence[Collection[str]]) -> int:
        """How many pods the job had, at least, when a former run started it by these plans; 0 if that is not known.

        The largest plan is the first one, because later ones have pods that were added or come again.
        """
        planned = {uid for uids in plans for uid in uids}
        are_all_planned = planned.issuperset(self._bound)
        if not planned or not are_all_planned:
            # The pod on which the first plan was written is gone, or another scheduler has started pods.
            return 0
        largest = max(map(len, plans))
        # No plan has the pods that ask for no GPUs.
        besides = [pod for pod in (*self._living.values(), *self.ended.values()) if pod.uid not in planned]
        without_gpus = sum(pod.request.kind is RequestKind.NONE for pod in besides)
        return max(largest + without_gpus, len(self._bound))

    def end(self, pod: PodFacts) -> None:
        """Take that a pod has ended on a node. The API server keeps it for a while."""
        ended = self._as_ended(pod)
        self.remove(pod.uid)
        self.ended[pod.uid] = ended
        if len(self.ended) > MOST_PODS:
            # A job whose pods fail again and again leaves any number of them behind.
            first = next(iter(self.ended))
            del self.ended[first]
        self.changed()

    def _as_ended(self, pod: PodFacts) -> PodFacts:
        """A pod that has ended, which has done its part only if it had not to end.

        A pod that is evicted may save its state and exit with 0, so that kubelet says it has succeeded. However, its
        controller makes another one, unless that is a Job.
        """
        known = self.ended.get(pod.uid)
        if known:
            # Pods that have ended are deleted later.
            return replace(pod, end=known.end)
        former = self._pods.get(pod.uid)
        had_to_end = former is not None and former.deleting
        if had_to_end and pod.end is PodEnd.SUCCEEDED and not pod.is_made_by_job:
            return replace(pod, end=PodEnd.FAILED)
        return pod

    def forget_ended(self, uid: str) -> bool:
        """Forget a pod that has ended; whether there was one."""
        pod = self.ended.pop(uid, None)
        if pod is None:
            return False
        has_done_its_part = pod.end is PodEnd.SUCCEEDED and uid in self.start.uids
        if has_done_its_part:
            self.done_and_gone += 1
        self.changed()
        return True

    def changed(self) -> None:
        """Have counts worked out again."""
        self._surplus = None
        self.version += 1

    @property
    def present(self) -> int:
        """How many pods are there."""
        return len(self._living)

    @property
    def replicas(self) -> Collection[int | None]:
        """The numbers of pods that their labels name."""
        return self.labels.all

    @property
    def wanted(self) -> int:
        """How many pods the job has by its labels; 0 if they say no number."""
        return self.labels.highest

    @property
    def any_bound(self) -> bool:
        """Whether the job runs: it has pods with GPUs on nodes."""
        return bool(self._bound)

    @property
    def running(self) -> int:
        """How many of its pods have GPUs on nodes."""
        return len(self._bound)

    @property
    def surplus(self) -> frozenset[str]:
        """UIDs of the pods that another job of the same name seems to have.

        They are beyond the job's number, and their controller has no pod within it. Bound and older pods come first.
        Several controllers may create the pods of one job, and one controller may add pods to a job that runs. Of pods
        without a controller it is not known.
        """
        if self._surplus is None:
            self._surplus = self._surplus_now()
        return self._surplus

    def bound(self) -> list[PodFacts]:
        """Pods with GPUs on nodes."""
        return [pod for uid, pod in self._bound.items() if uid not in self.surplus]

    def to_place(self) -> list[PodFacts]:
        """Pods that wait for GPUs; kube-scheduler binds those that ask for none."""
        return [pod for uid, pod in self.pending.items() if uid not in self.surplus]

    def bad(self) -> PodFacts | None:
        """A pod that no node can serve."""
        for uid, pod in self._bad.items():
            if uid not in self.surplus:
                return pod
        return None

    def ended_before(self, *, failed: bool = False) -> int:
        """How many pods that have ended count as there, because all that live come in the place of others.

        They succeeded; with `failed`, those that failed count as well. Without a record of the start, such as after a
        restart, they need to have a controller in common. If a whole job has succeeded, the pods that live are the next
        one.
        """
        done = [pod for pod in self.ended.values() if failed or pod.end is PodEnd.SUCCEEDED]
        if not done:
            return 0
        runs = {run_of(pod) for pod in self._living.values()}
        if len(runs) == 1 and "" not in runs:
            # All Jobs of a JobSet and all of their completions are of one run, so nothing has to be concluded.
            return sum(run_of(pod) in runs for pod in done)
        before = self._of_this_start(done)
        most = max(self.wanted, self.start.size)
        is_next_job = len(before) + self.present > most
        if is_next_job and not failed:
            return 0
        return len(before)

    def _of_this_start(self, done: Collection[PodFacts]) -> list[PodFacts]:
        """The pods among those that have ended that the job which lives now has started with."""
        living = self._living.values()
        recorded = [pod for pod in done if pod.uid in self.start.uids]
        if recorded and self.start.has_all(living):
            return recorded
        owners = {pod.owner for pod in living}
        has_one_controller = len(owners) == 1
        if not has_one_controller:
            return []
        return [pod for pod in done if pod.owner in owners]

    def _surplus_now(self) -> frozenset[str]:
        wanted = self.wanted
        is_beyond = wanted < len(self._living) <= MOST_PODS
        if not wanted or not self.labels.are_one or not is_beyond:
            return frozenset()
        living = _by_age(self._living.values(), self.start.uids)
        own = living[:wanted]
        gang = own[0].job
        if gang and (gang.source.is_numbered_by_object or gang.minimum or gang.has_no_namesake):
            # It may have a smaller number than it has pods.
            return frozenset()
        own_owners = {pod.owner for pod in own}
        surplus: set[str] = set()
        for pod in living[wanted:]:
            has_controller = pod.owner != pod.uid
            if has_controller and pod.owner not in own_owners:
                surplus.add(pod.uid)
        return frozenset(surplus)

    def _count(self, pod: PodFacts) -> None:
        self.changed()
        if pod.deleting or self._run.is_former(pod):
            return
        if pod.foreign_gate:
            self.held_back[pod.uid] = pod
            return
        self._living[pod.uid] = pod
        if pod.job:
            self._count_number(pod.job)
        if pod.request.kind is RequestKind.NONE:
            return
        if not pod.node:
            self.pending[pod.uid] = pod
            if pod.request.problem:
                self._bad[pod.uid] = pod
        elif pod.request.kind.gives_gpus:
            # Other pods on nodes do not make the job run.
            self._bound[pod.uid] = pod

    def _uncount_former_run(self) -> None:
        """Count the pods of an earlier start no longer, as those of the next one come."""
        for pod in self._pods.values():
            if self._run.is_former(pod):
                self._uncount(pod)

    def _count_number(self, gang: Gang) -> None:
        """Take what a pod says of the number of pods."""
        if gang.source.is_numbered_by_object:
            # The pods have it from one object, so the latest counts.
            self.labels.set_to(gang.pods)
            self.unknown = gang.unknown
        else:
            self.labels.add(gang.pods)

    def _uncount(self, pod: PodFacts) -> None:
        self.changed()
        was_living = self._living.pop(pod.uid, None)
        has_own_number = pod.job and not pod.job.source.is_numbered_by_object
        if was_living and pod.job and has_own_number:
            self.labels.remove(pod.job.pods)
        for pods in self._counts:
            pods.pop(pod.uid, None)


def _by_age(pods: Collection[PodFacts], started: Collection[str]) -> list[PodFacts]:
    """Bound pods first, then those that have started, then by the age of the oldest pod of their controller."""
    since: dict[str, str] = {}
    for pod in pods:
        earliest = since.get(pod.owner, pod.created)
        since[pod.owner] = min(pod.created, earliest)

    def rank(pod: PodFacts) -> tuple[bool, bool, str, str, str]:
        is_waiting = not pod.node
        is_late = pod.uid not in started
        owner_since = since[pod.owner]
        return is_waiting, is_late, owner_since, pod.owner, pod.created

    return sorted(pods, key=rank)


def _counts_as(pod: PodFacts) -> tuple[object, ...]:
    """Equal for two states of a pod between which nothing changes for its job."""
    return (
        pod.node,
        pod.deleting,
        pod.foreign_gate,
        pod.job,
        pod.request,
        pod.owner,
        pod.created,
        pod.priority,
        # Of a pod that waits, tolerations may be added, labels changed, and containers resized. Then it may fit.
        pod.requests,
        pod.rules,
        pod.labels,
    )
