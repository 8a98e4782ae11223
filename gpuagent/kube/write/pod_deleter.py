"""Deletes failed pods, each only at the version that was judged."""

import logging
from collections.abc import Callable

from gpuagent.domain.pods.failed_pod import FailedPod
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.write.keyed_reconciler import DELAYS, Delays, KeyedReconciler, Outcome

log = logging.getLogger(__name__)

_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


class PodDeleter(KeyedReconciler[FailedPod]):
    """Requests each deletion until the server has accepted it once.

    A deletion names UID and version, so that it can only remove the pod that was judged. A pod that has changed, or is
    gone, is left alone: the watch shows its new state.

    Args:
        client: shared with others.
        deleted: called with each pod whose deletion the server accepted.
        on_problem: receives the reason why pods cannot be deleted, and None when they can be.
        delays: the delays of each pod.
    """

    def __init__(
        self,
        client: Api,
        deleted: Callable[[FailedPod], None],
        on_problem: Callable[[str | None], None],
        delays: Delays = DELAYS,
    ) -> None:
        super().__init__("kube-deletions", delays, on_problem)
        self._client = client
        self._deleted = deleted

    def key(self, value: FailedPod) -> tuple[str, str]:
        return value.uid, value.version

    def attempt(self, value: FailedPod) -> Outcome:
        preconditions = {"uid": value.uid, "resourceVersion": value.version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        try:
            self._client.delete(f"/api/v1/namespaces/{value.name.namespace}/pods/{value.name.name}", options)
        except KubeError as err:
            if err.status in (_NOT_FOUND, _CONFLICT):
                return Outcome.DONE
            raise
        log.info("Deleted failed pod", extra={"pod": str(value.name), "controller": str(value.controller)})
        self._deleted(value)
        return Outcome.DONE

    def describe(self, value: FailedPod, err: KubeError) -> str:
        remedy = "; or switch --clean-failed-pods off" if err.status == _FORBIDDEN else ""
        return f"failed pod {value.name} cannot be deleted: {err}{remedy}"
