"""Writes annotations of this node's pods."""

import logging
import time
from collections.abc import Callable
from functools import partial

from gpuagent.domain.reconcile.pod_annotations import PodWrite
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.write.keyed_reconciler import Delays, KeyedReconciler, Outcome
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

_FORBIDDEN = 403
_NOT_FOUND = 404
_CONFLICT = 409

DELAYS = Delays(
    partial(Backoff, limit_s=60.0),
    # A user may edit the annotations of a pod again and again. So writes of one pod become rare, and its Events too.
    pace=partial(Backoff, 0.05, 300.0),
    conflicts=partial(Backoff, 0.02, 10.0),
    # For a watch that does not show the pod's next version.
    recheck_s=30.0,
    quiet_s=900.0,
)


class AnnotationWriter(KeyedReconciler[PodWrite]):
    """Sends the writes that pods need, each against the version of the pod from which it follows.

    The server refuses a write (409) when the pod has changed since. The watch then brings the pod as it is, and the
    agent works out its write again. The watch also brings the pod after a write, and the pod then needs none. A pod
    that is gone (404) needs none.

    Args:
        client: shared with others.
        on_problem: receives the reason why annotations cannot be written, and None when they can be.
        on_corrected: receives each write with corrections that the server has taken.
        wall_ns: Unix nanoseconds, for the time of an assignment.
        delays: the delays of each pod.
    """

    def __init__(
        self,
        client: Api,
        on_problem: Callable[[str | None], None] = lambda _: None,
        on_corrected: Callable[[PodWrite], None] = lambda _: None,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        delays: Delays = DELAYS,
    ) -> None:
        super().__init__("kube-annotations", delays, on_problem)
        self._client = client
        self._on_corrected = on_corrected
        self._wall_ns = wall_ns

    def key(self, value: PodWrite) -> str:
        return value.uid

    def attempt(self, value: PodWrite) -> Outcome:
        path = f"/api/v1/namespaces/{value.pod.namespace}/pods/{value.pod.name}"
        try:
            self._client.patch(path, value.body(self._wall_ns()))
        except KubeError as err:
            if err.status in (_NOT_FOUND, _CONFLICT):
                return Outcome.OUTDATED
            raise
        log.info("Annotated pod", extra={"pod": str(value.pod), "keys": ",".join(sorted(value.texts))})
        if value.corrections:
            self._on_corrected(value)
        return Outcome.DONE

    def describe(self, value: PodWrite, err: KubeError) -> str:
        rights = "; the agent needs patch on pods" if err.status == _FORBIDDEN else ""
        return f"annotations of pod {value.pod}: {err}{rights}"
