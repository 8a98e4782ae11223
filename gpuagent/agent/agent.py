"""The composition root: makes every part, and starts and stops them in order."""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuagent import __version__
from gpuagent.agent.device_plugins import DevicePlugins
from gpuagent.agent.dra_driver import DraDriver
from gpuagent.agent.effects import Effects, log_announcement
from gpuagent.agent.first_state import first_state
from gpuagent.agent.loop import EventQueue, Loop
from gpuagent.agent.publisher import Publisher
from gpuagent.agent.reports import Reports
from gpuagent.agent.start_gate import StartGate
from gpuagent.agent.usage_watch import UsageWatch
from gpuagent.allocator.allocator import Allocator
from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.isolation_layers import NONE, Layer
from gpuagent.domain.state import State
from gpuagent.isolation import drivers
from gpuagent.isolation.interface import Isolation, Serving
from gpuagent.isolation.paired import with_pair
from gpuagent.kube.cluster_sync import ClusterSync
from gpuagent.kube.no_cluster import NoCluster
from gpuagent.kubelet.deviceplugin.device_feed import Feed
from gpuagent.kubelet.dra.health_servicer import HealthServicer
from gpuagent.kubelet.dra.kubelet_claims import claims_of_kubelet
from gpuagent.kubelet.dra.servicer import DraServicer
from gpuagent.kubelet.holdings_watch import HoldingsWatch
from gpuagent.kubelet.pod_resources import PodResources
from gpuagent.metrics.meter import Metrics
from gpuagent.metrics.reading import Sources
from gpuagent.nvml.usage.samples import Sampler
from gpuagent.nvml.watch import NvmlWatch
from gpuagent.pages.http_server import HttpServer
from gpuagent.preparer.claim_files import ClaimFiles
from gpuagent.preparer.preparer import Preparer
from gpuagent.settings.settings import Settings
from gpuagent.system.fence_file import FenceWatch
from gpuagent.system.last_mode import LastMode
from gpuagent.system.resize_file import ResizeFile

log = logging.getLogger(__name__)

NOWHERE = Path("/dev/null")
"""A path below which nothing exists."""


class Agent:
    """The per-node agent. `start()` returns at once; `stop()` ends within two seconds."""

    def __init__(self, settings: Settings, *, isolation: Mapping[str, Isolation] | None = None) -> None:
        self._settings = settings
        isolation = isolation or drivers.make(settings.isolation_options)
        self._watched_drivers = {name: driver for name, driver in isolation.items() if name != NONE}
        serving = with_pair(isolation)
        self._clock = time.monotonic
        self._events = EventQueue()
        self._gate = StartGate()
        self._remembered = LastMode(settings.state_dir)
        self._resizes = ResizeFile(settings.state_dir)
        state = first_state(settings, self._remembered, self._watched_drivers, self._resizes.load())
        self.metrics = Metrics()
        self.nvml = self._make_nvml()
        self._fence = FenceWatch(settings.fence_file, self.post) if settings.fence_file else None
        # Made early, started last: earlier events wait in the queue. The constructor loads no library.
        self.kube = self._make_kube()
        plugins = settings.kubelet_dir / "device-plugins"
        self._pod_resources = PodResources(settings.kubelet_dir / "pod-resources" / "kubelet.sock")
        self.holdings = HoldingsWatch(self._pod_resources, self.post, self._wait_idle, self._clock, plugins)
        self.allocator = self._make_allocator(serving)
        claim_files = ClaimFiles(settings.state_dir, settings.cdi_dir)
        self.preparer = self._make_preparer(serving, claim_files)
        self._device_plugins = DevicePlugins(
            resources=settings.resources.names,
            directory=plugins,
            allocator=self.allocator,
            metrics=self.metrics,
            waits_for_pods=settings.uses_api_server,
            read_holdings=self.holdings.refresh,
            post=self.post,
            clock=self._clock,
            gate=self._gate,
        )
        device_health = HealthServicer(settings.node_name)
        self._dra_driver = self._make_dra_driver(device_health, claim_files.records)
        publisher = Publisher(
            allocator=self.allocator,
            preparer=self.preparer,
            device_health=device_health,
            feeds=self.feeds,
            kube=self.kube,
            remembered=self._remembered if settings.uses_api_server else None,
        )
        self._loop = Loop(state, self._events, self._count_allocates, self._make_effects(publisher), self._clock)
        self._sampler = Sampler(self._clock)
        self.usage = UsageWatch(
            lambda: self.state,
            self._sampler.samples,
            announce=self._announce,
            set_idle_pods=self.kube.set_idle_pods if settings.idle_policy else None,
            clock=self._clock,
        )
        self._reports = self._make_reports(publisher)
        self._http: HttpServer | None = None

    # -- the parts -------------------------------------------------------------------------------------------

    def _make_nvml(self) -> NvmlWatch:
        if self._settings.simulate:
            # Simulated GPUs are on no host, so the host's own GPUs must not be taken for them.
            return NvmlWatch(self.post, clock=self._clock, sysfs=NOWHERE, proc=NOWHERE)
        return NvmlWatch(self.post, clock=self._clock)

    def _make_kube(self) -> ClusterSync | NoCluster:
        settings = self._settings
        if not settings.uses_api_server:
            return NoCluster()
        return ClusterSync(
            settings.kubeconfig,
            settings.node_name,
            self.post,
            self.metrics.api_answered,
            settings.policy,
            self._forget_claim,
            lambda: claims_of_kubelet(settings.kubelet_dir),
        )

    def _make_allocator(self, isolation: Mapping[str, Serving]) -> Allocator:
        return Allocator(
            clock=self._clock,
            kubelet=self.holdings,
            isolation=isolation,
            strategy=self._settings.device_strategy,
            send_event=self.kube.send_event,
            allocated=self.holdings.refresh_soon,
            fetch=self.kube.fetch,
        )

    def _make_preparer(self, isolation: Mapping[str, Serving], files: ClaimFiles) -> Preparer:
        return Preparer(
            pool=self._settings.node_name,
            read_claim=self.kube.claim,
            isolation=isolation,
            strategy=self._settings.device_strategy,
            files=files,
            changed=lambda claims: self.post(ev.ClaimsPrepared(claims, self._clock())),
            send_event=self.kube.send_event,
            is_forgotten=self.kube.is_forgotten,
            is_of_administrators=self.kube.is_of_administrators,
        )

    def _make_dra_driver(self, device_health: HealthServicer, records: Path) -> DraDriver:
        return DraDriver(
            kubelet_dir=self._settings.kubelet_dir,
            records=records,
            make_servicer=lambda: DraServicer(self.preparer, device_health, self.metrics),
            records_changed=self.preparer.refresh,
            post=self.post,
            clock=self._clock,
            gate=self._gate,
            is_possible=self._settings.uses_api_server,
        )

    def _make_effects(self, publisher: Publisher) -> Effects:
        is_forced = self._settings.mode is not None
        return Effects(
            publisher=publisher,
            first_reads=self._device_plugins.first_reads,
            kube=self.kube,
            holdings=self.holdings,
            dra_driver=self._dra_driver,
            isolation=self._watched_drivers,
            # A forced mode is not stored: it must not be in force after the setting has gone.
            keep_mode=lambda mode: self._remembered.keep(None if is_forced else mode),
            keep_resizes=self._resizes,
            post=self.post,
            clock=self._clock,
        )

    def _make_reports(self, publisher: Publisher) -> Reports:
        return Reports(
            self._settings,
            state=lambda: self.state,
            snapshot=lambda: publisher.snapshot,
            endpoints=self._device_plugins.views,
            silent_s=lambda: self._clock() - self.beat_at,
            restart_helps=lambda: self.nvml.restart_helps,
            has_stored_mode=lambda: self._remembered.saved is not None,
            usage=lambda: self.usage.usage,
            last_hour=lambda: self.usage.last_hour,
            clock=self._clock,
        )

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every part. Raises OSError if the HTTP address is taken."""
        settings = self._settings
        log.info(
            "Started gpuagent",
            extra={"version": __version__, "node": settings.node_name, "mode": self.state.node.mode},
        )
        # First: if the address is taken, nothing else has begun.
        if settings.http_address:
            self._http = self._reports.http_server(settings.http_address, self.metrics)
            self._http.start()
        self.metrics.show(self._metric_sources())
        self.preparer.start()
        self._loop.start()
        self._device_plugins.start()
        if self._fence:
            self._fence.start()
        self.nvml.start()
        self.holdings.start()
        for driver in self._watched_drivers.values():
            driver.start(self._layer_seen)
        self.usage.start()
        self.kube.start()

    def stop(self) -> None:
        """End streams, servers, threads; no empty list is sent: running pods and amounts stay as they are."""
        self._gate.close()
        self.preparer.stop()
        # Before the API server's side: calls in progress still need it.
        self._dra_driver.stop()
        self._device_plugins.stop()
        self.holdings.stop()
        if self._fence:
            self._fence.stop()
        self.usage.stop()
        self.nvml.stop()
        for driver in self._watched_drivers.values():
            driver.stop()
        self.kube.stop()
        if self._http:
            self._http.stop()
        # After the parts that post events to it.
        self._loop.stop()
        self._pod_resources.close()
        log.info("Stopped gpuagent")

    # -- what the parts ask of each other --------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Queue an event for the loop; callable from any thread, never blocks."""
        self._events.put(event)

    def _wait_idle(self, timeout_s: float) -> bool:
        return self.allocator.in_flight.wait_idle(timeout_s)

    def _count_allocates(self) -> ev.AllocatesSeen:
        # First the calls, then what they gave: a call that ends in between is in both.
        running, last_end = self.allocator.in_flight.now()
        return ev.AllocatesSeen(running, last_end, self._clock(), self.allocator.recent_ids())

    def _announce(self, announcement: Announcement) -> None:
        log_announcement(announcement)
        self.kube.send_event(announcement)

    def _layer_seen(self, layer: Layer) -> None:
        self.post(ev.LayerSeen(layer, self._clock()))

    def _forget_claim(self, uid: str) -> None:
        with suppress(Refusal):  # it is tried again
            self.preparer.unprepare(uid)

    # -- what is seen from outside ---------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The current state of the agent."""
        return self._loop.state

    @property
    def beat_at(self) -> float:
        """When the loop took its last event, in monotonic seconds."""
        return self._loop.beat_at

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """Device lists by resource."""
        return self._device_plugins.feeds

    @property
    def http_port(self) -> int | None:
        return self._http.port if self._http else None

    def _metric_sources(self) -> Sources:
        settings = self._settings
        return Sources(
            state=lambda: self.state,
            endpoints=self._device_plugins.views,
            health_watch_up=lambda: self.nvml.health_watch_up,
            samples=self._sampler.samples,
            usage=lambda: self.usage.usage,
            clock=self._clock,
            api=settings.uses_api_server,
            node_name=settings.node_name if settings.compat_metrics else None,
        )

    def unhealthy_because(self) -> str | None:
        """Why the agent should be restarted, or None."""
        return self._reports.unhealthy_because()

    def unready_because(self) -> str | None:
        """Why the node cannot serve GPUs now, or None."""
        return self._reports.unready_because()

    def status(self) -> dict[str, Any]:
        """The status page."""
        return self._reports.status()

    def topology(self) -> dict[str, Any]:
        """The topology page."""
        return self._reports.topology()
