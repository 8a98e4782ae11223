"""Has kubelet try pods again whose claims were not prepared, or not unprepared."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuagent.domain.dra.prepare import has_device
from gpuagent.domain.dra.unprepared import PREPARE_AGAIN_ANNOTATION, WaitingPod
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.claim_fields import CLAIM_FIELDS
from gpuagent.kube.api.client import Api
from gpuagent.kube.write.keyed_reconciler import Delays, KeyedReconciler, Outcome

log = logging.getLogger(__name__)

FIRST_S = 2.0
"""How long kubelet has for its own first try."""
QUICK = 5
SLOW_S = 30.0
"""So many tries each `FIRST_S` seconds; further ones after `SLOW_S`."""
_NOT_FOUND = 404


@dataclass(slots=True)
class _Tries:
    """How often a pod was changed, when it is changed next, and what was known of it at the last look."""

    is_ending: bool
    in_the_way: frozenset[str]
    due: float
    count: int = 0


class PrepareAgain(KeyedReconciler[WaitingPod]):
    """Changes an annotation of each such pod, which kubelet sees at once.

    Args:
        client: shared with others.
        clock: monotonic seconds.
        on_problem: receives the reason why a pod cannot be changed, and None when all can be.
    """

    def __init__(
        self,
        client: Api,
        clock: Callable[[], float] = time.monotonic,
        on_problem: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        super().__init__("kube-prepare", Delays(recheck_s=FIRST_S), on_problem)
        self._client = client
        self._clock = clock
        self._tries: dict[str, _Tries] = {}

    def key(self, value: WaitingPod) -> str:
        return value.uid

    def desire(self, values: Iterable[WaitingPod]) -> None:
        """As every reconciler; a pod that has a sandbox by now is forgotten."""
        waiting = {self.key(value): value for value in values}
        super().desire(waiting.values())
        for uid in tuple(self._tries):
            if uid not in waiting:
                self._tries.pop(uid, None)

    def attempt(self, value: WaitingPod) -> Outcome:
        now = self._clock()
        tries = self._tries.get(value.uid)
        if tries is None or tries.is_ending != value.is_ending:
            tries = _Tries(value.is_ending, value.in_the_way, due=now + FIRST_S)
            self._tries[value.uid] = tries
        is_out_of_the_way = tries.in_the_way - value.in_the_way
        if is_out_of_the_way and tries.count:
            # The pod may have waited for this for so long that it is tried rarely by now.
            tries.count = 0
            tries.due = now
        tries.in_the_way = value.in_the_way
        if now < tries.due:
            return Outcome.DONE
        if not any(self._is_ours(value, name) for name in value.claims):
            tries.due = now + SLOW_S  # an allocation does not change while a pod uses it
            return Outcome.DONE
        self._annotate(value)
        tries.count += 1
        tries.due = now + self._pause_s(value, tries.count)
        return Outcome.DONE

    def _pause_s(self, value: WaitingPod, tries: int) -> float:
        """Until the pod is changed again, after so many times."""
        if value.is_ending:
            # Kubelet's call failed because the agent was away. From now on it is there when kubelet calls.
            return math.inf
        return FIRST_S if tries < QUICK else SLOW_S

    def _annotate(self, value: WaitingPod) -> None:
        pod = value.name
        annotation = {PREPARE_AGAIN_ANNOTATION: str(time.time_ns())}
        # With its UID: another pod may have the name by now.
        body = {"metadata": {"uid": value.uid, "annotations": annotation}}
        try:
            self._client.patch(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", body)
        except KubeError as err:
            if err.status != _NOT_FOUND:
                raise
        if value.is_ending:
            log.info("Had kubelet unprepare a pod's claims again", extra={"pod": str(pod)})
        else:
            log.info("Had kubelet prepare a pod's claims again", extra={"pod": str(pod)})

    def describe(self, value: WaitingPod, err: KubeError) -> str:
        return f"pod {value.name} waits for its claims longer than it would have to: {err}"

    def _is_ours(self, value: WaitingPod, claim: str) -> bool:
        path = f"/apis/resource.k8s.io/v1/namespaces/{value.name.namespace}/resourceclaims/{claim}"
        try:
            return has_device(self._client.get(path, CLAIM_FIELDS))
        except KubeError as err:
            if err.status != _NOT_FOUND:
                raise
            return False
