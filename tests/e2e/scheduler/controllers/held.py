"""What the scheduler does for pods that cannot start, because a scheduling gate of somebody else holds them."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.cluster.api_client import ApiClient
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.replica import Replica

_PODS = "/api/v1/pods"
_PAUSE_S = 0.05


class GatedPods:
    """A listener of the watch of pods, in front of the audit: it sees each state of each pod.

    Attributes:
        nominated: pods that had a gate and a nominated node in one state. kube-scheduler keeps others from that node.
    """

    def __init__(self, audit: Allocations) -> None:
        self.nominated: set[str] = set()
        self._audit = audit

    def seen(self, pod: Json) -> None:
        if is_gated(pod) and pod["status"].get("nominatedNodeName"):
            self.nominated.add(pod["metadata"]["name"])
        self._audit.seen(pod)

    def gone(self, uid: str) -> None:
        self._audit.gone(uid)


class HeldGpus:
    """GPU-seconds that were reserved for gated pods, read from the scheduler's page many times a second.

    Attributes:
        gpu_seconds: so far.
        looks: how often the page was read.
    """

    def __init__(self, client: ApiClient, replica: Replica) -> None:
        self.gpu_seconds = 0.0
        self.looks = 0
        self._client = client
        self._replica = replica
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="held GPUs", daemon=True)

    @contextmanager
    def watched(self) -> Iterator["HeldGpus"]:
        """Look until the block ends.

        Raises:
            RuntimeError: a look has failed.
        """
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()
        if self._failure is not None:
            raise RuntimeError("the scheduler's page could not be read") from self._failure

    def _run(self) -> None:
        before = time.monotonic()
        try:
            while not self._ended.wait(_PAUSE_S):
                held = self._look()
                now = time.monotonic()
                self.gpu_seconds += held * (now - before)
                self.looks += 1
                before = now
        except Exception as failure:
            self._failure = failure

    def _look(self) -> int:
        """How many GPUs are reserved for gated pods now."""
        reserved = _reserved(self._replica)
        if not reserved:
            return 0
        # Read after the page: a pod that has its gate still had it when the page was made.
        gated = {_name(pod) for pod in self._client.expect("GET", _PODS)["items"] if is_gated(pod)}
        return sum(name in gated for name in reserved)


def is_gated(pod: Json) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _reserved(replica: Replica) -> list[str]:
    """The pod of each reserved GPU."""
    nodes = json.loads(replica.page("/usage"))["nodes"]
    return [name for node in nodes for gpu in node["gpus"] for name in gpu["reserved"]]


def _name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
