"""Events that say why pods with claims wait.

Slices, claims and classes are read while such pods wait, and kept no longer: in most clusters none does, and in a large
one these objects are larger than all else that is kept here.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.kube.api.api_errors import KubeError
from gpuscheduler.cluster_api.connection import Connection, Json
from gpuscheduler.cluster_api.list_watch import list_objects
from gpuscheduler.core.calls import Report
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.explain.claim_facts import ClaimFacts, ClaimingPod, ClassFacts, read_claim, read_class
from gpuscheduler.core.explain.claim_reason import ClaimCluster, ClaimReason, claim_reason
from gpuscheduler.core.explain.claim_waits import ClaimWaits
from gpuscheduler.core.explain.published import SliceFacts, published, read_slice

log = logging.getLogger(__name__)

_API = "/apis/resource.k8s.io/v1"
LOOK_S = 1.0
"""How often it is asked whether a pod is due."""
PAUSE_S = 5.0
"""Least time between two reads of the cluster."""
PAUSE_PART = 20.0
"""The same as a multiple of what the last one took."""
FAILED_S = 60.0
"""Pause after a read that failed."""
BATCH_S = 2.0
"""After this time, the pods that are left wait for the next read."""


MOST_SELECTORS = 1024 * 1024
"""Characters of selectors of one namespace that are kept during a read. Its pods with more of them get no Event."""
_NOT_FOUND = 404


class ClaimEvents:
    """Explains the pods that are due.

    Args:
        connection: to the API server.
        waits: the pods that wait.
        sites: the nodes by name.
        leading: set while Events are sent.
        report: sends an Event.
    """

    def __init__(
        self,
        connection: Connection,
        waits: ClaimWaits,
        sites: Callable[[], Mapping[str, NodeSite]],
        leading: asyncio.Event,
        report: Callable[[Report], None],
    ) -> None:
        self._connection = connection
        self._waits = waits
        self._sites = sites
        self._leading = leading
        self._report = report
        self._said = ""

    async def run(self) -> None:
        """Explain pods until it is canceled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self._leading.wait()
            pods = self._waits.due(time.monotonic())
            if not pods:
                continue
            began = time.monotonic()
            try:
                await self._explain(pods)
                self._said = ""
                pause_s = max(PAUSE_S, PAUSE_PART * (time.monotonic() - began))
            except KubeError as err:
                self._cannot(err)
                pause_s = FAILED_S
            except Exception:
                # A bug must not end the process.
                log.exception("Explaining claims failed")
                pause_s = FAILED_S
            await asyncio.sleep(pause_s)

    def _cannot(self, err: KubeError) -> None:
        """Say once why nothing can be read. A cluster that does not serve claims has none to explain."""
        if str(err) != self._said and err.status != _NOT_FOUND:
            self._said = str(err)
            log.warning("Failed to read why pods with claims wait", extra={"reason": str(err)})

    async def _explain(self, pods: list[ClaimingPod]) -> None:
        wanted = {PodName(pod.name.namespace, claim.claim) for pod in pods for claim in pod.claims}
        cluster = await self._cluster(wanted)
        ends = time.monotonic() + BATCH_S
        has_failed = False
        for pod in pods:
            try:
                # In a thread, so that calls of kube-scheduler are answered meanwhile.
                reason = await asyncio.to_thread(claim_reason, pod, cluster)
            except Exception:
                # A bug that one pod meets keeps no other from its Event. It is logged once, not for each pod.
                if not has_failed:
                    log.exception("Explaining claims failed", extra={"pod": str(pod.name)})
                has_failed = True
                reason = ClaimReason()
            is_of_us = reason.is_ours and reason.is_certain
            text = reason.text if is_of_us else ""
            report = self._waits.explained(pod.uid, text, time.monotonic())
            if report:
                self._report(report)
            if time.monotonic() > ends:
                return

    async def _cluster(self, wanted: Collection[PodName]) -> ClaimCluster:
        """What the pods with these claims are compared with."""
        slices: list[SliceFacts] = []
        claims: list[ClaimFacts] = []
        classes: list[ClassFacts] = []

        def take_slice(found: Json) -> None:
            facts = read_slice(found)
            if facts:
                slices.append(facts)

        # Of each namespace, so that no tenant silences others. Few namespaces are explained with one read.
        sizes: Counter[str] = Counter()

        def take_claim(found: Json) -> None:
            facts = read_claim(found)
            namespace = facts.name.namespace
            sizes[namespace] += facts.selectors_size if facts.name in wanted else 0
            if facts.name not in wanted or sizes[namespace] > MOST_SELECTORS:
                # What other claims ask for does not count, and any author of claims may ask for a lot.
                facts = replace(facts, requests=(), constraints=())
            claims.append(facts)

        await list_objects(self._connection, f"{_API}/resourceslices", take_slice)
        await list_objects(self._connection, f"{_API}/resourceclaims", take_claim)
        await list_objects(self._connection, f"{_API}/deviceclasses", lambda found: classes.append(read_class(found)))
        sites = dict(self._sites())
        modes = Counter(site.labels.get(MODE_LABEL) for site in sites.values())
        return ClaimCluster(
            published=published(slices),
            claims={claim.name: claim for claim in claims},
            classes={device_class.name: device_class for device_class in classes},
            sites=sites,
            modes={mode: count for mode, count in modes.items() if mode},
        )
