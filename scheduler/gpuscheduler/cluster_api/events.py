"""Sends Events about pods at a bounded rate; repeats are counted on the first."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.system.printable import printable
from gpuscheduler.cluster_api.connection import Connection, Json
from gpuscheduler.core.calls import Report

log = logging.getLogger(__name__)

CONTROLLER = "gpuscheduler"
GAP_S = 0.1
"""Least time between two Events."""
REPEAT_S = 300.0
"""A repeat that comes later is a new Event."""
MOST_QUEUED, MOST_REMEMBERED = 256, 1024
_LONGEST_NOTE, _LONGEST_NAME, _LONGEST_INSTANCE = 1024, 230, 128
_NOT_FOUND, _CONFLICT = 404, 409


@dataclass(slots=True)
class _Series:
    """One Event at the API server.

    Attributes:
        name: of the Event.
        count: how often it was reported.
        last_s: Unix time of the last report.
        created: whether the API server has it.
    """

    name: str
    count: int
    last_s: float
    created: bool = False


class Events:
    """A bounded queue of reports, oldest first.

    Args:
        connection: to the API server.
        identity: of this process.
        written: called with ``ok``, ``refused`` or ``dropped`` for each report.
        wall: Unix seconds.
        gap_s: least time between two Events.
    """

    def __init__(
        self,
        connection: Connection,
        identity: str,
        written: Callable[[str], None] = lambda _: None,
        wall: Callable[[], float] = time.time,
        gap_s: float = GAP_S,
    ) -> None:
        self._connection, self._identity = connection, identity[:_LONGEST_INSTANCE]
        self._written, self._wall, self._gap_s = written, wall, gap_s
        self._queue: OrderedDict[Report, _Series] = OrderedDict()
        self._sent: OrderedDict[Report, _Series] = OrderedDict()
        self._news = asyncio.Event()

    def add(self, report: Report) -> None:
        """Queue a report. A full queue drops the oldest."""
        now = self._wall()
        series = self._queue.get(report) or self._sent.get(report)
        if series is None or now - series.last_s >= REPEAT_S:
            name = f"{report.pod.name[:_LONGEST_NAME].rstrip('.-')}.{time.time_ns():x}"
            series = _Series(name, 0, now)
        series.count, series.last_s = series.count + 1, now
        self._queue[report] = series
        if len(self._queue) > MOST_QUEUED:
            self._queue.popitem(last=False)
            self._written("dropped")
        self._news.set()

    async def run(self) -> None:
        """Send the queue until it is canceled."""
        while True:
            await self._news.wait()
            if not self._queue:
                self._news.clear()
                continue
            report, series = self._queue.popitem(last=False)
            self._sent[report] = series
            if len(self._sent) > MOST_REMEMBERED:
                self._sent.popitem(last=False)
            try:
                await self._send(report, series)
            except KubeError as err:
                log.debug("Failed to send an Event", extra={"reason": report.reason, "error": str(err)})
                self._written("refused" if isinstance(err, ApiError) else "dropped")
            else:
                self._written("ok")
            await asyncio.sleep(self._gap_s)

    async def _send(self, report: Report, series: _Series) -> None:
        path = f"/apis/events.k8s.io/v1/namespaces/{report.pod.namespace}/events"
        time_text = datetime.fromtimestamp(series.last_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if series.created:
            try:
                count = {"count": series.count, "lastObservedTime": time_text}
                await self._connection.patch(f"{path}/{series.name}", {"series": count})
            except ApiError as err:
                if err.status != _NOT_FOUND:
                    raise
                # The API server drops Events after an hour.
            else:
                return
        try:
            await self._connection.create(path, self._body(report, series, time_text))
        except ApiError as err:
            if err.status != _CONFLICT:
                raise  # a conflict: an earlier try succeeded after all
        series.created = True

    def _body(self, report: Report, series: _Series, time_text: str) -> Json:
        pod = report.pod
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": pod.namespace},
            "eventTime": time_text,
            "reportingController": CONTROLLER,
            "reportingInstance": self._identity,
            "action": "Scheduling",
            "reason": report.reason,
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": report.uid,
            },
            "note": printable(report.message)[: _LONGEST_NOTE // 4],
            "type": "Warning" if report.warning else "Normal",
        }
