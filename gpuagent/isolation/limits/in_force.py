"""Brings the limits of one pod after the other into force, and remembers which ones are."""

import logging
import threading
from collections import Counter
from collections.abc import Collection

from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.isolation.interface import CannotIsolateError, Need
from gpuagent.isolation.limits.audit import Why
from gpuagent.isolation.limits.container_names import ContainerNames
from gpuagent.isolation.limits.plan import PodPlan, Resized, pod_plan
from gpuagent.isolation.limits.pods import Outcome, PodLimits
from gpuagent.isolation.limits.warned import Warned

log = logging.getLogger(__name__)

UNNAMED = (
    "containers of the pod have different claims on one GPU. This node's driver needs a limit for each container, and "
    "kubelet does not say which container of a claim it starts: let one container of the pod use the GPU"
)


class LimitsInForce:
    """The limits of single pods. For several threads; methods raise LimitsError if the driver cannot be asked.

    Args:
        pods: reads and sets limits.
        warned: which pods the log has warned of.
    """

    def __init__(self, pods: PodLimits, warned: Warned) -> None:
        self._pods = pods
        self._warned = warned
        self._need = Need()
        # Held while what is known is read or changed, and never while the driver is asked.
        self._lock = threading.Lock()
        # Held from the choice of a pod's limits until they are set, so that no older limits come after newer ones.
        self._settling = threading.Lock()
        self._plans: dict[str, PodPlan] = {}
        self._repaired: Counter[str] = Counter()
        self._names = ContainerNames()
        self._claiming: set[str] = set()
        """UIDs of the pods about whose containers kubelet has not asked by name, because they use claims."""
        self._older = frozenset(pods.root.pods())

    def desire(self, need: Need) -> None:
        """Know the shares of all pods from now on."""
        self._need = need

    @property
    def has_misnamed(self) -> bool:
        """Whether a pod shows another name for a container than the one by which it was limited."""
        return self._names.has_misnamed(self._need.containers)

    @property
    def repaired(self) -> dict[str, int]:
        """Why limits were set again to how often."""
        with self._lock:
            return dict(self._repaired)

    def plan_of(self, uid: str) -> PodPlan | None:
        """The limits of this pod that were brought into force; None if none were."""
        with self._lock:
            return self._plans.get(uid)

    def before_start(self, uid: str, shares: PodShares, container: str) -> tuple[PodPlan, Outcome]:
        """Bring the limits of a pod into force of which a container is about to start.

        Args:
            uid: of the pod.
            shares: of the pod, by kubelet's allocations as just read.
            container: its name; empty if it is not known.

        Raises:
            CannotIsolateError: the backend cannot express the shares.
        """
        if container:
            self._names.expect(uid, container, self._pods.leaves(uid))
        else:
            with self._lock:
                self._claiming.add(uid)
        with self._settling:
            plan = pod_plan(self._latest(uid, shares), self._pods.backend)
            if plan.own_limits and not container:
                raise CannotIsolateError(UNNAMED)
            return plan, self._settle(uid, plan)

    def of_running(self, uid: str, shares: PodShares) -> Outcome:
        """Bring the limits of a pod that runs into force."""
        with self._settling:
            return self._settle(uid, self._plan(uid, shares))

    def again(self, uid: str, new_leaf: str = "") -> None:
        """Bring the limits into force again that a pod has.

        `new_leaf` is the name of a container's cgroup that appears just now.
        """
        with self._settling:
            plan = self.plan_of(uid)
            if plan is None:
                return
            outcome = self._settle(uid, plan, new_leaf)
        self.count(outcome.repaired)

    def appeared(self, uid: str, leaf: str) -> None:
        """A cgroup of a container has appeared."""
        shares = self._need.pods.get(uid)
        is_young = shares is not None and uid not in self._older
        with self._lock:
            has_claims = uid in self._claiming
        if shares is not None:
            has_claims = has_claims or shares.of_claims
        self._names.appeared(uid, leaf, is_young=is_young, may_be_claiming=has_claims)

    def count(self, repaired: Counter[Why]) -> None:
        """Add to `repaired`."""
        with self._lock:
            for why, count in repaired.items():
                self._repaired[str(why)] += count

    def forget(self, ended: Collection[str]) -> None:
        """Drop what is known of these pods, by UID."""
        self._names.forget(ended, self._need.containers)
        with self._lock:
            for uid in ended:
                self._plans.pop(uid, None)
                self._claiming.discard(uid)

    def _latest(self, uid: str, shares: PodShares) -> PodShares:
        """The shares of a pod. Only the need has what was changed of them while the pod runs."""
        needed = self._need.pods.get(uid)
        if needed is not None and needed.containers.keys() >= shares.containers.keys():
            return needed
        return shares

    def _plan(self, uid: str, shares: PodShares) -> PodPlan:
        """The limits of a pod that runs."""
        try:
            return pod_plan(shares, self._pods.backend)
        except CannotIsolateError as err:
            # A pod that came to a claim later. Kubelet does not ask about it, and all its shares are its bound.
            if self._warned.is_first(uid, "whole"):
                log.warning("Limited a pod as a whole only", extra={"pod_uid": uid, "error": str(err)})
            return PodPlan(shares.total)

    def _settle(self, uid: str, plan: PodPlan, new_leaf: str = "") -> Outcome:
        """Bring limits into force, and remember them. Called with `_settling` held."""
        with self._lock:
            former = self._plans.get(uid, PodPlan())
        names = self._names.joined(self._need.containers)
        most = self._need.resized.get(uid)
        resized = None if most is None else Resized(former, self._plan(uid, most))
        outcome = self._pods.settle(uid, plan, names, former.pod, resized, new_leaf=new_leaf)
        if outcome.is_in_force:
            with self._lock:
                self._plans[uid] = plan
        for container in outcome.short:
            if self._warned.is_first(uid, container):
                extra = {"pod_uid": uid, "container": container}
                log.warning("Left a container with less than its share until it starts again", extra=extra)
        return outcome
