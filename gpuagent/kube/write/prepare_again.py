"""Has kubelet try pods again whose claims were not prepared."""

import logging
import time
from collections.abc import Callable, Iterable

from gpuagent.domain.dra.prepare import has_device
from gpuagent.domain.dra.unprepared import PREPARE_AGAIN_ANNOTATION, Unprepared
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


class PrepareAgain(KeyedReconciler[Unprepared]):
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
        self._tries: dict[str, tuple[int, float]] = {}

    def key(self, value: Unprepared) -> str:
        return value.uid

    def desire(self, values: Iterable[Unprepared]) -> None:
        """As every reconciler; a pod that has a sandbox by now is forgotten."""
        waiting = {self.key(value): value for value in values}
        super().desire(waiting.values())
        for uid in tuple(self._tries):
            if uid not in waiting:
                self._tries.pop(uid, None)

    def attempt(self, value: Unprepared) -> Outcome:
        now = self._clock()
        tries, due = self._tries.setdefault(value.uid, (0, now + FIRST_S))
        if now < due:
            return Outcome.DONE
        if not any(self._is_ours(value, name) for name in value.claims):
            self._tries[value.uid] = tries, now + SLOW_S  # an allocation does not change while a pod uses it
            return Outcome.DONE
        self._annotate(value)
        tries += 1
        pause_s = FIRST_S if tries < QUICK else SLOW_S
        self._tries[value.uid] = tries, now + pause_s
        return Outcome.DONE

    def _annotate(self, value: Unprepared) -> None:
        pod = value.name
        annotation = {PREPARE_AGAIN_ANNOTATION: str(time.time_ns())}
        # With its UID: another pod may have the name by now.
        body = {"metadata": {"uid": value.uid, "annotations": annotation}}
        try:
            self._client.patch(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", body)
        except KubeError as err:
            if err.status != _NOT_FOUND:
                raise
        log.info("Had kubelet prepare a pod's claims again", extra={"pod": str(pod)})

    def describe(self, value: Unprepared, err: KubeError) -> str:
        return f"pod {value.name} waits for its claims longer than it would have to: {err}"

    def _is_ours(self, value: Unprepared, claim: str) -> bool:
        path = f"/apis/resource.k8s.io/v1/namespaces/{value.name.namespace}/resourceclaims/{claim}"
        try:
            return has_device(self._client.get(path, CLAIM_FIELDS))
        except KubeError as err:
            if err.status != _NOT_FOUND:
                raise
            return False
