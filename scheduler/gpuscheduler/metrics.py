"""The scheduler's metrics, and the only importer of prometheus_client. docs/reference/metrics.md has `CHAPTERS`."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuagent import __version__
from gpuagent.metrics.family import Family
from gpuscheduler.core.calls import EvictOutcome
from gpuscheduler.core.jobs.broken_jobs import CAUSE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0)

BUILD = Family("gpuscheduler_build_info", "1; the scheduler's version.", ("version",))
CALL_SECONDS = Family(
    "gpuscheduler_call_duration_seconds",
    "Time to answer calls of kube-scheduler.",
    ("verb",),
    "histogram",
    more="`filter`, `prioritize`, `prioritize-claims`, `bind` or `preempt`. The bind call of a job's pod includes the "
    "wait for the job's other pods.",
)
CALLS = Family(
    "gpuscheduler_calls_total",
    "Answered calls of kube-scheduler, by result.",
    ("verb", "result"),
    "counter",
    more="Filter: `placed`. Refused: `full` (no node has room), `fragmented` (GPUs have it together), "
    "`impossible` (no node can take the pod), `job` (its job waits). Not ready: `error`. "
    "Bind: `bound`, `refused`, `unknown` (no answer from the API server). "
    "Preempt: `victims` or `none`. Prioritize: `scored` or `none`. All: `malformed`, `failed` (a bug).",
)
READY = Family(
    "gpuscheduler_ready",
    "1 while the scheduler answers calls: it has read all nodes and pods and follows them.",
)
LEADING = Family(
    "gpuscheduler_leading",
    "1 while the kube-scheduler beside this process holds the lease, or no lease is set.",
    more="Only then the scheduler wakes pods on its own initiative.",
)
NODES = Family("gpuscheduler_nodes", "Nodes with GPUs that the scheduler places pods on.")
PODS = Family(
    "gpuscheduler_pods",
    "Living pods that ask for GPUs, by state.",
    ("state",),
    more="`bound` or `waiting`.",
)
RESERVATIONS = Family(
    "gpuscheduler_reservations",
    "Pods for which GPUs are reserved until the API server shows them bound.",
)
JOBS = Family(
    "gpuscheduler_jobs",
    "Jobs, by state.",
    ("state",),
    more="`forming` (waits for more pods), `waiting` (its pods have no room), `planned`, `running`, "
    "`broken` (it has started, and lacks pods), or `invalid`.",
)
FRAGMENTED = Family(
    "gpuscheduler_fragmented_memory_bytes",
    "Free memory on GPUs that have room for no pod such as those of the last hour.",
    more="0 also where no pod asked for a share.",
)
DEFRAGMENTATIONS = Family(
    "gpuscheduler_defragmentations_total",
    "Plans that moved pods so that another pod had room, by outcome.",
    ("outcome",),
    "counter",
    more="`done`, or the plan was given up: `refused` (the Eviction API refused a pod), `changed` (the plan no longer "
    "held) or `late` (a pod did not start in time).",
)
AGENT_REFUSALS = Family(
    "gpuscheduler_agent_refusals_total",
    "Pods that failed admission on the node that the scheduler chose.",
    kind="counter",
)
WATCH = Family(
    "gpuscheduler_watch_up",
    "1 while the scheduler follows these objects at the API server.",
    ("resource",),
    more="`nodes`, `pods`, `configmaps`, and the kinds that say which pods belong together, such as "
    "`jobsets.jobset.x-k8s.io`, if the API server serves them.",
)
WATCH_ERRORS = Family(
    "gpuscheduler_watch_errors_total",
    "Failures to list or watch objects, after which the scheduler lists them again.",
    ("resource",),
    "counter",
)
WATCH_LAG = Family(
    "gpuscheduler_watch_lag_seconds",
    "Time from the API server's answer to a Binding until the watch shows the pod bound.",
    kind="histogram",
)
API_REQUESTS = Family(
    "gpuscheduler_api_requests_total",
    "Requests to the API server, by verb and HTTP status.",
    ("verb", "code"),
    "counter",
    more="Code `none`: no answer. A watch counts once, when it is opened.",
)
WRITES = Family(
    "gpuscheduler_writes_total",
    "Writes to pods other than Bindings, by kind and result.",
    ("kind", "result"),
    "counter",
    more="Kind `nominate`, `nudge`, `ungate`, `commit`, `event`, `placeholder` or `placeholder-end`; result `ok`, "
    "`refused`, or `dropped` (the API server was away for too long).",
)
EVICTIONS = Family(
    "gpuscheduler_evictions_total",
    "Tries to evict a pod, by cause and result.",
    ("cause", "result"),
    "counter",
    more="Cause `broken-job` or `defragmentation`. Result `evicted`, `gone` (the pod was gone), `later` (a "
    "PodDisruptionBudget does not allow it now, or the API server gave no good answer) or `refused` (missing right).",
)

CHAPTERS: dict[str, tuple[Family, ...]] = {
    "Calls of kube-scheduler": (BUILD, READY, LEADING, CALL_SECONDS, CALLS),
    "Pods and nodes": (NODES, PODS, RESERVATIONS, JOBS, FRAGMENTED, DEFRAGMENTATIONS, AGENT_REFUSALS),
    "The scheduler's API server": (WATCH, WATCH_ERRORS, WATCH_LAG, API_REQUESTS, WRITES, EVICTIONS),
}


Values = Mapping[Family, Mapping[tuple[str, ...], float]]


class SchedulerMetrics:
    """The scheduler's meter, and the page that Prometheus reads.

    Args:
        read: returns the values of gauges, and of counters that other parts keep, for one page.
    """

    def __init__(self, read: Callable[[], Values]) -> None:
        # Otherwise each counter and histogram has another series, with the time when it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            CALL_SECONDS.name,
            CALL_SECONDS.help,
            CALL_SECONDS.labels,
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._lag = Histogram(WATCH_LAG.name, WATCH_LAG.help, buckets=_SECONDS, registry=self._registry)
        self._counters: dict[Family, Counter] = {}
        self._series: dict[tuple[str, ...], Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for family in (CALLS, WATCH_ERRORS, API_REQUESTS, WRITES, EVICTIONS):
            counter = Counter(family.name, family.help, family.labels, registry=self._registry)
            self._counters[family] = counter
        for outcome in EvictOutcome:
            # From the start, because evictions are rare, and an increase needs a value before.
            self._counters[EVICTIONS].labels(CAUSE, outcome.name.lower())
        build = Gauge(BUILD.name, BUILD.help, BUILD.labels, registry=self._registry)
        build.labels(__version__).set(1)
        self._registry.register(_Derived(read))
        ProcessCollector(registry=self._registry)

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """Count an answer to kube-scheduler."""
        self._count(CALLS, verb, result)
        histogram = self._histograms.get(verb)
        if histogram is None:
            histogram = self._seconds.labels(verb)
            self._histograms[verb] = histogram
        histogram.observe(seconds)

    def api_answered(self, verb: str, code: str) -> None:
        """Count an answer of the API server."""
        self._count(API_REQUESTS, verb, code)

    def watch_failed(self, resource: str) -> None:
        """Count a list or watch that failed."""
        self._counters[WATCH_ERRORS].labels(resource).inc()

    def watch_lagged(self, seconds: float) -> None:
        """Count a Binding that the watch shows."""
        self._lag.observe(seconds)

    def written(self, kind: str, result: str) -> None:
        """Count a write other than a Binding."""
        self._count(WRITES, kind, result)

    def evicted(self, cause: str, result: str) -> None:
        """Count a try to evict a pod."""
        self._counters[EVICTIONS].labels(cause, result).inc()

    def _count(self, family: Family, *labels: str) -> None:
        """Count one in the series with these labels. Each pod counts in several, and to look one up takes a lock."""
        key = family.name, *labels
        series = self._series.get(key)
        if series is None:
            series = self._counters[family].labels(*labels)
            self._series[key] = series
        series.inc()

    def page(self) -> bytes:
        """The text exposition."""
        return generate_latest(self._registry)


class _Derived(Collector):
    """Values that are read for each page."""

    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for family, values in self._read().items():
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=family.labels)
            for labels, value in values.items():
                metric.add_metric(labels, value)
            yield metric
