"""All pods as they are now, kept by one watch in a thread of its own."""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from tests.e2e.cluster import WAIT_S
from tests.e2e.cluster.api_client import ApiClient, ApiError
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.pods import why

_PODS = "/api/v1/pods"
_SILENT = 3600.0


class Listener(Protocol):
    """Sees every change of a pod, in the order of the API server; called by the thread of the watch."""

    def seen(self, pod: Json) -> None: ...

    def gone(self, uid: str) -> None: ...


class PodWatch:
    """Pods by name. Use it from one thread."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._pods: dict[str, Json] = {}
        self._listener: Listener | None = None
        self._failure: Exception | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="pod watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The thread ends with its connection."""
        self._ended = True

    def listen(self, listener: Listener | None) -> None:
        """Show a listener the pods as they are, and every change from now on; it replaces the one before.

        Raises:
            RuntimeError: the one before has failed.
        """
        with self._changed:
            self._raise_failure()
            self._listener = listener
            if listener is not None:
                for pod in self._pods.values():
                    listener.seen(pod)

    def wait(self, wanted: Callable[[Mapping[str, Json]], bool], timeout: float = WAIT_S) -> dict[str, Json]:
        """Until the pods, by name, are as wanted; returns them.

        Raises:
            RuntimeError: the listener has failed.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._failure is None and not wanted(self._pods):
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"the pods were not as wanted within {timeout:g} s; {self._summary()}")
            self._raise_failure()
            return dict(self._pods)

    def _raise_failure(self) -> None:
        """Fail the test in its own thread. The watch itself goes on, for the tests after it."""
        failure = self._failure
        self._failure = None
        if failure is not None:
            raise RuntimeError("the listener of the watch of pods has failed") from failure

    def _summary(self) -> str:
        phases = Counter(pod["status"]["phase"] for pod in self._pods.values())
        waiting = [name for name, pod in self._pods.items() if "nodeName" not in pod["spec"]]
        examples = "".join(f"\n{name}: {why(self._pods, name)}" for name in waiting[:5])
        return f"there are {dict(phases)}, of which {len(waiting)} have no node, such as{examples}"

    def _run(self) -> None:
        while not self._ended:
            try:
                listed = self._client.expect("GET", _PODS)
                self._relisted(listed["items"])
                query = {"resourceVersion": listed["metadata"]["resourceVersion"]}
                for event in self._client.watch(_PODS, query, _SILENT):
                    if event["type"] == "ERROR":
                        break
                    self._apply(event["object"], gone=event["type"] == "DELETED")
            except (OSError, ValueError, http.client.HTTPException, ApiError):
                time.sleep(0.05)  # the server is away

    def _relisted(self, pods: list[Json]) -> None:
        """Catch up after a gap: first the pods that gave something back, for which others may have come."""
        there = {pod["metadata"]["uid"] for pod in pods}
        for pod in [pod for pod in self._pods.values() if pod["metadata"]["uid"] not in there]:
            self._apply(pod, gone=True)
        for pod in sorted(pods, key=lambda pod: pod["status"]["phase"] not in ("Succeeded", "Failed")):
            self._apply(pod, gone=False)

    def _apply(self, pod: Json, *, gone: bool) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        with self._changed:
            if not gone:
                self._pods[name] = pod
            elif self._pods.get(name, pod)["metadata"]["uid"] == uid:
                self._pods.pop(name, None)
            self._show(pod, gone=gone)
            self._changed.notify_all()

    def _show(self, pod: Json, *, gone: bool) -> None:
        if self._listener is None:
            return
        try:
            if gone:
                self._listener.gone(pod["metadata"]["uid"])
            else:
                self._listener.seen(pod)
        except Exception as failure:  # an assertion of the listener's, for example
            self._failure = failure
            self._listener = None
