"""Prometheus metrics: counters of what kubelet was told, and gauges read from the published state at each scrape."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as PromCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuagent import __version__
from gpuagent.domain.errors import Reason
from gpuagent.domain.failedpod import Failure
from gpuagent.domain.mode import PROMISES, Mode
from gpuagent.domain.report import problems, switch
from gpuagent.domain.state import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GPU = ["UUID", "gpu", "modelName"]
_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0)


@dataclass(frozen=True, slots=True)
class EndpointView:
    """What metrics and status show of one resource's registration."""

    stage: str
    registered: bool
    registrations: int
    list_bytes: int
    problem: str | None


class Metrics:
    """The agent's meter, and the page Prometheus reads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._rpc = Histogram(
            "gpuagent_rpc_duration_seconds",
            "Time to answer kubelet's calls, refusals included.",
            ["method", "resource"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._refusals = PromCounter(
            "gpuagent_refusals_total",
            "Calls of kubelet's that were refused, by reason.",
            ["method", "resource", "reason"],
            registry=self._registry,
        )

    @cache  # noqa: B019 (one meter a process)
    def _of(self, method: str, resource: str) -> Histogram:
        return self._rpc.labels(method, resource)

    def answered(self, method: str, resource: str, seconds: float) -> None:
        self._of(method, resource).observe(seconds)

    def refused(self, method: str, resource: str, reason: Reason) -> None:
        self._refusals.labels(method, resource, reason.value).inc()

    def show(
        self,
        state: Callable[[], State],
        endpoints: Callable[[], Mapping[str, EndpointView]],
        health_watch_up: Callable[[], bool],
    ) -> None:
        """Read gauges from these at each scrape."""
        self._registry.register(_StateCollector(state, endpoints, health_watch_up))

    def page(self) -> bytes:
        """The text exposition."""
        return generate_latest(self._registry)


class _StateCollector(Collector):
    def __init__(
        self,
        state: Callable[[], State],
        endpoints: Callable[[], Mapping[str, EndpointView]],
        health_watch_up: Callable[[], bool],
    ) -> None:
        self._state = state
        self._endpoints = endpoints
        self._health_watch_up = health_watch_up

    def collect(self) -> Iterable[Metric]:
        state = self._state()
        yield _gauge("gpuagent_build_info", "The agent's version.", ["version"], {(__version__,): 1})
        yield _gauge(
            "gpuagent_mode", "1 for the mode in force.", ["mode"], {(str(m),): float(m is state.mode) for m in Mode}
        )
        progress = switch(state)
        yield _gauge(
            "gpuagent_mode_switch_waiting_containers",
            "Containers of a former mode whose GPUs are not offered until they end.",
            [],
            {(): len(progress.waiting_for)},
        )
        yield _gauge(
            "gpuagent_mode_switch_in_progress",
            "1 while a mode switch settles or waits for containers.",
            [],
            {(): float(progress.phase != "steady")},
        )
        yield _gauge(
            "gpuagent_problems",
            "Problems that keep the node from offering what it could, by reason.",
            ["reason"],
            {(reason,): count for reason, count in Counter(p.reason for p in problems(state)).items()},
        )
        yield _gauge(
            "gpuagent_isolation_up",
            "1 while the isolation driver of the mode in force works.",
            ["driver"],
            {(state.layer.driver,): float(state.layer.keeps(state.mode))} if PROMISES[state.mode] else {},
        )
        yield from self._devices(state)
        yield from self._registrations()
        deleted = CounterMetricFamily("gpuagent_pods_cleaned", "Failed pods that were deleted.", labels=["reason"])
        for failure in Failure:
            deleted.add_metric([failure], state.deleted.get(failure, 0))
        yield deleted
        yield _gauge(
            "gpuagent_health_watch_up",
            "1 while the driver's fault events are being watched.",
            [],
            {(): float(self._health_watch_up())},
        )

    def _devices(self, state: State) -> Iterable[Metric]:
        devices: Counter[tuple[str, ...]] = Counter()
        for resource, blocks in state.lists.items():
            devices.update({(resource, health): 0 for health in ("healthy", "unhealthy")})
            for block in blocks:
                devices[resource, "healthy" if block.healthy else "unhealthy"] += block.count
        yield _gauge("gpuagent_devices", "Devices advertised to kubelet.", ["resource", "health"], devices)
        unhealthy = state.unhealthy
        gpus: dict[tuple[str, ...], float] = {
            (gpu.uuid, str(gpu.index), gpu.model): float(gpu.uuid not in unhealthy) for gpu in state.gpus.values()
        }
        yield _gauge("gpuagent_gpu_healthy", "1 for a healthy GPU.", _GPU, gpus)
        yield from self._xids(state)

    def _xids(self, state: State) -> Iterable[Metric]:
        heard = {
            (gpu.uuid, str(gpu.index), gpu.model): case.last_xid
            for gpu in state.gpus.values()
            if (case := state.health.get(gpu.uuid)) and case.last_xid
        }
        began_s = time.time() - time.monotonic()
        xids: dict[tuple[str, ...], float] = {labels: xid for labels, (xid, _) in heard.items()}
        times: dict[tuple[str, ...], float] = {labels: round(began_s + at, 1) for labels, (_, at) in heard.items()}
        yield _gauge("gpuagent_gpu_last_xid", "The last XID of a GPU in this run, whatever it cost.", _GPU, xids)
        yield _gauge("gpuagent_gpu_last_xid_timestamp_seconds", "When that was, in Unix time.", _GPU, times)
        total = CounterMetricFamily("gpuagent_gpu_xids", "XIDs of a GPU.", labels=["UUID", "xid"])
        for uuid, case in state.health.items():
            for xid, count in case.counts.items():
                total.add_metric([uuid, str(xid)], count)
        yield total

    def _registrations(self) -> Iterable[Metric]:
        views = self._endpoints()
        yield _gauge(
            "gpuagent_registered",
            "1 while kubelet follows the resource's device list.",
            ["resource"],
            {(name,): float(view.registered) for name, view in views.items()},
        )
        yield _gauge(
            "gpuagent_device_list_bytes",
            "Encoded size of the device list; kubelet takes 4194304 bytes.",
            ["resource"],
            {(name,): view.list_bytes for name, view in views.items()},
        )
        total = CounterMetricFamily("gpuagent_registrations", "Successful registrations.", labels=["resource"])
        for name, view in views.items():
            total.add_metric([name], view.registrations)
        yield total


def _gauge(name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(list(label_values), value)
    return family
