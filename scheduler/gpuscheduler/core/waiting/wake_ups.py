"""Wakes single pods that fit although kube-scheduler was refused a node for them.

kube-scheduler tries a waiting pod again when the API server shows it a change that may help. It does not see that a
reservation ends. It may ask before the scheduler has seen the same change. In a large cluster it asks about a part of
the nodes. In each case the pod would wait for five minutes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from gpuscheduler.core.calls import Nominate, Nudge
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gpu_request import GpuRequest
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.waiting.trial_nominations import TrialNominations

CHECK_S = 2.0
"""Least time between two checks: kube-scheduler tries most pods by itself before."""
FIRST_S = 2.0
"""Delay until a pod that was refused is woken. Each time without success doubles it."""
LIMIT_S = 300.0
"""The longest delay."""
MOST_REQUESTS = 16
"""Different requests that are rated in one check, as the costs of few can be kept."""
MOST_WOKEN = 100
"""Pods that are woken in one check."""
MOST_EARLY = 10_000
"""Pods about which kube-scheduler may ask before the watch shows them. It may never show some of them."""
MOST_TRIED = 16
"""Nodes that a pod was nominated for without success, which are passed over."""
MOST_LOOKED_AT = 64
"""Nodes whose labels and taints are compared with the rules of one pod."""

_Alike = tuple[GpuRequest, float, frozenset[str]]
"""What decides where a pod fits: its request, its cores, and the nodes that are passed over for it."""


@dataclass(slots=True)
class _Refused:
    """A pod that was refused.

    Attributes:
        wake_at: monotonic seconds when it may be woken.
        delay_s: the delay that ends then.
        tried: names of nodes that it was nominated for.
    """

    wake_at: float = 0.0
    delay_s: float = FIRST_S
    tried: set[str] = field(default_factory=set)


class WakeUps:
    """The pods that were refused.

    Args:
        usage: nodes and their users.
        pods: UID to pod, as the watch shows it. `came` takes each one that is new.
        fitting: names of the nodes where a pod fits at a time, best first.
        passed_over: names of the nodes that `fitting` leaves out for a pod at a time.
    """

    def __init__(
        self,
        usage: ClusterUsage,
        pods: Mapping[str, PodFacts],
        fitting: Callable[[PodFacts, float], Iterator[str]],
        passed_over: Callable[[PodFacts, float], frozenset[str]],
    ) -> None:
        self._usage = usage
        self._pods = pods
        self._fitting = fitting
        self._passed_over = passed_over
        self._refused: dict[str, _Refused] = {}
        self._early: dict[str, _Refused] = {}
        self._nominations = TrialNominations()
        self._check_at = float("-inf")
        self._next = float("inf")
        self._frees = 0

    def refused(self, uid: str, now: float, *, again: bool = False) -> None:
        """Take that kube-scheduler was refused a node for a pod; `again` if not all of the nodes were looked at."""
        refused = self._refused.get(uid) or self._early.pop(uid, None) or _Refused()
        refused.wake_at = now + refused.delay_s
        if uid not in self._pods:
            self._keep_early(uid, refused)
            return
        self._keep(uid, refused)
        pod = self._pods[uid]
        if pod.nominated and not pod.may_preempt:
            # No other than gpuscheduler nominates it: this process, or one before.
            self._nominations.begin(uid, pod.nominated, now)
        if again or self._usage.is_large():
            # Other nodes than those that kube-scheduler named may fit, although nothing becomes free.
            self._next = min(self._next, refused.wake_at)

    def came(self, uid: str) -> None:
        """Take that the watch shows a pod, which kube-scheduler may have asked about before.

        The watch may be late by any time, for example because the process stood still.
        """
        refused = self._early.pop(uid, None)
        if refused is None:
            return
        self._keep(uid, refused)
        # No filter call has looked whether it fits in what became free meanwhile.
        self._next = min(self._next, refused.wake_at)

    def forget(self, uid: str) -> None:
        """Take that a pod has a node, or is gone."""
        self._refused.pop(uid, None)
        self._early.pop(uid, None)

    def waits_for_evictions(self, uid: str) -> None:
        """Take that pods are evicted for a pod: kube-scheduler nominates it for their node."""
        self._nominations.forget(uid)

    def next_due(self) -> float | None:
        """When `wake` has work, in monotonic seconds; None if nothing is due."""
        times = (self._next_check(), self._nominations.next_end())
        return min((at for at in times if at is not None), default=None)

    def _next_check(self) -> float | None:
        has_freed = self._frees != self._usage.frees
        next_at = float("-inf") if has_freed else self._next
        due = max(self._check_at, next_at)
        return due if self._refused and due < float("inf") else None

    def wake(self, now: float) -> list[Nudge | Nominate]:
        """Wake pods that fit, by priority and age. End nominations by which pods were woken and not placed."""
        actions: list[Nudge | Nominate] = list(self._end_nominations(now))
        due = self._next_check()
        if due is None or now < due:
            return actions
        self._check_at = now + CHECK_S
        self._next = float("inf")
        self._frees = self._usage.frees
        fits: dict[_Alike, bool] = {}
        ready = [pod for pod in self._candidates(now) if self._fits(pod, fits, now)]
        if len(ready) > MOST_WOKEN:
            self._next = now
        nominated_for: set[str] = set()
        for pod in nsmallest(MOST_WOKEN, ready, key=_order):
            action = self._wake(pod, nominated_for, now)
            if action:
                actions.append(action)
        return actions

    def _end_nominations(self, now: float) -> Iterator[Nominate]:
        """Take back the nominations of pods that wait although they were nominated for long enough."""
        for uid, node in self._nominations.take_over(now).items():
            pod = self._pods.get(uid)
            is_ours = pod is not None and pod.nominated in {"", node}
            if pod is None or pod.node or not is_ours:
                continue
            refused = self._refused.get(uid)
            if refused is None or not pod.nominated:
                # It is being placed, or the next call refuses it, or the write is on its way.
                self._nominations.begin(uid, node, now)
                continue
            # Otherwise this check might nominate it again.
            refused.wake_at = max(refused.wake_at, now + refused.delay_s)
            yield Nominate(pod.name, uid, "")

    def _candidates(self, now: float) -> Iterator[PodFacts]:
        """The pods whose delay is over."""
        for uid, refused in list(self._refused.items()):
            pod = self._pods.get(uid)
            if pod is None or pod.node or pod.deleting:
                del self._refused[uid]
            elif refused.wake_at > now:
                self._next = min(self._next, refused.wake_at)
            else:
                yield pod

    def _keep(self, uid: str, refused: _Refused) -> None:
        """Keep a pod as the last one, so that the next check begins with the others."""
        if not self._refused:
            # What became free before the first refusal does not help it.
            self._frees = self._usage.frees
        self._refused.pop(uid, None)
        self._refused[uid] = refused

    def _keep_early(self, uid: str, refused: _Refused) -> None:
        """Keep a pod that the watch has not shown yet until it does."""
        self._early[uid] = refused
        if len(self._early) > MOST_EARLY:
            first = next(iter(self._early))
            del self._early[first]

    def _fits(self, pod: PodFacts, fits: dict[_Alike, bool], now: float) -> bool:
        """Whether there is room for the pod on any node. `fits` has the answers for the requests so far."""
        # A node that refused a pod of one owner may take those of all others.
        alike = pod.request, pod.cpu, self._passed_over(pod, now)
        if alike not in fits:
            if len(fits) == MOST_REQUESTS:
                self._next = now
                return False
            fits[alike] = any(True for _ in self._fitting(pod, now))
        refused = self._refused[pod.uid]
        self._keep(pod.uid, refused)
        if not fits[alike]:
            refused.delay_s = FIRST_S
            refused.tried.clear()
        return fits[alike]

    def _wake(
        self,
        pod: PodFacts,
        nominated_for: set[str],
        now: float,
    ) -> Nudge | Nominate | None:
        """The write that wakes the pod; None where other pods of this check are nominated for all nodes that fit."""
        refused = self._refused[pod.uid]
        action = self._action(pod, refused, nominated_for, now)
        if action is None or len(refused.tried) >= MOST_TRIED:
            # Each node has had its turn, and may have room by the next time.
            refused.tried.clear()
        if action:
            refused.delay_s = min(refused.delay_s * 2, LIMIT_S)
        refused.wake_at = now + refused.delay_s
        self._next = min(self._next, refused.wake_at)
        return action

    def _action(
        self,
        pod: PodFacts,
        refused: _Refused,
        nominated_for: set[str],
        now: float,
    ) -> Nudge | Nominate | None:
        # A pod that is nominated for another node waits there for pods that kube-scheduler evicts for it.
        may_nominate = pod.nominated in {"", *refused.tried}
        if not self._usage.is_large() or not may_nominate:
            return Nudge(pod.name, pod.uid)
        fitting = self._fitting(pod, now)
        untried = (name for name in fitting if name not in nominated_for and name not in refused.tried)
        any_untried = False
        for name in islice(untried, MOST_LOOKED_AT):
            any_untried = True
            if self._may_be_on(pod, name):
                nominated_for.add(name)
                refused.tried.add(name)
                self._nominations.begin(pod.uid, name, now)
                return Nominate(pod.name, pod.uid, name)
        # kube-scheduler finds the few nodes that such a pod accepts by itself.
        return Nudge(pod.name, pod.uid) if any_untried else None

    def _may_be_on(self, pod: PodFacts, name: str) -> bool:
        """Whether kube-scheduler may accept a node for a pod: it would look at no other one first."""
        node = self._usage.nodes.get(name)
        if node is None or not pod.rules.are_light:
            return True
        return not pod.rules.obstacle(node.facts.site)


def _order(pod: PodFacts) -> tuple[int, str]:
    """The highest priority first, then the oldest."""
    return -pod.priority, pod.created
