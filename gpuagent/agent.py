"""The composition root: wires the edges to the core, runs one loop that owns the state, stops everything."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuagent import __version__
from gpuagent.allocator.allocator import Allocator
from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.dra.device_health import device_healths
from gpuagent.domain.node_state.device_lists import Advertised
from gpuagent.domain.node_state.isolation_drivers import IsolationDrivers
from gpuagent.domain.node_state.node_object import Node
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.isolation_layers import NONE, Layer
from gpuagent.domain.sharing.mode import DRA_DRIVER, Mode
from gpuagent.domain.snapshot import Snapshot, snapshot
from gpuagent.domain.state import State
from gpuagent.domain.status import problems, status_page, topology_page
from gpuagent.domain.step import deadline, step
from gpuagent.isolation import drivers
from gpuagent.isolation.interface import Isolation
from gpuagent.isolation.need import isolation_needs
from gpuagent.kube.cluster_sync import ClusterSync
from gpuagent.kubelet.deviceplugin.device_feed import Feed
from gpuagent.kubelet.deviceplugin.endpoint import Endpoint, Stage, sweep
from gpuagent.kubelet.deviceplugin.servicer import Servicer
from gpuagent.kubelet.dra.health_servicer import HealthServicer
from gpuagent.kubelet.dra.kubelet_claims import claims_of_kubelet
from gpuagent.kubelet.dra.plugin import DraPlugin
from gpuagent.kubelet.dra.servicer import DraServicer
from gpuagent.kubelet.holdings_watch import HoldingsWatch
from gpuagent.kubelet.pod_resources import PodResources
from gpuagent.metrics.meter import CONTENT_TYPE, Metrics
from gpuagent.metrics.reading import EndpointView, Sources
from gpuagent.nvml.usage.samples import Sampler
from gpuagent.nvml.watch import NvmlWatch
from gpuagent.pages.http_server import HttpServer, json_page
from gpuagent.pages.web_pages import node_pages
from gpuagent.preparer.claim_files import ClaimFiles
from gpuagent.preparer.preparer import Preparer
from gpuagent.settings.settings import Settings
from gpuagent.system.fence_file import FenceWatch
from gpuagent.system.inotify import DirectoryWatch
from gpuagent.system.last_mode import LastMode
from gpuagent.system.printable import error_words

log = logging.getLogger(__name__)

FIRST_LIST_WAIT_S = 0.3
"""How long registration waits for the first reads of the driver and of kubelet's allocations.

The first device list is then complete.
"""
BEAT_S = 5.0
LOOK_AGAIN_S = 0.02
"""Longest pause of the loop while an Allocate in progress delays the removal of draining units."""
STALL_S = 30.0
REGISTER_S = 15.0
"""How long kubelet may take to find the DRA driver's socket; it looks each second."""
DRIVER_PATIENCE_S = 5.0
WAITING_PERIOD_S = 1.0
QUIET_PERIOD_S = 30.0
NOWHERE = Path("/dev/null")
"""A path below which nothing exists."""
_NO_GPU_TO_GIVE = frozenset(
    {"DriverUnavailable", "GPUUnreadable", "NoUsableGPU", "MemoryUnitTooLarge", "DeviceListTooLarge"}
)
"""Problems that, while they block, mean that no GPU of the node can be given to a container."""


class Agent:
    """The per-node agent. `start()` returns at once; `stop()` ends within two seconds."""

    def __init__(self, settings: Settings, *, isolation: Mapping[str, Isolation] | None = None) -> None:
        self._settings = settings
        self._isolation = isolation or drivers.make(settings.isolation_options)
        self._watched_drivers = {name: driver for name, driver in self._isolation.items() if name != NONE}
        self._events: queue.SimpleQueue[ev.Event | None] = queue.SimpleQueue()
        self._clock = time.monotonic
        self._remembered = LastMode(settings.state_dir)
        stored = self._remembered.load()
        remembered = None if settings.mode else stored
        self._state = State(
            policy=settings.policy,
            node=Node(mode=settings.mode or remembered or Mode.DEFAULT, mode_known=bool(settings.mode or remembered)),
            pods=self._stored_pods(),
            advertised=Advertised(lists=dict.fromkeys(settings.resources.names, ())),
            isolation=IsolationDrivers(
                layers={name: Layer(driver=name, installed=False) for name in self._watched_drivers},
                unheard=frozenset(self._watched_drivers),
            ),
        )
        self._snapshot: Snapshot | None = None
        self._working_out: BestSets | None = None
        self._unhealthy: frozenset[str] = frozenset()
        self._began = self._clock()
        self.beat_at = self._began
        """When the loop took its last event, in monotonic seconds."""
        self._first_look = threading.Event()
        self.metrics = Metrics()
        plugins = settings.kubelet_dir / "device-plugins"
        self._pod_resources = PodResources(settings.kubelet_dir / "pod-resources" / "kubelet.sock")
        self.holdings = HoldingsWatch(self._pod_resources, self.post, self._wait_idle, self._clock, plugins)
        self.allocator = Allocator(
            clock=self._clock,
            kubelet=self.holdings,
            isolation=self._isolation,
            strategy=settings.device_strategy,
            send_event=self._send_event,
            allocated=self.holdings.refresh_soon,
            fetch=self._fetch,
        )
        self.feeds = {name: Feed() for name in settings.resources.names}
        self._endpoints = {
            name: Endpoint(name, plugins, self._servicer_maker(name), self._endpoint_changed)
            for name in settings.resources.names
        }
        self._directory_watch = DirectoryWatch(plugins, self._nudge_endpoints)
        self._device_health = HealthServicer(settings.node_name)
        self._dra: DraPlugin | None = None
        self._claims_watch: DirectoryWatch | None = None
        self._claim_files = ClaimFiles(settings.state_dir, settings.cdi_dir)
        self._dra_began = 0.0
        self._plugins = plugins
        if settings.simulate:
            # Simulated GPUs are on no host, so the host's own GPUs must not be taken for them.
            self.nvml = NvmlWatch(self.post, clock=self._clock, sysfs=NOWHERE, proc=NOWHERE)
        else:
            self.nvml = NvmlWatch(self.post, clock=self._clock)
        self._fence = FenceWatch(settings.fence_file, self.post) if settings.fence_file else None
        # Made now, started last: earlier events wait in its queue. The constructor loads no library.
        self.kube: ClusterSync | None = None
        if settings.uses_api_server:
            self.kube = ClusterSync(
                settings.kubeconfig,
                settings.node_name,
                self.post,
                self.metrics.api_answered,
                settings.policy,
                self._forget_claim,
                lambda: claims_of_kubelet(settings.kubelet_dir),
            )
        self.preparer = Preparer(
            pool=settings.node_name,
            # Without an API server, the driver is not registered.
            read_claim=self.kube.claim if self.kube else lambda _namespace, _name: {},
            isolation=self._isolation,
            strategy=settings.device_strategy,
            files=self._claim_files,
            changed=lambda claims: self.post(ev.ClaimsPrepared(claims, self._clock())),
            send_event=self._send_event,
            is_forgotten=self.kube.is_forgotten if self.kube else lambda _claim: False,
        )
        self._http: HttpServer | None = None
        self._threads = [
            threading.Thread(target=self._loop, name="loop", daemon=True),
            threading.Thread(target=self._start_endpoints, name="start", daemon=True),
        ]
        self._stopping = threading.Event()
        self._starting = threading.Lock()

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every part. Raises OSError if the HTTP address is taken."""
        settings = self._settings
        log.info(
            "Started gpuagent",
            extra={"version": __version__, "node": settings.node_name, "mode": self._state.node.mode},
        )
        if settings.http_address:
            self._http = HttpServer(
                settings.http_address,
                pages={
                    **node_pages(),
                    "/metrics": lambda: (CONTENT_TYPE, self.metrics.page()),
                    "/status": json_page(self.status),
                    "/topology": json_page(self.topology),
                },
                probes={"/healthz": self.unhealthy_because, "/readyz": self.unready_because},
            )
            self._http.start()
        self.metrics.show(self._metric_sources())
        self.preparer.start()
        for thread in self._threads:
            thread.start()
        if self._fence:
            self._fence.start()
        self.nvml.start()
        self.holdings.start()
        for driver in self._watched_drivers.values():
            driver.start(self._layer_seen)
        if self.kube:
            self.kube.start()

    def stop(self) -> None:
        """End streams, servers, threads; no empty list is sent: running pods and amounts stay as they are."""
        with self._starting:
            self._stopping.set()
        self.preparer.stop()
        self._stop_dra()  # first: calls in progress still need the API server
        self._directory_watch.stop()
        for endpoint in self._endpoints.values():
            endpoint.begin_stop()
        for endpoint in self._endpoints.values():
            endpoint.join(1.5)
        self.holdings.stop()
        if self._fence:
            self._fence.stop()
        self.nvml.stop()
        for driver in self._watched_drivers.values():
            driver.stop()
        if self.kube:
            self.kube.stop()
        if self._http:
            self._http.stop()
        self._events.put(None)
        self._threads[0].join(1.0)
        self._pod_resources.close()
        log.info("Stopped gpuagent")

    def _start_endpoints(self) -> None:
        for path in sweep(self._plugins):
            log.info("Removed a socket of a former run", extra={"path": str(path)})
        self._first_look.wait(FIRST_LIST_WAIT_S)
        with self._starting:
            if self._stopping.is_set():
                return
            for endpoint in self._endpoints.values():
                endpoint.start()
            self._directory_watch.start()

    # -- the loop: the only place where the state changes --------------------------------------------------------

    @property
    def state(self) -> State:
        """The current state of the agent."""
        return self._state

    def post(self, event: ev.Event) -> None:
        """Queue an event for the loop; callable from any thread, never blocks."""
        self._events.put(event)

    def _loop(self) -> None:
        self._publish(self._state)
        for problem in problems.problems(self._state):
            if not problem.passing:
                self._announce(Announcement(problem.reason, problem.message, warning=problem.warning))
        while True:
            due = deadline(self._state)
            pause = BEAT_S if due is None else min(BEAT_S, max(LOOK_AGAIN_S, due - self._clock()))
            try:
                event = self._events.get(timeout=pause)
            except queue.Empty:
                event = self._silent_driver() or ev.AllocatesSeen(*self.allocator.in_flight.now(), self._clock())
            if event is None:
                return
            self.beat_at = self._clock()
            try:
                self._take(event)
            except Exception:
                log.exception("Failed to take an event", extra={"event_type": type(event).__name__})

    def _silent_driver(self) -> ev.LayerSeen | None:
        """Report an isolation driver that has not reported in time as one that does not work."""
        if not self._state.isolation.unheard or self._clock() - self._began < DRIVER_PATIENCE_S:
            return None
        name = min(self._state.isolation.unheard)
        text = f"it has said nothing for {DRIVER_PATIENCE_S:g} s; look at the agent's log"
        return ev.LayerSeen(Layer(driver=name, installed=False, problem=text), self._clock())

    def _take(self, event: ev.Event) -> None:
        # Device lists go by the time at which kubelet can receive a change, not by the time of the change.
        before = self._state
        now = self._clock()
        known = before
        seen = tuple[Announcement, ...]()
        if before.advertised.draining and not isinstance(event, ev.AllocatesSeen):
            # A unit leaves a list only after a fresh count of the Allocate calls in progress.
            known, seen = step(before, ev.AllocatesSeen(*self.allocator.in_flight.now(), now))
        after, announced = step(known, replace(event, at=now))
        self._state = after
        self._publish(after)
        if after.gpus.by_uuid and after.holdings.listed is not None and not after.isolation.unheard:
            self._first_look.set()
        self._keep_mode(after)
        for announcement in (*seen, *announced):
            self._announce(announcement)
        if self.kube:
            # First: an older desired state may not apply to the node that was just read.
            self.kube.desire(after)
            if isinstance(event, ev.NodeSeen):
                self.kube.observe(event.node)
        self._follow_holdings(before, after)
        with self._starting:
            if not self._stopping.is_set():
                self._serve_claims(after)
        if after is not before:
            for name, need in isolation_needs(after, self._watched_drivers).items():
                self._watched_drivers[name].desire(need)

    def _stored_pods(self) -> Pods:
        """What is known of the node's pods before the API server has shown them."""
        if not self._settings.uses_api_server:
            return Pods()  # nothing would show a decision
        stored = self._remembered
        return Pods(decided_before=stored.scheduler_seen, presumed_decided=stored.schedulers)

    def _keep_mode(self, state: State) -> None:
        if state.node.object is not None:
            # An agent that starts in mode dra looks for slices, and deletes them when it reads another mode.
            mode = Mode.DRA if state.claims.published else state.node.mode
            unsaved = self._remembered.keep(None if self._settings.mode else mode)
            if unsaved != state.node.mode_unsaved:
                self.post(ev.ModeKept(unsaved, self._clock()))

    def _publish(self, state: State) -> Snapshot:
        self._snapshot = now = snapshot(state, self._snapshot)
        if self.kube:
            self.kube.set_pods(state.pods.seen)  # first: an RPC that waits for a pod may send an Event about it at once
        self.allocator.publish(now)
        if self._settings.uses_api_server and now.scheduler_seen is not self._remembered.scheduler_seen:
            # At once, as the agent may be killed; but after the calls have the pod, as a disk may be slow.
            self._remembered.keep(schedulers=now.scheduler_seen)
        self.preparer.publish(state)
        self._device_health.publish(device_healths(state))
        unhealthy = frozenset(state.unhealthy)
        # Kubelet has to know at once of a GPU that is unhealthy now.
        is_urgent = not unhealthy <= self._unhealthy
        self._unhealthy = unhealthy
        verified = state.verified
        for name, blocks in state.advertised.lists.items():
            if self.feeds[name].publish(blocks, urgent=is_urgent, verified=name in verified):
                healthy = sum(block.count for block in blocks if block.healthy)
                devices = sum(block.count for block in blocks)
                log.info("Advertised", extra={"resource": name, "healthy": healthy, "devices": devices})
        sets = now.sets
        if sets and not sets.exact and sets is not self._working_out:
            # This takes long only for sixteen GPUs with different links; nothing else waits for it.
            self._working_out = sets
            threading.Thread(target=sets.work_out, name="best-sets", daemon=True).start()
        return now

    def _follow_holdings(self, before: State, after: State) -> None:
        waits = problems.switch(after).phase != "steady" or after.holdings.problem is not None
        self.holdings.period_s = WAITING_PERIOD_S if waits else QUIET_PERIOD_S
        if _must_read_holdings(before, after):
            self.holdings.refresh()

    def _serve_claims(self, state: State) -> None:
        """Be a DRA driver while the mode says so, and until the last claim is unprepared."""
        claims = state.claims
        serves = self._dra is not None
        shall_serve = state.node.mode is Mode.DRA or bool(claims.prepared)
        if self.kube is None or serves is shall_serve:
            waits = serves and not claims.registered and claims.registration_problem is None
            if waits and self._clock() >= self._dra_began + REGISTER_S:
                why = f"it has not asked for the driver; is {self._settings.kubelet_dir}/plugins_registry kubelet's?"
                self.post(ev.DraRegistered(why, self._clock()))
            return
        if self._dra:
            self._stop_dra()
            self.post(ev.DraStopped(self._clock()))
            return
        plugin = DraPlugin(
            self._settings.kubelet_dir,
            DraServicer(self.preparer, self._device_health, self.metrics),
            lambda problem: self.post(ev.DraRegistered(problem, self._clock())),
            lambda newer: self.post(ev.DraSuperseded(newer, self._clock())),
        )
        try:
            plugin.start()
        except OSError as err:
            plugin.stop()
            if (problem := error_words(err)) != claims.registration_problem:
                self.post(ev.DraRegistered(problem, self._clock()))
        else:
            self._dra = plugin
            self._dra_began = self._clock()
            self._claims_watch = DirectoryWatch(self._claim_files.records, self.preparer.refresh, name="claims-watch")
            self._claims_watch.start()

    def _stop_dra(self) -> None:
        if self._dra and self._claims_watch:
            self._claims_watch.stop()
            self._dra.stop()
            self._dra = None

    def _forget_claim(self, uid: str) -> None:
        with suppress(Refusal):  # it is tried again
            self.preparer.unprepare(uid)

    def _announce(self, announcement: Announcement) -> None:
        level = logging.WARNING if announcement.warning else logging.INFO
        pods = {"pods": ",".join(map(str, announcement.pods))} if announcement.pods else {}
        log.log(level, "%s", announcement.reason, extra={**pods, "text": announcement.message})
        self._send_event(announcement)

    def _send_event(self, announcement: Announcement) -> None:
        if self.kube:
            self.kube.send_event(announcement)

    def _fetch(self, pods: Collection[PodName] | None, timeout_s: float) -> frozenset[str] | None:
        return self.kube.fetch(pods, timeout_s) if self.kube else None

    # -- what the edges ask for ------------------------------------------------------------------------------------

    def _servicer_maker(self, resource: str) -> Callable[[Callable[[], None]], Servicer]:
        return lambda streams_changed: Servicer(
            resource, self.feeds[resource], self.allocator, self.metrics, streams_changed
        )

    def _wait_idle(self, timeout_s: float) -> bool:
        return self.allocator.in_flight.wait_idle(timeout_s)

    def _layer_seen(self, layer: Layer) -> None:
        self.post(ev.LayerSeen(layer, self._clock()))

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        connected = endpoint.stage is Stage.CONNECTED
        if endpoint.stage is Stage.REGISTERING:  # kubelet's calls come from now on
            self.allocator.serving(endpoint.kubelet)
            if self.kube:
                self.allocator.expect_pods()
        self.post(ev.RegistrationChanged(endpoint.resource, endpoint.problem, self._clock(), connected))
        if connected:
            self.holdings.refresh()

    def _nudge_endpoints(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.nudge()

    # -- what people and probes see ----------------------------------------------------------------------------------

    def _metric_sources(self) -> Sources:
        return Sources(
            state=lambda: self._state,
            endpoints=self._endpoint_views,
            health_watch_up=lambda: self.nvml.health_watch_up,
            samples=Sampler(self._clock).samples,
            api=self.kube is not None,
            node_name=self._settings.node_name if self._settings.compat_metrics else None,
        )

    def _endpoint_views(self) -> Mapping[str, EndpointView]:
        return {
            name: EndpointView(
                stage=endpoint.stage.value,
                registered=endpoint.stage is Stage.CONNECTED,
                registrations=endpoint.registrations,
                list_bytes=self.feeds[name].encoded_bytes,
                problem=endpoint.waits_for or endpoint.problem,
            )
            for name, endpoint in self._endpoints.items()
        }

    def unhealthy_because(self) -> str | None:
        """Why the agent should be restarted, or None."""
        silent = self._clock() - self.beat_at
        if silent > STALL_S:
            return f"the agent's loop has not turned for {silent:.0f} s"
        return self.nvml.restart_helps

    def unready_because(self) -> str | None:
        """Why the node cannot serve GPUs now, or None."""
        state = self._state
        waiting = [
            f"{n}: {e.waits_for or e.problem or e.stage.value}"
            for n, e in self._endpoints.items()
            if e.stage is not Stage.CONNECTED
        ]
        if state.node.mode is Mode.DRA and not state.claims.registered:
            waiting.append(f"{DRA_DRIVER}: {state.claims.registration_problem or 'kubelet has not registered it yet'}")
        blocking = [problem for problem in problems.problems(state) if problem.blocking]
        reasons = [problem.message for problem in blocking if problem.reason in _NO_GPU_TO_GIVE]
        reasons += waiting
        if state.holdings.listed is None:
            reasons.append(f"kubelet's pod-resources API: {state.holdings.problem or 'not read yet'}")
        if self._settings.mode is None and state.node.object is None and self._remembered.saved is None:
            reasons.append(state.node.problem or "node label not read yet")
        return "; ".join(reasons) or None

    def status(self) -> dict[str, Any]:
        """The status page: the core's report, with each resource's registration."""
        page = status_page.status(self._state)
        for name, view in self._endpoint_views().items():
            page["resources"].setdefault(name, {"healthy": 0, "unhealthy": 0}).update(
                stage=view.stage, registered=view.registered, list_bytes=view.list_bytes, problem=view.problem
            )
        return {"version": __version__, "node": self._settings.node_name, **page}

    def topology(self) -> dict[str, Any]:
        """The topology page: links, who holds what, and the best sets of what is free."""
        state = self._state
        snap = self._snapshot
        sets = snap.sets if snap and snap.sets and snap.topology is state.gpus.topology else None
        page = topology_page.page(state, sets or BestSets(state.gpus.topology.mbps))
        return {"version": __version__, "node": self._settings.node_name, **page}

    @property
    def http_port(self) -> int | None:
        return self._http.port if self._http else None


def _must_read_holdings(before: State, after: State) -> bool:
    """Whether kubelet's allocations have to be read at once, instead of at the next period."""
    if after.pods.seen is not before.pods.seen and not before.pods.living_uids <= after.pods.living_uids:
        return True  # a pod has ended, and its devices are free
    unaudited = after.advertised.unaudited
    if not unaudited <= before.advertised.unaudited:
        return True
    if unaudited and after.advertised.cleared_at != before.advertised.cleared_at:
        return True  # GPUs wait for a read that began after this moment
    is_lost = after.holdings.listed is None and before.holdings.listed is not None
    fails_first = after.holdings.problem is not None and before.holdings.problem is None
    return is_lost or fails_first
