"""Wakes single pods that fit although kube-scheduler was refused a node for them.

kube-scheduler tries a waiting pod again when the API server shows it a change that may help. It does not see that a
reservation ends. It may ask before the scheduler has seen the same change. In a large cluster it asks about a part of
the nodes. In each case the pod would wait for five minutes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest

from gpuscheduler.core.calls import Nominate, Nudge
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gpu_request import GpuRequest
from gpuscheduler.core.pod_facts import PodFacts

CHECK_S = 2.0
"""Least time between two checks: kube-scheduler tries most pods by itself before."""
FIRST_S, LIMIT_S = 2.0, 300.0
"""Delay until a pod that was refused is woken. Each time without success doubles it."""
MOST_REQUESTS = 16
"""Different requests that are rated in one check, as the costs of few can be kept."""
MOST_WOKEN = 100
"""Pods that are woken in one check."""
MOST_TRIED = 16
"""Nodes that a pod was nominated for without success, which are passed over."""
ALL_NAMED = 100
"""kube-scheduler names all nodes of a cluster up to this size. In a larger one, a pod is nominated for its node."""


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
        pods: UID to pod, as the watch shows it.
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
        self._usage, self._pods, self._fitting = usage, pods, fitting
        self._passed_over = passed_over
        self._refused: dict[str, _Refused] = {}
        self._check_at = float("-inf")
        self._next = float("inf")
        self._frees = 0

    def refused(self, uid: str, now: float, *, again: bool = False) -> None:
        """Take that kube-scheduler was refused a node for a pod; `again` if not all of the nodes were looked at."""
        if not self._refused:  # what became free before is no news for it
            self._frees = self._usage.frees
        one = self._refused.pop(uid, None) or _Refused()
        one.wake_at = now + one.delay_s
        self._refused[uid] = one
        if again or self._is_large():  # other nodes than those that it named may fit
            self._next = min(self._next, one.wake_at)

    def forget(self, uid: str) -> None:
        """Take that a pod has a node, or is gone."""
        self._refused.pop(uid, None)

    def next_due(self) -> float | None:
        """When `wake` has work, in monotonic seconds; None if nothing is due."""
        due = max(self._check_at, self._next if self._frees == self._usage.frees else float("-inf"))
        return due if self._refused and due < float("inf") else None

    def wake(self, now: float) -> list[Nudge | Nominate]:
        """Wake pods that fit, by priority and age."""
        due = self.next_due()
        if due is None or now < due:
            return []
        self._check_at, self._next, self._frees = now + CHECK_S, float("inf"), self._usage.frees
        fits: dict[_Alike, bool] = {}
        ready = [pod for pod in self._candidates(now) if self._fits(pod, fits, now)]
        taken: set[str] = set()
        actions = [self._woken(pod, taken, now) for pod in nsmallest(MOST_WOKEN, ready, key=_order)]
        if len(ready) > MOST_WOKEN:
            self._next = now
        return [action for action in actions if action]

    def _candidates(self, now: float) -> Iterator[PodFacts]:
        """The pods whose delay is over."""
        for uid, one in list(self._refused.items()):
            pod = self._pods.get(uid)
            if one.wake_at > now:
                self._next = min(self._next, one.wake_at)
            elif pod and not pod.node and not pod.deleting:
                yield pod
            elif pod or one.wake_at + LIMIT_S < now:
                del self._refused[uid]
            else:  # the watch may be late
                self._next = min(self._next, now + CHECK_S)

    def _fits(self, pod: PodFacts, fits: dict[_Alike, bool], now: float) -> bool:
        """Whether there is room for the pod on any node. `fits` has the answers for the requests so far."""
        # A node that refused a pod of one owner may take those of all others.
        key = pod.request, pod.cpu, self._passed_over(pod, now)
        if key not in fits:
            if len(fits) == MOST_REQUESTS:
                self._next = now
                return False
            fits[key] = any(True for _ in self._fitting(pod, now))
        one = self._refused.pop(pod.uid)
        self._refused[pod.uid] = one  # the next check begins with the others
        if not fits[key]:
            one.delay_s = FIRST_S
            one.tried.clear()
        return fits[key]

    def _woken(self, pod: PodFacts, taken: set[str], now: float) -> Nudge | Nominate | None:
        """The write that wakes the pod; None where other pods of this check are nominated for all nodes that fit."""
        one = self._refused[pod.uid]
        action: Nudge | Nominate | None = None
        if not self._is_large() or pod.nominated not in {"", *one.tried}:  # kube-scheduler evicts pods there for it
            action = Nudge(pod.name, pod.uid)
        elif name := next((name for name in self._fitting(pod, now) if name not in taken | one.tried), ""):
            action = Nominate(pod.name, pod.uid, name)
            taken.add(name)
            one.tried.add(name)
        if len(one.tried) >= MOST_TRIED or not action:
            one.tried.clear()
        if action:
            one.delay_s = min(one.delay_s * 2, LIMIT_S)
        one.wake_at = now + one.delay_s
        self._next = min(self._next, one.wake_at)
        return action

    def _is_large(self) -> bool:
        return len(self._usage.nodes) > ALL_NAMED


def _order(pod: PodFacts) -> tuple[int, str]:
    return -pod.priority, pod.created
