"""Keeps the limits of a node's pods in force: before containers start, as new ones appear, and in audits."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpuagent.domain.sharing.memory_shares import BytesByGpu, PodShares
from gpuagent.host.limits_client import LimitsError
from gpuagent.isolation.interface import Need
from gpuagent.isolation.limits.foreign import ForeignLimits
from gpuagent.isolation.limits.in_force import LimitsInForce
from gpuagent.isolation.limits.look_again import LooksAgain
from gpuagent.isolation.limits.new_containers import NewContainers
from gpuagent.isolation.limits.plan import Backend, PodPlan
from gpuagent.isolation.limits.pods import Outcome, PodLimits
from gpuagent.isolation.limits.warned import Warned

log = logging.getLogger(__name__)

AUDIT_S = 5.0
"""Seconds between two audits of all limits."""
UNKNOWN_S = 15.0
"""How long the shares of the pods may be unknown before that is a problem. Kubelet is asked every few seconds."""


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
        self._pods = pods
        self._wake = wake
        self._audit_s = audit_s
        self._audit_at = float("-inf")
        self._clock = clock
        self._need = Need()
        self._unknown_since: float | None = None
        self._lock = threading.Lock()
        self._findings = Findings()
        self._warned = Warned()
        self._in_force = LimitsInForce(pods, self._warned)
        self._foreign = ForeignLimits(pods, self._warned, lambda why: self._in_force.count(Counter({why: 1})))
        self._looks = LooksAgain(clock)
        self._new_containers = NewContainers(pods, self._warned, self._appeared, self.audit_soon)

    def start(self) -> None:
        """Begin to look at new containers. Without that, the audits find what is wrong with them."""
        self._new_containers.start()

    def stop(self) -> None:
        """Limits stay in force."""
        self._new_containers.stop()

    def serves(self, pods: PodLimits) -> bool:
        """Whether this keeper is for the same cgroups and backend."""
        return (self._pods.root, self._pods.backend) == (pods.root, pods.backend)

    def desire(self, need: Need) -> None:
        """Know the shares of all pods from now on. Changed shares are brought into force by the next `look`."""
        former = self._need
        has_changed = (need.pods, need.knows_pods, need.resized) != (former.pods, former.knows_pods, former.resized)
        self._need = need
        self._in_force.desire(need)
        self._foreign.desire(need)
        if not need.unknown:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = self._clock()
        if has_changed or self._in_force.has_misnamed:
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
        return self._in_force.repaired

    @property
    def watch_problem(self) -> str | None:
        """Why new containers are only seen by audits, and what to do; None if they are watched."""
        return self._new_containers.problem

    @property
    def unknown(self) -> str:
        """Why no audit has looked at the pods for a while, and what to do; empty if audits do."""
        since = self._unknown_since
        is_passing = since is None or self._clock() - since < UNKNOWN_S
        return "" if is_passing else self._need.unknown

    def pause_s(self) -> float:
        """Seconds until `look` has something to do."""
        due = min(self._audit_at, self._looks.next_at())
        return max(0.0, due - self._clock())

    def limit(self, uid: str, shares: PodShares, container: str) -> tuple[PodPlan, Outcome]:
        """Bring the limits of a pod into force of which a container is about to start, see `LimitsInForce`.

        Raises:
            CannotIsolateError: the backend cannot express the shares.
            LimitsError: the driver cannot be asked.
        """
        self._foreign.has_share(uid)
        plan, outcome = self._in_force.before_start(uid, shares, container)
        self._new_containers.follow(uid)
        return plan, outcome

    def look(self) -> None:
        """Look at what is due: at all pods, and at new containers once more. Raises LimitsError."""
        if self._clock() >= self._audit_at:
            # Before the audit: a need that comes meanwhile has another one made at once.
            self._audit_at = self._clock() + self._audit_s
            self._audit()
        for uid in self._looks.due():
            self._in_force.again(uid)

    def _audit(self) -> None:
        """Bring the limits of all pods into force."""
        self._new_containers.start()
        need = self._need
        if not need.knows_pods:
            return
        findings = Findings()
        for uid, shares in need.pods.items():
            outcome = self._audit_pod(uid, shares)
            findings = findings.with_outcome(uid, outcome)
            if outcome.is_certain and uid in need.resized:
                findings = findings.with_applied(uid, shares)
        with self._lock:
            self._findings = findings
        ended = self._foreign.forget_ended(need.pods)
        self._in_force.forget(ended)
        self._warned.forget(ended)
        self.has_audited = True
        self._foreign.look_at_late()

    def _audit_pod(self, uid: str, shares: PodShares) -> Outcome:
        self._foreign.has_share(uid)
        is_known = self._in_force.plan_of(uid) is not None
        outcome = self._in_force.of_running(uid, shares)
        self._new_containers.follow(uid)
        # A pod that is about to start has no limit yet, and that is not a fault.
        if is_known or not self.has_audited:
            self._in_force.count(outcome.repaired)
        self._clear_other_gpus(uid, shares.total)
        return outcome

    def _clear_other_gpus(self, uid: str, limited: BytesByGpu) -> None:
        # What kubelet has said of the pod's start may be newer than the need.
        plan = self._in_force.plan_of(uid) or PodPlan()
        self._foreign.clear_other_gpus(uid, {*limited, *plan.pod})

    # -- in the thread that watches for new containers ---------------------------------------------------------

    def _appeared(self, uid: str, leaf: str) -> None:
        """A cgroup of a pod (then `leaf` is empty) or of a container has appeared; the container does not run yet."""
        if leaf:
            self._in_force.appeared(uid, leaf)
        shares = self._need.pods.get(uid)
        try:
            if self._in_force.plan_of(uid) is not None:
                self._of_limited_pod(uid, leaf, shares)
            elif shares is None:
                self._of_other_pod(uid, leaf)
            elif self.has_audited:
                self._before_the_first(uid, shares)
        except LimitsError as err:
            # The next audit looks at it.
            log.warning("Failed to look at a new container", extra={"pod_uid": uid, "error": str(err)})

    def _of_limited_pod(self, uid: str, leaf: str, shares: PodShares | None) -> None:
        if not leaf:
            return
        self._in_force.again(uid, new_leaf=leaf)
        self._look_again(uid)
        if shares is not None:
            self._clear_other_gpus(uid, shares.total)

    def _before_the_first(self, uid: str, shares: PodShares) -> None:
        """A pod with a share whose limits are not in force yet, because kubelet has not asked about it.

        It asks about containers with a share only, and others may start before them.
        """
        self._foreign.has_share(uid)
        self._in_force.of_running(uid, shares)
        self._new_containers.follow(uid)

    def _look_again(self, uid: str) -> None:
        if self._pods.backend is not Backend.MISC:
            return  # there, the pod's limit holds whatever the container's is
        self._looks.add(uid)
        self._wake()

    def _of_other_pod(self, uid: str, leaf: str) -> None:
        """A pod or container without a share. On backend misc, it may have inherited a limit."""
        if leaf:
            # Before an audit, any pod may have a share that is not known yet.
            self._foreign.appeared(uid, leaf, are_shares_known=self.has_audited)
        elif self._pods.backend is Backend.MISC:
            self._new_containers.follow(uid)
