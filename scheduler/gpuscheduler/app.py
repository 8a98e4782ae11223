"""The composition root: wires the edges to the core, in one process on one event loop."""

import asyncio
import logging
import math
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress

from gpuagent.domain.fleet.agent_pods import AgentPods
from gpuagent.kube.api.access import access
from gpuagent.pages.http_server import HttpServer, listen
from gpuagent.settings.table import ConfigError
from gpuscheduler import metrics as families
from gpuscheduler.cluster_api.agent_reader import AgentReader
from gpuscheduler.cluster_api.claim_events import ClaimEvents
from gpuscheduler.cluster_api.connection import Connection, decoded
from gpuscheduler.cluster_api.evictions import Evictions
from gpuscheduler.cluster_api.lease import Lease
from gpuscheduler.cluster_api.list_watch import ListWatch, ObjectFollower
from gpuscheduler.cluster_api.optional_kind import KindFollower, OptionalKind
from gpuscheduler.cluster_api.placeholder_pods import PlaceholderPods
from gpuscheduler.cluster_api.writes import Change, Writes
from gpuscheduler.core.calls import Nominate
from gpuscheduler.core.claims.claim_jobs import ClaimJobs
from gpuscheduler.core.claims.claim_nodes import ClaimNodes
from gpuscheduler.core.defragment.course import Outcome
from gpuscheduler.core.defragment.defragmentation import DefragmentLimits
from gpuscheduler.core.explain.claim_waits import ClaimWaits
from gpuscheduler.core.gangs.kinds import SERVED_AS, ObjectKind, ServedAs
from gpuscheduler.core.jobs.job import JobState
from gpuscheduler.core.jobs.jobs import JobLimits
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import named
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.placeholders import PLACEHOLDER_SCHEDULER, Placeholder, scale_up_report
from gpuscheduler.extender.caller_tls import TlsError, TlsFiles, caller_tls
from gpuscheduler.extender.routes import Routes
from gpuscheduler.extender.server import BACKLOG, CallServer
from gpuscheduler.followers import (
    CONFIG_MAPS,
    BudgetFollower,
    ClaimFollower,
    ConfigMapFollower,
    GangFollower,
    NodeFollower,
    PodFollower,
    SliceFollower,
)
from gpuscheduler.metrics import SchedulerMetrics, Values
from gpuscheduler.pages.defragment_page import defragment_page
from gpuscheduler.pages.fleet_page import FleetPages
from gpuscheduler.pages.heartbeat import Heartbeat
from gpuscheduler.pages.namespace_use import NamespaceUse
from gpuscheduler.pages.node_view import Cluster
from gpuscheduler.pages.paced_reading import PacedReading, RecentReading
from gpuscheduler.pages.page_server import page_server
from gpuscheduler.pages.usage_page import usage_page
from gpuscheduler.scheduler_settings import SchedulerSettings
from gpuscheduler.service import Service

log = logging.getLogger(__name__)

NEEDED = ("nodes", "pods")
"""Without them no call is answered."""
KINDS_S = 5.0
"""Longest wait for the objects that group pods before pods are read. The webhook of a custom resource may be away."""
SLICES = ServedAs("resource.k8s.io", ("v1",), "resourceslices")
CLAIMS = ServedAs("resource.k8s.io", ("v1",), "resourceclaims")
BUDGETS = ServedAs("policy", ("v1", "v1beta1"), "poddisruptionbudgets")
GAP_S = 2.0
"""How long the API server may not be followed until calls are no longer answered: Bindings may be unseen."""


class App:
    """The scheduler. Create it on the running event loop.

    Raises ConfigError of the settings, or of the access to the API server.

    Args:
        settings: of the command line.
        when_ready: called once, when calls are answered.

    Attributes:
        ready: set once calls are answered.
    """

    def __init__(self, settings: SchedulerSettings, when_ready: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._when_ready = when_ready
        self._access = access(str(settings.kubeconfig) if settings.kubeconfig else None)
        self._tls = _tls(settings)
        self._listener = _listener(settings.listen)
        mix = Mix()
        self._core = Scheduling(
            named(settings.policy, mix),
            mix,
            settings.scheduler_name,
            job_limits=JobLimits(settings.job_patience or 0.0, settings.job_evict_broken or 0.0),
            defragment=DefragmentLimits(
                settings.defragment_moves or 0,
                settings.defragment_after,
                settings.defragment_pause,
            ),
        )
        claims_mix = Mix()
        self._claims = ClaimNodes(named(settings.policy, claims_mix), claims_mix)
        self._claim_waits = ClaimWaits(self._tells_of_claims)
        self._follows: dict[str, ListWatch] = {}
        self._kinds: dict[ObjectKind, OptionalKind] = {}
        self._optional: dict[str, OptionalKind] = {}
        self.ready = asyncio.Event()
        self._leading = asyncio.Event()
        self._value_reading = PacedReading(self._values)
        self._usage_reading = PacedReading(lambda: usage_page(self._core))
        cluster = _cluster(self._core)
        self._agents = AgentPods(settings.agent_namespace)
        self._agent_reader = AgentReader()
        self._namespace_use = NamespaceUse(cluster, self._agents, self._agent_reader.uses)
        self._use_reading = PacedReading(self._namespace_use.page)
        fleet_pages = FleetPages(cluster, settings.problems_url, self._agents)
        self._fleet_reading = PacedReading(fleet_pages.fleet)
        self._pods_reading = PacedReading(fleet_pages.pods)
        self._moves_reading = PacedReading(lambda: defragment_page(self._core.defragmentation))
        self._metrics = SchedulerMetrics(self._value_reading.get)
        self._heartbeat = Heartbeat()
        self._pages = self._page_server(settings.http_address) if settings.http_address else None
        self._stop = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it listens for kube-scheduler's calls."""
        return _address(*self._listener.getsockname()[:2])

    @property
    def pages(self) -> str:
        """Where it listens for readers of pages and probes; ``off`` if nowhere."""
        return _address(self._pages.host, self._pages.port) if self._pages else "off"

    def stop(self) -> None:
        """Finish the calls in progress, then end `run`."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until `stop`. Raises ConfigError."""
        host = socket.gethostname()
        lease = Lease(self._settings.lease, host, self._leading) if self._settings.lease else None
        write_s = lease.write_s if lease else lambda: math.inf
        read_lease = lease.read_again if lease else _nothing_to_read
        async with Connection(self._access, self._metrics.api_answered, write_s) as connection, self._agent_reader:
            writes = Writes(
                connection,
                host,
                self._leading,
                read_lease,
                self._is_wanted,
                self._metrics.written,
            )
            evictions = Evictions(connection, self._leading, read_lease, self._metrics.evicted)
            service = self._service(writes, evictions, lease)
            claim_events = ClaimEvents(
                connection,
                self._claim_waits,
                lambda: self._core.usage.pods.sites,
                self._leading,
                writes.add,
            )
            placeholder_pods = self._placeholder_pods(connection, writes)
            work = self._follow_all(connection, service)
            work += [writes.run(), service.tick(), self._sync(service)]
            work += [self._heartbeat.run(), *self._read_pages(), claim_events.run()]
            if placeholder_pods:
                work.append(placeholder_pods.run())
            if lease:
                work.append(lease.run(connection))
            else:
                self._leading.set()
            await self._serve(service, work)
        if self._pages:
            self._pages.stop()

    def _service(self, writes: Writes, evictions: Evictions, lease: Lease | None) -> Service:
        """What answers kube-scheduler's calls."""
        return Service(
            core=self._core,
            claims=self._claims,
            claim_jobs=ClaimJobs(self._claims, self._core.scheduler_names),
            writes=writes,
            evictions=evictions,
            problem=self._problem,
            not_leading=lease.problem if lease else lambda: "",
            read_lease=lease.read_again if lease else _nothing_to_read,
            term=lambda: lease.term if lease else 0,
            lagged=self._metrics.watch_lagged,
        )

    def _follow_all(self, connection: Connection, service: Service) -> list[Coroutine[None, None, None]]:
        """Follow every kind of object that the cluster may have."""
        nodes = NodeFollower(service)
        self._follow("nodes", connection, "/api/v1/nodes", nodes)
        pods = PodFollower(service, self._claim_waits, self._agents)
        # It decodes as much of a pod as it needs.
        self._follow("pods", connection, "/api/v1/pods", pods, read=bytes)
        path = f"/api/v1/namespaces/{CONFIG_MAPS}/configmaps"
        self._follow("configmaps", connection, path, ConfigMapFollower(nodes))
        for kind in ObjectKind:
            self._follow_kind(kind, connection, service)
        work = [self._follow_in_turn(resource) for resource in self._follows]
        work += [follow.run() for follow in self._kinds.values()]
        if self._core.defragmentation.is_on:
            budgets = self._follow_optional("PodDisruptionBudget", BUDGETS, connection, BudgetFollower(service))
            work.append(budgets.run())
        work += self._follow_claims(connection)
        return work

    def _read_pages(self) -> Iterator[Coroutine[None, None, None]]:
        """Keep what the pages show up to date."""
        yield self._value_reading.run()
        yield self._usage_reading.run()
        yield self._fleet_reading.run()
        yield self._pods_reading.run()
        yield self._use_reading.run()
        yield self._namespace_use.run()
        yield self._moves_reading.run()

    async def _serve(self, service: Service, work: Iterable[Coroutine[None, None, None]]) -> None:
        """Answer calls until `stop`, beside other work, which then ends."""
        server = CallServer(Routes(service, self._metrics), self._listener, self._tls)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
            serving = group.create_task(server.run(self._stop))
            if self._pages:
                self._pages.start()
            callers = "with a client certificate" if self._tls else "any"
            log.info("Listening", extra={"address": self.address, "callers": callers, "pages": self.pages})
            await self._stop.wait()
            # Bind calls that wait for other pods of a job would hold up the end.
            service.stop()
            await serving
            for task in tasks:
                task.cancel()

    def _tells_of_claims(self, scheduler: str) -> bool:
        """Whether pods with claims that name this scheduler are told why they wait.

        No other part tells those of the stock scheduler. Without devices of ours, none of them waits for some.
        """
        is_of_another = scheduler != PLACEHOLDER_SCHEDULER and self._claims.has_devices
        return is_of_another or self._core.scheduler_names.include(scheduler)

    def _placeholder_pods(self, connection: Connection, writes: Writes) -> PlaceholderPods | None:
        """What has an autoscaler add nodes, if it is wanted."""
        namespace = self._settings.placeholder_namespace
        if not namespace:
            return None

        def created(placeholder: Placeholder, name: str) -> None:
            writes.add(scale_up_report(placeholder, f"{namespace}/{name}"))

        return PlaceholderPods(
            connection=connection,
            namespace=namespace,
            core=self._core,
            leading=self._leading,
            is_current=lambda: not self._problem(),
            created=created,
            written=self._metrics.written,
        )

    def _follow(
        self,
        resource: str,
        connection: Connection,
        path: str,
        follower: ObjectFollower,
        read: Callable[[bytes], object] = decoded,
    ) -> None:
        self._follows[resource] = ListWatch(
            connection,
            path,
            follower,
            lambda: self._metrics.watch_failed(resource),
            read=read,
        )

    def _follow_kind(
        self,
        kind: ObjectKind,
        connection: Connection,
        service: Service,
    ) -> None:
        served_as = SERVED_AS[kind]
        name = _resource_name(kind)
        self._kinds[kind] = OptionalKind(
            connection,
            kind,
            served_as,
            GangFollower(kind, service),
            lambda: self._metrics.watch_failed(name),
        )

    def _follow_claims(self, connection: Connection) -> Iterator[Coroutine[None, None, None]]:
        """Follow the devices of nodes, and from the first one on also claims: most clusters have neither."""
        slice_follower = SliceFollower(self._claims)
        slices = self._follow_optional("ResourceSlice", SLICES, connection, slice_follower)
        claims = self._follow_optional("ResourceClaim", CLAIMS, connection, ClaimFollower(self._claims))

        async def follow() -> None:
            await slice_follower.found.wait()
            await claims.run()

        yield slices.run()
        yield follow()

    def _follow_optional(
        self,
        kind: str,
        served_as: ServedAs,
        connection: Connection,
        follower: KindFollower,
    ) -> OptionalKind:
        name = _name_of(served_as)
        follow = OptionalKind(connection, kind, served_as, follower, lambda: self._metrics.watch_failed(name))
        self._optional[name] = follow
        return follow

    async def _follow_in_turn(self, resource: str) -> None:
        """Follow objects. Pods come after the objects that say which of them belong together."""
        if resource == "pods":
            with suppress(TimeoutError):
                async with asyncio.timeout(KINDS_S):
                    for kind in self._kinds.values():
                        await kind.tried.wait()
        await self._follows[resource].run()

    async def _sync(self, service: Service) -> None:
        """Have calls answered once all nodes and pods were seen. ConfigMaps only make better choices."""
        for resource, follow in self._follows.items():
            is_read = follow.listed if resource in NEEDED else follow.tried
            await is_read.wait()
        service.synced()
        self.ready.set()
        nodes = len(self._core.usage.nodes)
        log.info("Ready", extra={"nodes": nodes, "pods": len(self._core.pods)})
        self._when_ready()

    def _problem(self) -> str:
        """Why calls cannot be answered now; empty if they can."""
        if not self.ready.is_set():
            return "the scheduler's extender has not read all nodes and pods yet"
        now = time.monotonic()
        for resource in NEEDED:
            lost_at = self._follows[resource].lost_at
            if lost_at is not None and now - lost_at >= GAP_S:
                return f"the scheduler's extender has not followed {resource} for {now - lost_at:.0f} s"
        return ""

    def _is_wanted(self, change: Change) -> bool:
        """Whether a change to a pod is still of use: the pod waits, and what was decided for it stands."""
        pod = self._core.pods.get(change.uid)
        is_waiting = pod is not None and not pod.node
        return is_waiting and (not isinstance(change, Nominate) or self._core.wants(change))

    def _page_server(self, address: tuple[str, int]) -> HttpServer:
        try:
            return page_server(
                address,
                metrics=self._metrics.page,
                usage=self._usage_reading.get,
                fleet=RecentReading(self._fleet_reading.get).get,
                pods=RecentReading(self._pods_reading.get).get,
                use=RecentReading(self._use_reading.get).get,
                defragment=self._moves_reading.get,
                alive=self._heartbeat.problem,
                problem=self._problem,
            )
        except OSError as err:
            self._listener.close()
            raise _cannot_listen("http-address", address, err) from err

    async def _values(self) -> Values:
        core = self._core
        jobs = core.jobs.states()
        bound = sum(bool(pod.node) for pod in core.pods.values())
        pods = {
            "bound": bound,
            "waiting": len(core.pods) - bound,
        }
        # Also the states that no job has, because an alert cannot rely on a series that comes and goes.
        jobs_by_state = {state.value: jobs[state] for state in JobState}
        up = {name: follow.lost_at is None for name, follow in self._follows.items()}
        optional = {_resource_name(kind): follow for kind, follow in self._kinds.items()} | self._optional
        for name, follow in optional.items():
            is_up = follow.is_up
            if is_up is not None:
                up[name] = is_up
        ended = core.defragmentation.ended
        defragmentations = {outcome.value: ended[outcome] for outcome in Outcome}
        fragmented = core.fragmented_bytes(time.monotonic())
        return {
            families.READY: _value(not self._problem()),
            families.LEADING: _value(self._leading.is_set()),
            families.NODES: _value(len(core.usage.nodes)),
            families.PODS: _by_label(pods),
            families.RESERVATIONS: _value(len(core.reservations)),
            families.JOBS: _by_label(jobs_by_state),
            families.FRAGMENTED: _value(fragmented),
            families.DEFRAGMENTATIONS: _by_label(defragmentations),
            families.AGENT_REFUSALS: _value(core.refusals.total()),
            families.WATCH: _by_label(up),
        }


def _cluster(core: Scheduling) -> Cluster:
    """What the pages show of the cluster."""
    return Cluster(core.usage.nodes, core.readings, core.pods, core.reservations, core.others)


def _resource_name(kind: ObjectKind) -> str:
    return _name_of(SERVED_AS[kind])


def _name_of(served_as: ServedAs) -> str:
    """The resource with its group, which two kinds have in common without it."""
    return f"{served_as.resource}.{served_as.group}"


async def _nothing_to_read() -> None:
    """Without a lease, every call is answered."""


def _value(value: float) -> dict[tuple[str, ...], float]:
    """A family without labels."""
    return {(): float(value)}


def _by_label(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """A family with one label."""
    return {(label,): float(value) for label, value in values.items()}


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listener(address: tuple[str, int]) -> socket.socket:
    try:
        return listen(address, BACKLOG)
    except OSError as err:
        raise _cannot_listen("listen", address, err) from err


def _tls(settings: SchedulerSettings) -> ssl.SSLContext | None:
    """For the port of calls; None for plain HTTP. Raises ConfigError."""
    given = {
        "--tls-cert-file": settings.tls_cert_file,
        "--tls-private-key-file": settings.tls_private_key_file,
        "--client-ca-file": settings.client_ca_file,
    }
    files = [path for path in given.values() if path is not None]
    if not files:
        return None
    if len(files) < len(given):
        missing = ", ".join(name for name, path in given.items() if path is None)
        raise ConfigError(f"{', '.join(given)} go together: also set {missing}, or none of them")
    try:
        return caller_tls(TlsFiles(*files))
    except TlsError as err:
        raise ConfigError(str(err)) from err


def _cannot_listen(
    setting: str,
    address: tuple[str, int],
    err: OSError,
) -> ConfigError:
    host, port = address
    why = err.strerror
    return ConfigError(f"cannot listen on --{setting} {host}:{port}: {why}")
