"""The agent's meter: counts events as they happen, and reads all other values when a client requests the page."""

import logging
import threading
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client import Counter as PromCounter

from gpuagent.domain.refusal import Reason
from gpuagent.metrics import families as f
from gpuagent.metrics.containers import arena, containers
from gpuagent.metrics.exposition import exposition
from gpuagent.metrics.family import Family
from gpuagent.metrics.gpus import gpus
from gpuagent.metrics.node import node, resources
from gpuagent.metrics.over_time import over_time
from gpuagent.metrics.reading import MetricValues, Reading, Sources, read_sources

log = logging.getLogger(__name__)

Part = Callable[[Reading], MetricValues]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0)


class Metrics:
    """The agent's meter, and the page Prometheus reads."""

    def __init__(self) -> None:
        # process_start_time_seconds replaces the created series of each counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._rpc = Histogram(f.RPC.name, f.RPC.help, f.RPC.labels, buckets=_SECONDS, registry=self._registry)
        self._refusals = self._counter(f.REFUSALS)
        self._api_answers = self._counter(f.API_REQUESTS)
        self._failures = self._counter(f.METRICS_FAILURES)
        self._lock = threading.Lock()
        self._page = b""
        self._page_began = float("-inf")
        self._sources: Sources | None = None
        self._former: Reading | None = None
        ProcessCollector(registry=self._registry)

    def _counter(self, family: Family) -> PromCounter:
        return PromCounter(family.name, family.help, family.labels, registry=self._registry)

    def timer(self, method: str, resource: str) -> Callable[[float], None]:
        """Takes the seconds of each call of this method."""
        return self._rpc.labels(method, resource).observe

    def refused(self, method: str, resource: str, reason: Reason) -> None:
        counter = self._refusals.labels(method, resource, reason.value)
        counter.inc()

    def api_answered(self, verb: str, code: str) -> None:
        """Count an answer of the API server by HTTP status; ``none`` for no answer."""
        counter = self._api_answers.labels(verb, code)
        counter.inc()

    def show(self, sources: Sources) -> None:
        """Set the sources of all other values, which each page reads."""
        self._sources = sources

    def page(self) -> bytes:
        """The text exposition. Requests that come while a page is in progress wait, and share the next one."""
        came = time.monotonic()
        with self._lock:
            if self._page_began < came:
                began = time.monotonic()
                values = self._read().encode()
                # After the values, so that the page counts its own failures.
                counters = generate_latest(self._registry)
                self._page = counters + values
                self._page_began = began  # not before: a page that failed serves no request
            return self._page

    def _read(self) -> str:
        if self._sources is None:
            return ""
        reading = read_sources(self._sources, self._former)
        parts: dict[str, Part] = {
            "node": node,
            "resources": resources,
            "gpus": gpus,
            "containers": containers,
            "over_time": over_time,
        }
        # Only with --compat-metrics. They repeat values of the other series under other names.
        if self._sources.node_name is not None:
            parts["arena"] = arena
        texts: list[str] = []
        all_computed = True
        for name, part in parts.items():
            all_computed &= self._add(texts, name, part, reading)
        # The next reading builds on this one, and must not fail with it.
        if all_computed:
            self._former = reading
        return "".join(texts)

    def _add(self, texts: list[str], name: str, part: Part, reading: Reading) -> bool:
        """Add a part's families to the page's texts, up to the first that fails; False if one does.

        Alerts about all other values must not fall silent because of one that cannot be computed.
        """
        try:
            for family, values in part(reading):
                texts.append(exposition(family, values))
        except Exception:
            log.exception("Failed to compute a part of the metrics", extra={"part": name})
            self._failures.labels(name).inc()
            return False
        return True
