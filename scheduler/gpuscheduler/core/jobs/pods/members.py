"""The pods of a job, with the counts that decisions need. Each event keeps them up: a job may have thousands of pods.

A pod is held back by a gate, or is there. If it is there, it waits for GPUs, is bound to a node, or asks for no GPUs.
Then it ends (`ended_pods`), and others may come in its place. What the labels say of the number of pods is counted
with them (`label_numbers`), and so is with which pods the job has started (`start`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpuscheduler.core.gangs.gang import Gang
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.jobs.pods.ended_pods import EndedPods
from gpuscheduler.core.jobs.pods.label_numbers import LabelNumbers
from gpuscheduler.core.jobs.pods.latest_run import LatestRun
from gpuscheduler.core.jobs.pods.start import MOST_PODS, Start, running_starts
from gpuscheduler.core.jobs.pods.surplus import surplus_pods
from gpuscheduler.core.pod_facts import PodEnd, PodFacts


class Members:
    """The pods of one job.

    Attributes:
        start: of the job as it runs now.
        labels: the numbers of pods that the labels of its pods name.
        ended: the pods that have ended on a node and that the API server still has.
        done_and_gone: how many pods of this start have succeeded and are deleted. They are not lost.
        pending: UID to each living pod that asks for GPUs and is not bound, `surplus` ones included.
        held_back: UID to each pod with a scheduling gate that another controller has to remove. It is not there yet.
        unknown: why the number of pods is not known, if an object says it.
        version: changes with the pods.
    """

    def __init__(self) -> None:
        self.start = Start()
        self.ended = EndedPods()
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

    # -- which pods are there ---------------------------------------------------------------------------------------

    def put(self, pod: PodFacts) -> None:
        """Take a pod as it is now."""
        former = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        self.ended.forget(pod.uid)
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

    def _count(self, pod: PodFacts) -> None:
        """Count a pod as what it is to the job now."""
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

    def _count_number(self, gang: Gang) -> None:
        """Take what a pod says of the number of pods."""
        if gang.source.is_numbered_by_object:
            # The pods have it from one object, so the latest counts.
            self.labels.set_to(gang.pods)
            self.unknown = gang.unknown
        else:
            self.labels.add(gang.pods)

    def _uncount(self, pod: PodFacts) -> None:
        """Count a pod no longer, as it was counted before."""
        self.changed()
        was_living = self._living.pop(pod.uid, None)
        has_own_number = pod.job and not pod.job.source.is_numbered_by_object
        if was_living and pod.job and has_own_number:
            self.labels.remove(pod.job.pods)
        for pods in self._counts:
            pods.pop(pod.uid, None)

    def _uncount_former_run(self) -> None:
        """Count the pods of an earlier start no longer, as those of the next one come."""
        for pod in self._pods.values():
            if self._run.is_former(pod):
                self._uncount(pod)

    def changed(self) -> None:
        """Have counts worked out again."""
        self._surplus = None
        self.version += 1

    # -- with which pods it has started -----------------------------------------------------------------------------

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
        """Take the plans that a former run wrote, as UIDs. `known` are all pods, with those that have ended."""
        running, latest = running_starts(plans, self._living.values(), known)
        # Without pods that live, it is the latest one.
        for start in running or [latest]:
            self.start.join(start)
        self.start.size = max(self.start.size, self._size_before([start.uids for start in running]))
        self.changed()

    def _size_before(self, plans: Sequence[Collection[str]]) -> int:
        """How many pods the job had, at least, when a former run started it by these plans; 0 if that is not known.

        The largest plan is the first one, because later ones have pods that were added or come again.
        """
        planned = set[str]().union(*plans)
        are_all_planned = planned.issuperset(self._bound)
        if not planned or not are_all_planned:
            # The pod on which the first plan was written is gone, or another scheduler has started pods.
            return 0
        largest = max(map(len, plans))
        # No plan has the pods that ask for no GPUs.
        pods = [*self._living.values(), *self.ended]
        besides = [pod for pod in pods if pod.uid not in planned]
        without_gpus = sum(pod.request.kind is RequestKind.NONE for pod in besides)
        return max(largest + without_gpus, len(self._bound))

    # -- pods that have ended ---------------------------------------------------------------------------------------

    def end(self, pod: PodFacts) -> None:
        """Take that a pod has ended on a node. The API server keeps it for a while."""
        former = self._pods.get(pod.uid)
        self.remove(pod.uid)
        self.ended.put(pod, former)
        self.changed()

    def forget_ended(self, uid: str) -> bool:
        """Forget a pod that has ended; whether there was one."""
        pod = self.ended.forget(uid)
        if pod is None:
            return False
        has_done_its_part = pod.end is PodEnd.SUCCEEDED and uid in self.start.uids
        if has_done_its_part:
            self.done_and_gone += 1
        self.changed()
        return True

    def ended_before(self, *, failed: bool = False) -> int:
        """How many pods that have ended count as there, because all that live come in the place of others.

        They succeeded; with `failed`, those that failed count as well.
        """
        if not self.ended:
            return 0
        most = max(self.wanted, self.start.size)
        return self.ended.of_living(self._living.values(), self.start, most, failed=failed)

    # -- counts, and lists of those that count ----------------------------------------------------------------------

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
        """UIDs of the pods that another job of the same name seems to have, see `surplus_pods`."""
        if self._surplus is None:
            self._surplus = self._surplus_now()
        return self._surplus

    def _surplus_now(self) -> frozenset[str]:
        wanted = self.wanted
        is_beyond = wanted < len(self._living) <= MOST_PODS
        if not wanted or not self.labels.are_one or not is_beyond:
            return frozenset()
        return surplus_pods(self._living.values(), wanted, self.start.uids)

    def bound(self) -> list[PodFacts]:
        """Pods with GPUs on nodes."""
        surplus = self.surplus
        return [pod for uid, pod in self._bound.items() if uid not in surplus]

    def to_place(self) -> list[PodFacts]:
        """Pods that wait for GPUs; kube-scheduler binds those that ask for none."""
        surplus = self.surplus
        return [pod for uid, pod in self.pending.items() if uid not in surplus]

    def bad(self) -> PodFacts | None:
        """A pod that no node can serve."""
        for uid, pod in self._bad.items():
            if uid not in self.surplus:
                return pod
        return None


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
