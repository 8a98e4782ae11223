"""Keeps the limits of a node's pods in force: before containers start, as new ones appear, and in audits."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.host.cgroup_watch import CgroupWatch
from gpuagent.host.limits_client import LimitsError
from gpuagent.isolation.interface import CannotIsolateError, Need
from gpuagent.isolation.limits.audit import Why
from gpuagent.isolation.limits.container_names import ContainerNames
from gpuagent.isolation.limits.foreign import ForeignLimits
from gpuagent.isolation.limits.look_again import LooksAgain
from gpuagent.isolation.limits.plan import Backend, PodPlan, Resized, pod_plan
from gpuagent.isolation.limits.pods import Outcome, PodLimits
from gpuagent.system.inotify import ADVICE
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

UNNAMED = (
    "containers of the pod have different claims on one GPU. This node's driver needs a limit for each container, and "
    "kubelet does not say which container of a claim it starts: let one container of the pod use the GPU"
)
AUDIT_S = 5.0
"""Seconds between two audits of all limits."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the last audit has shown.

    Attributes:
        unlimited: UID of a pod to why it may use more than its share.
        refused: UID of a pod to why its new limit is not in force, and the former one is.
        left_out: GPU UUID to why it takes no new pods.
        applied: UID of a resized pod to the shares whose limits are in force.
    """

    unlimited: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    applied: Mapping[str, PodShares] = field(default_factory=dict)

    def with_outcome(self, uid: str, outcome: Outcome) -> "Findings":
        """The findings, with those of one more pod."""
        unlimited = dict(self.unlimited)
        refused = dict(self.refused)
        left_out = dict(self.left_out)
        if outcome.unlimited:
            unlimited[uid] = "; ".join(outcome.unlimited.values())
        for uuid, reason in outcome.unlimited.items():
            left_out[uuid] = f"the memory limit of a pod on it is not in force: {reason}"
        if outcome.refused:
            refused[uid] = "; ".join(outcome.refused.values())
        return replace(self, unlimited=unlimited, refused=refused, left_out=left_out)

    def with_applied(self, uid: str, shares: PodShares) -> "Findings":
        """The findings, with one more resized pod whose limits are in force."""
        return replace(self, applied={**self.applied, uid: shares})


class LimitsKeeper:
    """The limits of the pods below one cgroup. Every method may be called from any thread.

    Args:
        pods: reads and sets limits.
        wake: ends the pause between two calls of `look`.
        audit_s: seconds between two audits.
        clock: monotonic seconds.

    Attributes:
        has_audited: all pods have been looked at since the last `distrust`.
        watch_problem: why new containers are only seen by audits, and what to do; None if they are watched.
    """

    def __init__(
        self,
        pods: PodLimits,
        wake: Callable[[], None],
        *,
        audit_s: float = AUDIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.has_audited = False
        self.watch_problem: str | None = None
        self._pods = pods
        self._wake = wake
        self._audit_s = audit_s
        self._audit_at = float("-inf")
        self._clock = clock
        self._need = Need()
        # Held while what is known is read or changed, and never while the driver is asked.
        self._lock = threading.Lock()
        # Held from the choice of a pod's limits until they are set, so that no older limits come after newer ones.
        self._settling = threading.Lock()
        self._findings = Findings()
        self._repaired: Counter[str] = Counter()
        self._in_force: dict[str, PodPlan] = {}
        self._names = ContainerNames()
        self._foreign = ForeignLimits(pods, self._count_one)
        self._looks = LooksAgain(clock)
        self._warned: dict[str, set[str]] = {}
        self._watch: CgroupWatch | None = None

    def start(self) -> None:
        """Begin to look at new containers. Without that, the audits find what is wrong with them."""
        watch: CgroupWatch | None = None
        try:
            watch = CgroupWatch(self._appeared, self.audit_soon)
            watch.start()
            if self._pods.backend is Backend.MISC:
                # A container of any pod may be born with the limit of a dead one.
                watch.add_pods_of(self._pods.root)
        except OSError as err:
            advice = ADVICE.get(err.errno or 0, "look at the node's cgroups")
            self.watch_problem = f"new containers cannot be watched ({error_words(err)}): {advice}"
            if watch is not None:
                watch.stop()
            return
        self.watch_problem = None
        self._watch = watch

    def stop(self) -> None:
        """Limits stay in force."""
        if self._watch is not None:
            self._watch.stop()

    def serves(self, pods: PodLimits) -> bool:
        """Whether this keeper is for the same cgroups and backend."""
        return (self._pods.root, self._pods.backend) == (pods.root, pods.backend)

    def desire(self, need: Need) -> None:
        """Know the shares of all pods from now on. Changed shares are brought into force by the next `look`."""
        former = self._need
        has_changed = (need.pods, need.knows_pods, need.resized) != (former.pods, former.knows_pods, former.resized)
        self._need = need
        if has_changed:
            self._audit_at = float("-inf")
            self._wake()

    def distrust(self) -> None:
        """Whatever is in force has to be looked at before new containers may start."""
        self.has_audited = False
        self._audit_at = float("-inf")

    def audit_soon(self) -> None:
        """Have the next `look` look at all pods."""
        self._audit_at = float("-inf")
        self._wake()

    @property
    def findings(self) -> Findings:
        """Of the last audit."""
        with self._lock:
            return self._findings

    @property
    def repaired(self) -> dict[str, int]:
        """Why limits were set again to how often."""
        with self._lock:
            return dict(self._repaired)

    def pause_s(self) -> float:
        """Seconds until `look` has something to do."""
        due = min(self._audit_at, self._looks.next_at())
        return max(0.0, due - self._clock())

    # -- before a container starts ---------------------------------------------------------------------------

    def limit(self, uid: str, shares: PodShares, container: str) -> tuple[PodPlan, Outcome]:
        """Bring the limits of a pod into force of which a container is about to start.

        Args:
            uid: of the pod.
            shares: of the pod, by kubelet's allocations as just read.
            container: its name; empty if it is not known.

        Raises:
            CannotIsolateError: the backend cannot express the shares.
            LimitsError: the driver cannot be asked.
        """
        self._foreign.has_share(uid)
        if container:
            self._names.expect(uid, container, self._pods.leaves(uid))
        with self._settling:
            plan = pod_plan(self._latest(uid, shares), self._pods.backend)
            if plan.own_limits and not container:
                raise CannotIsolateError(UNNAMED)
            return plan, self._settle(uid, plan)

    def _latest(self, uid: str, shares: PodShares) -> PodShares:
        """The shares of a pod. Only the need has what was changed of them while the pod runs."""
        needed = self._need.pods.get(uid)
        if needed is not None and needed.containers.keys() >= shares.containers.keys():
            return needed
        return shares

    # -- while it runs ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at what is due: at all pods, and at new containers once more. Raises LimitsError."""
        if self._clock() >= self._audit_at:
            # Before the audit: a need that comes meanwhile has another one made at once.
            self._audit_at = self._clock() + self._audit_s
            self._audit()
        for uid in self._looks.due():
            self._settle_again(uid)

    def _audit(self) -> None:
        """Bring the limits of all pods into force."""
        if self._watch is None:
            self.start()
        need = self._need
        if not need.knows_pods:
            return
        findings = Findings()
        for uid, shares in need.pods.items():
            self._foreign.has_share(uid)
            with self._lock:
                is_known = uid in self._in_force
            with self._settling:
                outcome = self._settle(uid, self._plan(uid, shares))
            # A pod that is about to start has no limit yet, which is no fault.
            if is_known or not self.has_audited:
                self._count(outcome)
            findings = findings.with_outcome(uid, outcome)
            if outcome.is_in_force and uid in need.resized:
                findings = findings.with_applied(uid, shares)
        with self._lock:
            self._findings = findings
        self._forget_ended(need)
        self.has_audited = True

    def _plan(self, uid: str, shares: PodShares) -> PodPlan:
        """The limits of a pod that runs."""
        try:
            return pod_plan(shares, self._pods.backend)
        except CannotIsolateError as err:
            # A pod that came to a claim later. Kubelet does not ask about it, and all its shares are its bound.
            if self._is_first_warning(uid, "whole"):
                log.warning("Limited a pod as a whole only", extra={"pod_uid": uid, "error": str(err)})
            return PodPlan(shares.total)

    def _is_first_warning(self, uid: str, topic: str) -> bool:
        """Whether the log has no such line of this pod yet. Each audit would repeat it."""
        with self._lock:
            topics = self._warned.setdefault(uid, set())
            is_first = topic not in topics
            topics.add(topic)
        return is_first

    def _settle_again(self, uid: str, new_leaf: str = "") -> None:
        """Bring the limits into force again that a pod has."""
        with self._settling:
            with self._lock:
                plan = self._in_force.get(uid)
            outcome = self._settle(uid, plan, new_leaf) if plan is not None else Outcome()
        self._count(outcome)

    def _settle(self, uid: str, plan: PodPlan, new_leaf: str = "") -> Outcome:
        """Bring the limits of one pod into force, and remember what is. Called with `_settling` held.

        `new_leaf` is a container that appears.
        """
        with self._lock:
            former = self._in_force.get(uid, PodPlan())
        names = self._names.joined(self._need.containers)
        most = self._need.resized.get(uid)
        resized = None if most is None else Resized(former, self._plan(uid, most))
        outcome = self._pods.settle(uid, plan, names, former.pod, resized, new_leaf=new_leaf)
        if outcome.is_in_force:
            with self._lock:
                self._in_force[uid] = plan
        self._follow(uid)
        for container in outcome.short:
            if self._is_first_warning(uid, container):
                extra = {"pod_uid": uid, "container": container}
                log.warning("Left a container with less than its share until it starts again", extra=extra)
        return outcome

    def _count(self, outcome: Outcome) -> None:
        with self._lock:
            for why, count in outcome.repaired.items():
                self._repaired[str(why)] += count

    def _count_one(self, why: Why) -> None:
        self._count(Outcome(repaired=Counter({why: 1})))

    def _follow(self, uid: str) -> None:
        """Be told of the pod's next containers."""
        directory = self._pods.directory(uid)
        if directory is None or self._watch is None:
            return
        try:
            self._watch.add(uid, directory)
        except FileNotFoundError:
            return  # the pod has just ended
        except OSError as err:
            if self._is_first_warning(uid, "watch"):
                log.warning("Failed to watch the containers of a pod", extra={"pod_uid": uid, "error": str(err)})

    def _forget_ended(self, need: Need) -> None:
        """Drop what is known of pods that have ended."""
        ended = self._foreign.forget_ended(need.pods)
        self._names.forget(ended, need.containers)
        with self._lock:
            for uid in ended:
                self._in_force.pop(uid, None)
                self._warned.pop(uid, None)

    # -- as containers appear --------------------------------------------------------------------------------

    def _appeared(self, uid: str, leaf: str) -> None:
        """A cgroup of a pod (then `leaf` is empty) or of a container has appeared; the container does not run yet."""
        with self._lock:
            plan = self._in_force.get(uid)
        if leaf:
            self._names.appeared(uid, leaf)
        try:
            if plan is None:
                self._of_other_pod(uid, leaf)
            elif leaf:
                self._settle_again(uid, new_leaf=leaf)
                self._look_again(uid)
        except LimitsError as err:
            # The next audit looks at it.
            log.warning("Failed to look at a new container", extra={"pod_uid": uid, "error": str(err)})

    def _look_again(self, uid: str) -> None:
        if self._pods.backend is not Backend.MISC:
            return  # there, the pod's limit holds whatever the container's is
        self._looks.add(uid)
        self._wake()

    def _of_other_pod(self, uid: str, leaf: str) -> None:
        """A pod or container without a share. On backend misc, it may have inherited a limit."""
        if self._pods.backend is not Backend.MISC:
            return
        if not leaf:
            self._follow(uid)
        elif self.has_audited and self._need.knows_pods:
            # Before that, any pod may have a share that is not known yet.
            self._foreign.clear(uid, leaf, [gpu.uuid for gpu in self._need.gpus])
