"""Jobs: pods with one label `gpu-topology` in a namespace, which start together or wait together.

A job is forming until as many pods are there as `gpu-topology-replica` says. Then it waits, and holds nothing, until
all of its pods fit: the plan reserves the GPUs of all. Each pod's bind call waits until all pods are in bind. Then the
plan is written on one of them, and all are bound. Pods that replace members of a running job are planned near it.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush

from gpuscheduler.core.calls import (
    Action,
    BindRefused,
    BindWait,
    CommitJob,
    FilterAnswer,
    Nominate,
    Nudge,
    Ungate,
)
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.fit import Choice, Tries, serves, still_fits
from gpuscheduler.core.jobs.commit import commit_text, committed_places
from gpuscheduler.core.jobs.members import MOST_PODS, Members
from gpuscheduler.core.jobs.plan import PLAN_TRIES, OtherThan, Passed, Places, plan
from gpuscheduler.core.links import Links
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.reasons import main_reason, short_in_all
from gpuscheduler.core.reservations import Reservations

BARRIER_S = 15.0
"""How long a planned job holds GPUs until all of its pods are in bind."""
COMMITTED_S = 60.0
"""How long the GPUs of a written plan stay reserved."""
UNSUITABLE_S = 60.0
"""How long a waiting job passes over nodes that kube-scheduler did not name. Then kube-scheduler has to ask again."""
MOST_AT_ONCE = 64
"""Pods of a job that is planned as soon as one more is seen. Any author of pods may label thousands of them alike."""
FAILED_S = 600.0
"""How long pods that come again wait for members that failed. Controllers make new ones within 6 minutes, or never."""
RETRY_FIRST_S, RETRY_LIMIT_S = 1.0, 30.0
"""Delay before a job is planned again after its plan broke. Each failure doubles it."""
ALL_NAMED = 100
"""kube-scheduler names all nodes of a cluster up to this size; in a larger one, the planned node is nominated."""
NAMED_NUMBERS = 2
"""Numbers in the reason of a job whose labels disagree."""


class JobState(Enum):
    """What a job does."""

    FORMING = "forming"
    """It waits for more pods."""
    WAITING = "waiting"
    """Its pods are there and have no GPUs."""
    PLANNED = "planned"
    """GPUs are reserved for its pods, which start."""
    RUNNING = "running"
    """All of its pods are bound."""
    INVALID = "invalid"
    """Its labels or requests cannot be served."""


JobKey = tuple[str, str]
"""Namespace and name of a job."""


@dataclass(slots=True)
class _Plan:
    """Nodes and GPUs for pods of a job that are not bound yet.

    Attributes:
        places: by UID.
        until: when it breaks unless all pods are in bind.
        in_bind: UIDs of the pods whose bind call waits.
        sent: the plan is being written on a pod.
        committed: it is written; its pods are bound now.
    """

    places: Places
    until: float
    in_bind: set[str] = field(default_factory=set)
    sent: bool = False
    committed: bool = False


@dataclass(slots=True)
class _Job:
    """A job.

    Attributes:
        members: its pods.
        plan: for the pods that are not bound; None if there is none.
        unnamed: by UID, names of the nodes that kube-scheduler left out for the pod; the latest last.
        ask_at: when a pod that waits for lack of named nodes has kube-scheduler ask again.
        retry_at: when the job may be planned again after its plan broke.
        delay_s: the next delay.
        fitting: how many of its pods fit when it was planned last.
        missed: UIDs of pods that did not come to the last plan. Nothing is reserved until it asks about each again.
        alone_at: when pods that come again no longer wait for members that failed; infinite if they do not wait.
        alone: they no longer do.
        let_in: all of its pods are there, so that they have lost our scheduling gate.
        due: when `tick` has work for the job.
        gave_up: the last plan took too many tries.
        tried: what the last plan that failed was made of. Another one is made when that has changed.
        reason: why a pod of the job waits, and what it was worked out from.
    """

    members: Members = field(default_factory=Members)
    plan: _Plan | None = None
    unnamed: dict[str, Passed] = field(default_factory=dict)
    ask_at: float = float("inf")
    retry_at: float = float("-inf")
    delay_s: float = RETRY_FIRST_S
    fitting: int = 0
    missed: set[str] = field(default_factory=set)
    alone_at: float = float("inf")
    alone: bool = False
    let_in: bool = False
    due: float = float("inf")
    gave_up: bool = False
    tried: object = None
    reason: tuple[object, str] = (None, "")

    def unsuitable(self) -> dict[str, Passed]:
        """UID of each pending pod to the nodes to pass over: its own, or the latest of a pod with an equal request."""
        if not self.unnamed:
            return {}
        alike = {pod.request: nodes for uid, nodes in self.unnamed.items() if (pod := self.members.get(uid))}
        pending = self.members.to_place()
        return {pod.uid: self.unnamed.get(pod.uid, alike.get(pod.request, frozenset())) for pod in pending}

    def passes_over(self, uid: str, nodes: Passed) -> None:
        """Take that kube-scheduler has these nodes not for a pod."""
        if self.unnamed.pop(uid, None) != nodes:
            self.tried = None
        self.unnamed[uid] = nodes


class Jobs:
    """All jobs. The caller drains `actions` after each call.

    Args:
        usage: nodes and their users.
        reservations: of all pods.
        links: between the GPUs of nodes.
        pods: by UID, as the watch shows them.
    """

    def __init__(
        self, usage: ClusterUsage, reservations: Reservations, links: Links, pods: Mapping[str, PodFacts]
    ) -> None:
        self._usage, self._reservations, self._links, self._pods = usage, reservations, links, pods
        self._jobs: dict[JobKey, _Job] = {}
        self._again = self._ready = False
        self._frees = 0
        self._round: deque[JobKey] = deque()
        self._waiting: dict[JobKey, None] = {}
        self._due: list[tuple[float, JobKey]] = []
        self._ended: dict[str, JobKey] = {}
        self.actions: list[Action] = []

    def is_member(self, pod: PodFacts) -> bool:
        """Whether the pod belongs to a job of several pods."""
        return pod.job is not None and pod.job.replicas != 1

    def size(self, pod: PodFacts) -> int:
        """How many pods run with this one in a job, itself included."""
        job = self._jobs.get(_key(pod)) if self.is_member(pod) else None
        return max(job.members.running, 1) if job else 1

    def why(self, pod: PodFacts) -> str:
        """Why a member waits; empty if its job starts, or it is no member."""
        key = _key(pod)
        job = self._jobs.get(key) if self.is_member(pod) else None
        if job is None or pod.uid not in job.members or (job.plan and pod.uid in job.plan.places):
            return ""
        return self._problem(key, job) or self._missing(key, job, pod) or self._why_waiting(key, job, self._usage.nodes)

    def pod_seen(self, pod: PodFacts, now: float) -> None:
        """Take a member as it is now; when the last one comes, plan the job."""
        key = _key(pod)
        job = self._jobs.setdefault(key, _Job())
        is_new = pod.uid not in job.members
        before = self._state(job)
        if is_new:
            job.alone = False
            job.alone_at = float("inf")
        job.members.put(pod)
        if job.plan and pod.node:
            job.plan.places.pop(pod.uid, None)
        self._review(job, now)
        if not is_new and self._state(job) != before:
            self._again = True  # such as by the first of its pods that another scheduler binds
        if is_new and not pod.node and self._is_complete(job):
            if job.let_in and pod.gated:
                self.actions.append(Ungate(pod.name, pod.uid))
            if len(job.members) > MOST_AT_ONCE:
                self._again = True
            else:
                self._try(job, now)
        is_other_reason = job.plan is None and self._state(job) != before
        if is_new and self._ready and is_other_reason:  # kube-scheduler shows the former one
            others = [one for one in job.members.pending.values() if one.uid != pod.uid and not one.gated]
            self.actions += [Nudge(one.name, one.uid) for one in others[:MOST_AT_ONCE]]
        self._settle(key, job, now)

    def pod_gone(self, pod: PodFacts, now: float) -> None:
        """Forget a member that was deleted or has ended."""
        key = _key(pod)
        if (job := self._jobs.get(key)) is None:
            return
        job.members.remove(pod.uid)
        job.unnamed.pop(pod.uid, None)
        self._again = True  # it may have kept the others from being planned
        self._review(job, now)
        self._settle(key, job, now)

    def pod_ended(self, pod: PodFacts, now: float) -> None:
        """Take that a member has ended on a node. It counts as there for those that come again."""
        key = _key(pod)
        job = self._jobs.setdefault(key, _Job())
        was_complete = self._is_complete(job)
        job.members.end(pod)
        self._ended[pod.uid] = key
        if not was_complete and self._is_complete(job):
            self._complete(job)
        self._settle(key, job, now)

    def ended_gone(self, uid: str) -> None:
        """Forget a pod that has ended, if it is one."""
        key = self._ended.pop(uid, None)
        job = self._jobs.get(key) if key else None
        if key and job and job.members.ended.pop(uid, None):
            job.members.changed()
            if not (len(job.members) or job.members.ended):
                del self._jobs[key]

    def tick(self, now: float) -> None:
        """Break plans whose pods did not all come. Plan one of the jobs that wait: each in turn, by priority and age.

        It is one, because a plan over thousands of nodes takes tens of milliseconds, and calls wait meanwhile.
        """
        while self._due and self._due[0][0] <= now:
            at, key = heappop(self._due)
            job = self._jobs.get(key)
            if job and job.due == at:
                job.due = float("inf")
                self._take_due(job, now)
                self._settle(key, job, now)
        if not self._round and self._may_fit:
            due = [key for key in self._waiting if self._jobs[key].retry_at <= now]
            self._again, self._frees = False, self._usage.frees
            self._round = deque(sorted(due, key=lambda key: _age(self._jobs[key])))
        if self._round:
            key = self._round.popleft()
            if (waiting := self._jobs.get(key)) and self._waits(waiting):
                self._try(waiting, now)
                self._settle(key, waiting, now)

    def _take_due(self, job: _Job, now: float) -> None:
        """Do what is due for a job."""
        if job.plan and job.plan.until <= now:
            self._miss(job, job.plan)
            self._break(job, now)
        if job.ask_at <= now:
            job.ask_at = float("inf")
            job.unnamed.clear()
            job.tried = None
            self.actions += [Nudge(pod.name, pod.uid) for pod in job.members.to_place()[:1]]
        if job.alone_at <= now:
            job.alone_at = float("inf")
            job.alone = True
            self._complete(job)
        if float("-inf") < job.retry_at <= now:
            self._again = True

    def _complete(self, job: _Job) -> None:
        """Have a job planned that need not wait for more pods, although none has come."""
        self._again = True
        pending = list(job.members.pending.values())
        self.actions += [Nudge(pod.name, pod.uid) for pod in pending[:MOST_AT_ONCE] if not pod.gated]

    def _settle(self, key: JobKey, job: _Job, now: float) -> None:
        """Note after each change of a job when it is due, and whether it waits: there may be thousands of jobs."""
        if not (len(job.members) or job.members.ended):
            self._jobs.pop(key, None)
            self._waiting.pop(key, None)
            return
        waits = self._waits(job)
        if waits:
            self._waiting[key] = None
        else:
            self._waiting.pop(key, None)
        is_complete = self._is_complete(job)
        if is_complete and not job.let_in:
            self.actions += [Ungate(pod.name, pod.uid) for pod in job.members.pending.values() if pod.gated]
        job.let_in = is_complete
        may_come_again = bool(job.members.pending) and not (job.alone or is_complete)
        if not may_come_again:
            job.alone_at = float("inf")
        elif job.alone_at == float("inf") and job.members.ended_before(failed=True):
            job.alone_at = now + FAILED_S
        due = min(job.ask_at, job.alone_at)
        if job.plan:
            due = min(due, job.plan.until)
        elif waits and job.retry_at > now:
            due = min(due, job.retry_at)
        if due != job.due:
            job.due = due
            if due < float("inf"):
                heappush(self._due, (due, key))

    def next_due(self, now: float) -> Iterator[float]:
        """When `tick` has work, in monotonic seconds."""
        while self._due:
            at, key = self._due[0]
            job = self._jobs.get(key)
            if job and job.due == at:
                yield at
                break
            heappop(self._due)  # it is due at another time by now
        if self._may_fit or self._round:
            yield now

    def filter(self, pod: PodFacts, names: Collection[str], now: float) -> FilterAnswer:
        """The planned node of a member, or why the job waits."""
        key = _key(pod)
        job = self._jobs.setdefault(key, _Job())
        job.members.put(pod)
        job.missed.discard(pod.uid)
        answer = self._filter(key, job, pod, names, now)
        if not (pod.uid in self._pods or (job.plan and pod.uid in job.plan.places)):
            job.members.remove(pod.uid)  # it counts once the watch shows it: it may be gone
        self._settle(key, job, now)
        return answer

    def _filter(self, key: JobKey, job: _Job, pod: PodFacts, names: Collection[str], now: float) -> FilterAnswer:
        if why := self._problem(key, job) or self._missing(key, job, pod):
            return FilterAnswer(unresolvable=dict.fromkeys(names, why), cause="job")
        place = self._place(job, pod, names, now)
        if place is None:
            why = self._why_waiting(key, job, names)
            return FilterAnswer(unresolvable=dict.fromkeys(names, why), cause="job")
        if place[0] in names:
            return FilterAnswer(nodes=(place[0],))
        self.actions.append(Nominate(pod.name, pod.uid, place[0]))
        text = f"job {key[1]} is planned on node {place[0]}, which kube-scheduler tries next"
        return FilterAnswer(unresolvable=dict.fromkeys(names, text), cause="job")

    def bind(self, pod: PodFacts, node: str, now: float) -> Choice | BindWait | BindRefused:
        """The GPUs of a member whose job is complete in bind and written; otherwise it waits."""
        key = _key(pod)
        job = self._jobs.get(key)
        place = job.plan.places.get(pod.uid) if job and job.plan else None
        if job is None or job.plan is None or place is None:
            return BindRefused(f"job {key[1]} has no plan for this pod any more; kube-scheduler tries it again")
        if place[0] != node:
            return BindRefused(f"job {key[1]} is planned with this pod on node {place[0]}")
        if job.plan.until <= now:
            self._miss(job, job.plan)
            self._drop(job, {pod.uid}, now)
            return BindRefused(f"not all pods of job {key[1]} came within {BARRIER_S:.0f} s")
        if not job.plan.committed:
            job.plan.in_bind.add(pod.uid)
        all_there = not job.plan.sent and job.plan.in_bind >= job.plan.places.keys()
        to_check = job.plan.places if all_there else {pod.uid: place} if job.plan.committed else {}
        if not all(self._still_fits(job.members[uid], one) for uid, one in to_check.items()):
            self._drop(job, {pod.uid}, now)
            return BindRefused(f"GPUs that job {key[1]} was planned on are not free any more")
        if job.plan.committed:
            return place[1]
        if all_there:
            job.plan.sent = True
            text = commit_text(job.plan.places)
            self.actions.append(CommitJob(pod.name, pod.uid, pod.version, key, text))
        return BindWait(key, job.plan.until)

    def visible(self, pod: PodFacts, node: str) -> set[int]:
        """Minor numbers of the GPUs that pods of the job have on a node."""
        job = self._jobs.get(_key(pod), _Job())
        planned = [choice.used for name, choice in (job.plan.places.values() if job.plan else ()) if name == node]
        bound = [self._pods.get(member.uid, member) for member in job.members.bound() if member.node == node]
        used_there = [member.used for member in bound if member.used]
        return {minor for used in (*planned, *used_there) for minor, _ in used}

    def left_bind(self, pod: PodFacts) -> None:
        """A bind call ended without a Binding, so its pod no longer waits for the others."""
        job = self._jobs.get(_key(pod))
        if job and job.plan and not job.plan.committed:
            job.plan.in_bind.discard(pod.uid)

    def committed(self, key: JobKey, now: float, *, written: bool) -> None:
        """Take the result of writing a job's plan."""
        job = self._jobs.get(key)
        if job is None or job.plan is None or not job.plan.sent:
            return
        if written:
            job.plan.committed = True
            job.plan.until = now + COMMITTED_S
            job.members.started(job.plan.places)
            self._keep(job, job.plan)
        else:
            self._break(job, now)
        self._settle(key, job, now)

    def recover(self, pods: Iterable[PodFacts], now: float) -> None:
        """Begin to plan, or lead. First reserve what written plans have for jobs that are bound in part.

        `pods` are all members, with those that have ended on a node.
        """
        self._ready = self._again = True
        members: dict[JobKey, dict[str, PodFacts]] = {}
        texts: dict[JobKey, list[str]] = {}
        for pod in pods:
            members.setdefault(_key(pod), {})[pod.uid] = pod
            if pod.commit:
                texts.setdefault(_key(pod), []).append(pod.commit)
        for key in texts.keys() & self._jobs.keys():
            job = self._jobs[key]
            if job.plan and not job.plan.committed:  # made while another led
                self._reservations.give_back(job.plan.places)
                job.plan = None
            plans = [places for text in texts[key] if _is_bound(places := committed_places(text), members[key])]
            job.members.started_before(plans, members[key])
            self._recover(job, plans, now)
            self._settle(key, job, now)

    def _recover(self, job: _Job, plans: Iterable[Places], now: float) -> None:
        """Reserve what the plans have for pods that are not bound yet."""
        if job.plan:
            return
        pending = {pod.uid: pod for pod in job.members.to_place()}
        places = {uid: place for written in plans for uid, place in written.items() if uid in pending}
        rest = _Plan({}, now + COMMITTED_S, sent=True, committed=True)
        for uid, (name, choice) in places.items():
            pod = pending[uid]
            # Each is reserved before the next is looked at: the node may have less by now than all of them need.
            if serves(pod.request, choice) and self._fits((name, choice)):
                rest.places[uid] = name, choice
                self._reservations.keep(pod, {name: choice}, rest.until)
        if rest.places:
            job.plan = rest

    def states(self) -> Counter[JobState]:
        """Number of jobs by state."""
        return Counter(self._job_state(job) for job in self._jobs.values() if len(job.members))

    def _job_state(self, job: _Job) -> JobState:
        if self._problem(("", ""), job):
            return JobState.INVALID
        if job.plan:
            return JobState.PLANNED
        if not self._is_complete(job):
            return JobState.FORMING
        return JobState.WAITING if job.members.to_place() else JobState.RUNNING

    @property
    def _may_fit(self) -> bool:
        """Whether waiting jobs are to be planned at the next tick, as units may have become free."""
        return self._again or self._frees != self._usage.frees

    def _still_fits(self, pod: PodFacts, place: tuple[str, Choice]) -> bool:
        node = self._usage.nodes.get(place[0])
        return node is not None and still_fits(pod.request, node, place[1])

    def _fits(self, place: tuple[str, Choice]) -> bool:
        node = self._usage.nodes.get(place[0])
        return node is not None and node.has_room(place[1].used)

    def _waits(self, job: _Job) -> bool:
        """Whether the job is to be planned as soon as there is room."""
        pending = job.members.pending
        if job.plan or not pending or self._problem(("", ""), job):
            return False
        if not (self._is_complete(job) or any(uid in job.members.start.uids for uid in pending)):
            return False
        return not any(uid in pending for uid in job.missed)

    def _to_plan(self, job: _Job) -> list[PodFacts]:
        """The pods that may be planned now."""
        if self._problem(("", ""), job):
            return []
        pending = job.members.to_place()
        started = job.members.start.uids
        return pending if self._is_complete(job) else [pod for pod in pending if pod.uid in started]

    def _is_complete(self, job: _Job) -> bool:
        if job.members.any_bound:  # it has started: these replace members, or are added
            return True
        wanted = next(iter(job.members.replicas), None)
        return wanted is not None and self._there(job) >= wanted

    def _there(self, job: _Job) -> int:
        """How many pods are there. Where some come again, those that have ended are, too."""
        members = job.members
        if members.present >= members.wanted or not members.present:
            return members.present
        return members.present + members.ended_before(failed=job.alone)

    def _state(self, job: _Job) -> tuple[bool, bool]:
        """Whether the job can never start, and whether all of its pods are there."""
        return bool(self._problem(("", ""), job)), self._is_complete(job)

    def _missing(self, key: JobKey, job: _Job, pod: PodFacts) -> str:
        """How many pods are there; empty if the pod need not wait for others."""
        members = job.members
        if pod.uid in members.extra:
            return f"job {key[1]} has its {members.wanted} pods; a second job in the namespace needs its own name"
        if self._is_complete(job) or pod.uid in members.start.uids:
            return ""
        return f"job {key[1]}: {self._there(job)} of {next(iter(members.replicas))} pods are there"

    def _problem(self, key: JobKey, job: _Job) -> str:
        """Why a job can never start; empty if it can."""
        members = job.members
        if None in members.replicas:
            return f"job {key[1]}: label gpu-topology-replica is no number of pods"
        if len(members.replicas) > 1 and not members.any_bound:
            return f"job {key[1]}: its pods disagree on gpu-topology-replica ({_few_of(members.numbers)})"
        if max(members.present, members.wanted) > MOST_PODS:
            number = max(members.present, members.wanted)
            return f"job {key[1]} has {number} pods; at most {MOST_PODS} can start together"
        bad = members.bad()
        return f"job {key[1]}: pod {bad.name} {bad.request.problem}" if bad else ""

    def _why_waiting(self, key: JobKey, job: _Job, names: Collection[str]) -> str:
        """Why a complete job has no place for a pod."""
        if job.missed:
            return f"job {key[1]}: {len(job.missed)} of its pods did not come in time, and were not tried since"
        if job.plan:
            return f"job {key[1]} is planned without this pod, which comes next"
        made_of = self._usage.version, job.members.version, job.fitting, job.gave_up, job.ask_at, len(names)
        if job.reason[0] != made_of:
            job.reason = made_of, self._why_no_plan(key, job, names)
        return job.reason[1]

    def _why_no_plan(self, key: JobKey, job: _Job, names: Collection[str]) -> str:
        pending = job.members.to_place()
        if job.gave_up:
            requests = len({pod.request for pod in pending})
            why = f"{requests} different requests, for which no plan was found in {PLAN_TRIES} tries"
            return f"job {key[1]}: its {len(pending)} pods have {why}"
        if job.fitting >= len(pending):
            return f"job {key[1]}: its last plan failed, and it is planned again within {RETRY_LIMIT_S:.0f} s"
        asking = [pod.request for pod in (*pending, *job.members.bound())]
        if short := short_in_all(asking, *self._usage.in_all()):
            resource, wanted, there = short
            return f"job {key[1]} asks for {wanted} of {resource}, and the cluster has {there}"
        on = " on the nodes that kube-scheduler names" if job.ask_at < float("inf") else ""
        text = f"job {key[1]}: its {len(pending)} pods do not fit together, at most {job.fitting} of them do now{on}"
        largest = max(pending, key=lambda pod: (pod.request.gpus, pod.request.need))
        return f"{text} ({largest.name.name}: {main_reason(largest.request, names, self._usage.nodes)})"

    def _place(self, job: _Job, pod: PodFacts, names: Collection[str], now: float) -> tuple[str, Choice] | None:
        """Node and GPUs of a pod in the job's plan, which is made here if there is none that kube-scheduler accepts."""
        place = job.plan.places.get(pod.uid) if job.plan else None
        if (job.plan and place is None) or (place and place[0] in names):
            return place
        alone = pod.nominated in names and len(names) == 1  # then kube-scheduler has not looked at the others
        named_all = not alone and min(len(self._usage.nodes), len(names)) <= ALL_NAMED
        rejected = place is not None and not alone and (named_all or pod.nominated == place[0])
        if named_all or rejected:
            few = len(self._usage.nodes) <= ALL_NAMED
            named = frozenset(names)
            job.passes_over(pod.uid, frozenset(self._usage.nodes) - named if few else OtherThan(named))
        if job.plan and (job.plan.committed or not rejected):  # a job that has started must not lose its GPUs to others
            return place
        if place is None and len(job.members) > MOST_AT_ONCE:
            self._again = self._again or job.tried != self._made_of(job)  # it takes long, and `tick` has the time
        elif place is None:
            self._try(job, now, calling=pod.uid)
        else:
            self._break(job, now)
            delayed, job.retry_at = job.retry_at, float("-inf")
            self._try(job, now, calling=pod.uid)
            if job.plan is None:
                job.retry_at = delayed
                if not named_all:
                    job.passes_over(pod.uid, frozenset([place[0]]))
        return job.plan.places.get(pod.uid) if job.plan else None

    def _try(self, job: _Job, now: float, calling: str = "") -> None:
        """Plan the job's pending pods and reserve their GPUs; `calling` is the UID of a pod in a filter call."""
        if not self._ready or job.plan or job.retry_at > now:
            return
        if job.tried == self._made_of(job):
            job.retry_at = float("-inf")
            return
        pending = self._to_plan(job)
        if not pending or not _may_come(job, pending):
            return
        if (doubt := max(self._reservations.may_be_bound(pod.uid) or now for pod in pending)) > now:
            job.retry_at = doubt
            return
        job.retry_at, job.ask_at = float("-inf"), float("inf")
        near = {pod.node for pod in job.members.bound()}
        self._reservations.end(pod.uid for pod in pending)
        unsuitable = job.unsuitable()
        tries = Tries(PLAN_TRIES)
        places = plan(pending, self._usage.nodes, self._links, near=near, without=unsuitable, tries=tries)
        job.fitting = len(places)
        job.gave_up = tries.gave_up
        if len(places) < len(pending):
            job.tried = self._made_of(job)
            if any(unsuitable.values()):
                job.ask_at = now + UNSUITABLE_S
            if len(pending) > MOST_AT_ONCE:
                self._delay(job, now)
            return
        job.plan = _Plan(places, now + BARRIER_S)
        self._keep(job, job.plan)
        others = [pod for pod in pending if pod.uid != calling]
        if len(self._usage.nodes) > ALL_NAMED:
            self.actions += [Nominate(pod.name, pod.uid, places[pod.uid][0]) for pod in others]
        self.actions += [Nudge(pod.name, pod.uid) for pod in others if not pod.gated]

    def _made_of(self, job: _Job) -> object:
        """What a plan depends on: one that failed fails again as long as this is equal."""
        return self._usage.frees, job.members.version, job.alone

    def _review(self, job: _Job, now: float) -> None:
        """Take that planned pods are bound, or will not come: the job may not even be complete without one."""
        if job.plan:
            coming = {pod.uid for pod in (job.members.to_place() if job.plan.committed else self._to_plan(job))}
            self._drop(job, job.plan.places.keys() - coming, now)
        if job.plan and self._is_part(job, job.plan):
            self._break(job, now)

    def _is_part(self, job: _Job, made: _Plan) -> bool:
        """Whether the plan would start a part of the job: it was made beside running pods, which are gone by now."""
        members = job.members
        if made.committed or members.any_bound or not self._is_complete(job):
            return False
        if made.places.keys() <= members.start.uids:
            return False
        left_out = sum(pod.uid not in made.places for pod in members.to_place())
        return self._there(job) - len(members.extra) - left_out < members.wanted

    def _miss(self, job: _Job, made: _Plan) -> None:
        """Take that pods did not come in time. kube-scheduler asks about them again if it can place them at all."""
        if not made.committed:
            missed = [pod for pod in job.members.to_place() if pod.uid in made.places.keys() - made.in_bind]
            job.missed.update(pod.uid for pod in missed)
            self.actions += [Nudge(pod.name, pod.uid) for pod in missed]

    def _drop(self, job: _Job, uids: Collection[str], now: float) -> None:
        """Plan again without these pods, or with other GPUs. Only a written plan goes on for the others."""
        if job.plan and uids and not job.plan.committed:
            self._break(job, now)
        elif job.plan:
            self._reservations.give_back(uids)
            for uid in uids:
                del job.plan.places[uid]
            if not job.plan.places:
                job.plan, job.delay_s = None, RETRY_FIRST_S
                self._again = self._again or bool(job.members.pending)  # those that came after the plan

    def _keep(self, job: _Job, made: _Plan) -> None:
        for uid, (name, choice) in made.places.items():
            self._reservations.keep(job.members[uid], {name: choice}, made.until)

    def _break(self, job: _Job, now: float) -> None:
        """Give back all GPUs of a plan, and plan again after a delay."""
        if job.plan:
            self._reservations.give_back(job.plan.places)
            job.plan = None
            # kube-scheduler may have asked about a pod that was gone already.
            job.members.keep_only(self._pods.keys())
            job.tried = None
            self._again = True
            self._delay(job, now)

    def _delay(self, job: _Job, now: float) -> None:
        """Plan the job again after a while, which is longer each time."""
        job.retry_at = now + job.delay_s
        job.delay_s = min(job.delay_s * 2, RETRY_LIMIT_S)


def _may_come(job: _Job, pending: Collection[PodFacts]) -> bool:
    """Whether kube-scheduler may place the pods, as far as is known: it asks about none that it has no node for."""
    return job.missed.isdisjoint(pod.uid for pod in pending)


def _few_of(numbers: Sequence[int]) -> str:
    """The smallest numbers of a job's labels. Each of thousands of pods may name another one."""
    if len(numbers) <= NAMED_NUMBERS:
        return " and ".join(map(str, numbers))
    named = ", ".join(map(str, numbers[:NAMED_NUMBERS]))
    return f"{named} and {len(numbers) - NAMED_NUMBERS} more"


def _key(pod: PodFacts) -> JobKey:
    return pod.name.namespace, pod.job.name if pod.job else ""


def _is_bound(places: Places, members: Mapping[str, PodFacts]) -> bool:
    """Whether pods of a written plan are on nodes, or have ended there."""
    return any((pod := members.get(uid)) and pod.node for uid in places)


def _age(job: _Job) -> tuple[int, str]:
    pods = job.members.pods.values()
    return -max(pod.priority for pod in pods), min(pod.created for pod in pods)
