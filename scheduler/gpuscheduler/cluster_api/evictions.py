"""Evictions of pods. The API server refuses those that a PodDisruptionBudget does not allow now."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gpuagent.domain.pods.json_values import mappings, text
from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuscheduler.cluster_api.connection import Connection, Json, NotLeadingError, decoded, pod_path
from gpuscheduler.core.calls import EvictOutcome

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Evictions at one time. Each is a transaction with the budgets of the pod's namespace."""
_NOT_ASKED = EvictOutcome.LATER, ""
_RESOURCE = "pods/eviction"
_NEWEST = "policy/v1"
_NOT_FOUND = 404
_CONFLICT = 409


class Evictions:
    """Evicts pods, each once per call: when to try again is decided elsewhere.

    Args:
        connection: to the API server.
        leading: set while evictions are carried out.
        read_lease: reads again who leads, before each eviction: the next leader may want other victims.
        evicted: called for each answer with why the pod was to be evicted, and the result in lower case.
    """

    def __init__(
        self,
        connection: Connection,
        leading: asyncio.Event,
        read_lease: Callable[[], Awaitable[None]],
        evicted: Callable[[str, str], None],
    ) -> None:
        self._connection = connection
        self._leading = leading
        self._read_lease = read_lease
        self._evicted = evicted
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._version = ""

    async def evict(
        self,
        pod: PodName,
        uid: str,
        cause: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> tuple[EvictOutcome, str]:
        """Evict a pod; the outcome, and why it is not evicted. That is empty if the API server was not asked.

        Args:
            pod: namespace and name.
            uid: a precondition, because a new pod of the same name must not be evicted.
            cause: of the metric.
            is_wanted: whether the pod is still to be evicted, once its turn has come.
        """
        async with self._turns:
            await self._read_lease()
            if not self._leading.is_set() or not is_wanted():
                return _NOT_ASKED
            outcome, why = await self._outcome(pod, uid)
        if (outcome, why) == _NOT_ASKED:
            return _NOT_ASKED
        self._evicted(cause, outcome.name.lower())
        if outcome is EvictOutcome.REFUSED:
            log.warning("Failed to evict a pod", extra={"pod": str(pod), "error": why})
        return outcome, why

    async def would_evict(self, pod: PodName, uid: str) -> tuple[EvictOutcome, str]:
        """What `evict` would do now. Nothing is evicted."""
        return await self._outcome(pod, uid, is_trial=True)

    async def _outcome(self, pod: PodName, uid: str, *, is_trial: bool = False) -> tuple[EvictOutcome, str]:
        try:
            await self._evict(pod, uid, is_trial=is_trial)
        except ApiError as err:
            is_gone = err.status in (_NOT_FOUND, _CONFLICT)
            if is_gone:
                return EvictOutcome.GONE, str(err)
            if err.passing:
                # A budget that allows none now is 429. More than one budget for the pod is 500, and may be mended.
                return EvictOutcome.LATER, err.message
            return EvictOutcome.REFUSED, str(err)
        except NotLeadingError:
            return _NOT_ASKED
        except KubeError as err:
            return EvictOutcome.LATER, str(err)
        return EvictOutcome.EVICTED, ""

    async def _evict(self, pod: PodName, uid: str, *, is_trial: bool) -> None:
        """Raises KubeError."""
        if not self._version:
            self._version = await self._served_version()
        options: Json = {"preconditions": {"uid": uid}}
        if is_trial:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": self._version,
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
        await self._connection.create(f"{pod_path(pod)}/eviction", body)

    async def _served_version(self) -> str:
        """The API version of evictions: policy/v1beta1 before Kubernetes 1.22. Raises KubeError."""
        served = decoded(await self._connection.get("/api/v1"))
        for resource in mappings(served.get("resources")):
            if resource.get("name") == _RESOURCE:
                group = text(resource.get("group"))
                version = text(resource.get("version"))
                return f"{group}/{version}"
        return _NEWEST
