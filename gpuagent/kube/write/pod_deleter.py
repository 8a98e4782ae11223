"""Deletes failed pods, each only at the version that was judged; nothing here ever blocks the caller."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpuagent.domain.pods.failed_pod import FailedPod
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.write.worker import Worker
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


class Api(Protocol):
    """The methods of the Client that PodDeleter uses."""

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """DELETE, with DeleteOptions."""


class PodDeleter(Worker):
    """Level-triggered: stores the pods to delete, and retries until the server has accepted each deletion once.

    A deletion names UID and version, so that it can only remove the pod that was judged. A pod that has changed, or is
    gone, is left alone: the watch shows its new state. A refused deletion delays no other. One daemon thread does this.

    Args:
        client: shared with others.
        deleted: called with each pod whose deletion the server accepted.
        `told`: called with the reason why pods cannot be deleted, and with None once they can.
        backoff: makes the delays after failures.
    """

    def __init__(
        self,
        client: Api,
        *,
        deleted: Callable[[FailedPod], None],
        told: Callable[[str | None], None],
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        super().__init__("kube-deletions")
        self._client = client
        self._deleted = deleted
        self._told = told
        self._backoff = backoff()
        self._wanted: tuple[FailedPod, ...] = ()
        self._settled: frozenset[tuple[str, str]] = frozenset()
        self._not_before = 0.0
        self._failures: dict[tuple[str, str], str] = {}
        self._tries: dict[tuple[str, str], int] = {}
        self._said: str | None = None

    def desire(self, pods: tuple[FailedPod, ...]) -> None:
        """Replace the pods to delete; never blocks."""
        with self._wake:
            if pods != self._wanted:
                self._wanted = pods
                there = {_key(pod) for pod in pods}
                self._settled &= there
                self._tries = {key: tries for key, tries in self._tries.items() if key in there}
                self._failures = {key: text for key, text in self._failures.items() if key in there}
                self._wake.notify_all()
        self._tell()

    def _run(self) -> None:
        while (pod := self._next()) is not None:
            failure, key = self._delete(pod), _key(pod)
            with self._wake:
                if all(_key(one) != key for one in self._wanted):
                    continue  # meanwhile the watch has shown something else
                self._tries[key] = self._tries.get(key, 0) + 1
                if failure is None:
                    self._settled |= {key}
                    self._failures.pop(key, None)
                    self._backoff.reset()
                else:
                    self._failures[key] = failure
                    self._not_before = time.monotonic() + self._backoff.next_s()
            self._tell()

    def _next(self) -> FailedPod | None:
        """Wait for the next one; None when stopped."""
        with self._wake:
            while not self._stopped:
                left = (pod for pod in self._wanted if _key(pod) not in self._settled)
                pod = min(left, key=lambda pod: self._tries.get(_key(pod), 0), default=None)
                wait_s = self._not_before - time.monotonic()
                if pod is None:
                    self._wake.wait()
                elif wait_s > 0:
                    self._wake.wait(wait_s)
                else:
                    return pod
            return None

    def _delete(self, pod: FailedPod) -> str | None:
        """Delete one; return what failed and what to do, None where nothing did."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": pod.uid, "resourceVersion": pod.version},
        }
        try:
            self._client.delete(f"/api/v1/namespaces/{pod.name.namespace}/pods/{pod.name.name}", body)
        except Exception as err:  # a bug must not end the thread
            status = err.status if isinstance(err, ApiError) else 0
            if status in (_NOT_FOUND, _CONFLICT):
                return None
            if not isinstance(err, KubeError):
                log.exception("deletion failed")
            may = "; or switch --clean-failed-pods off" if status == _FORBIDDEN else ""
            return f"failed pods cannot be deleted: {err}{may}"
        log.info("failed pod deleted", extra={"pod": str(pod.name), "controller": str(pod.controller)})
        self._deleted(pod)
        return None

    def _tell(self) -> None:
        with self._wake:
            # The server's words name the pod: one of them is enough, and the same one while it stands.
            texts = tuple(self._failures.values())
            problem = self._said if self._said in texts else next(iter(texts), None)
            news, self._said = problem != self._said, problem
        if news:
            self._told(problem)


def _key(pod: FailedPod) -> tuple[str, str]:
    return pod.uid, pod.version
