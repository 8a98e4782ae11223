"""What people, probes and Prometheus see of the agent."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuagent import __version__
from gpuagent.domain.changed_memory import restart_applies
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.sharing.mode import DRA_DRIVER, Mode
from gpuagent.domain.snapshot import Snapshot
from gpuagent.domain.state import State
from gpuagent.domain.status import hour_page, problems, status_page, topology_page, usage_page
from gpuagent.domain.usage.last_hour import LastHour
from gpuagent.domain.usage.over_time import NodeUsage
from gpuagent.metrics.meter import CONTENT_TYPE, Metrics
from gpuagent.metrics.reading import EndpointView
from gpuagent.pages.http_server import HttpServer, json_page
from gpuagent.pages.status_table import render
from gpuagent.pages.web_pages import node_pages
from gpuagent.settings.settings import Settings

TEXT = "text/plain; charset=utf-8"
STALL_S = 30.0
"""The agent should be restarted if its loop has not run for so long."""
_NO_GPU_TO_GIVE = frozenset(
    {"DriverUnavailable", "GPUUnreadable", "NoUsableGPU", "MemoryUnitTooLarge", "DeviceListTooLarge"}
)
"""Problems that, while they block, mean that no GPU of the node can be given to a container."""


class Reports:
    """Pages and probes, made from the state at the moment of each request.

    Args:
        settings: of the agent.
        state: the agent's state now.
        snapshot: the last one that was published.
        endpoints: registrations by resource.
        silent_s: for how long the loop has taken no event.
        restart_helps: why a restart would bring the GPUs back; None if it would not.
        has_stored_mode: whether the state directory has the mode of the node.
        usage: what containers have held and used.
        last_hour: of the GPUs that were held in it.
        clock: monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        settings: Settings,
        *,
        state: Callable[[], State],
        snapshot: Callable[[], Snapshot | None],
        endpoints: Callable[[], Mapping[str, EndpointView]],
        silent_s: Callable[[], float],
        restart_helps: Callable[[], str | None],
        has_stored_mode: Callable[[], bool],
        usage: Callable[[], NodeUsage],
        last_hour: Callable[[], LastHour],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._state = state
        self._snapshot = snapshot
        self._endpoints = endpoints
        self._silent_s = silent_s
        self._restart_helps = restart_helps
        self._has_stored_mode = has_stored_mode
        self._usage = usage
        self._last_hour = last_hour
        self._clock = clock

    def http_server(self, address: tuple[str, int], metrics: Metrics) -> HttpServer:
        """The server of all pages and probes, not started yet. Raises OSError if the address is taken."""
        return HttpServer(
            address,
            pages={
                **node_pages(),
                "/metrics": lambda: (CONTENT_TYPE, metrics.page()),
                "/status": json_page(self.status),
                "/topology": json_page(self.topology),
                "/hour": json_page(self.hour),
                "/table": lambda: (TEXT, f"{render(self.status())}\n".encode()),
            },
            probes={"/healthz": self.unhealthy_because, "/readyz": self.unready_because},
        )

    def unhealthy_because(self) -> str | None:
        """Why the agent should be restarted, or None."""
        silent_s = self._silent_s()
        if silent_s > STALL_S:
            return f"the agent's loop has not turned for {silent_s:.0f} s"
        return self._restart_helps() or restart_applies(self._state())

    def unready_because(self) -> str | None:
        """Why the node cannot serve GPUs now, or None."""
        return "; ".join(self._unready()) or None

    def _unready(self) -> Iterator[str]:
        state = self._state()
        # First, because without a GPU to give it matters less what is not registered.
        for problem in problems.problems(state):
            if problem.blocking and problem.reason in _NO_GPU_TO_GIVE:
                yield problem.message
        yield from self._unregistered(state)
        if state.holdings.listed is None:
            yield f"kubelet's pod-resources API: {state.holdings.problem or 'not read yet'}"
        knows_mode = self._settings.mode is not None or state.node.object is not None or self._has_stored_mode()
        if not knows_mode:
            yield state.node.problem or "node label not read yet"

    def _unregistered(self, state: State) -> Iterator[str]:
        """The resources, and the driver for claims, that kubelet has not registered, each with its problem."""
        for resource, view in self._endpoints().items():
            if not view.registered:
                yield f"{resource}: {view.problem or view.stage}"
        claims = state.claims
        if state.node.mode is Mode.DRA and not claims.registered:
            yield f"{DRA_DRIVER}: {claims.registration_problem or 'kubelet has not registered it yet'}"

    def status(self) -> dict[str, Any]:
        """The status page: the core's report, with each resource's registration."""
        page = status_page.status(self._state())
        for resource, view in self._endpoints().items():
            entry = page["resources"].setdefault(resource, {"healthy": 0, "unhealthy": 0})
            entry["stage"] = view.stage
            entry["registered"] = view.registered
            entry["list_bytes"] = view.list_bytes
            entry["problem"] = view.problem
        page["usage"] = usage_page.usage(self._usage(), self._clock())
        return self._with_heading(page)

    def topology(self) -> dict[str, Any]:
        """The topology page: links, who holds what, and the best sets of what is free."""
        state = self._state()
        links = state.gpus.topology
        snapshot = self._snapshot()
        sets = None
        if snapshot and snapshot.topology is links:
            # To work out the sets again may take seconds on a large node.
            sets = snapshot.sets
        return self._with_heading(topology_page.page(state, sets or BestSets(links.mbps)))

    def hour(self) -> dict[str, Any]:
        """The page of the last hour: the use of each GPU, minute by minute."""
        return self._with_heading(hour_page.hour_page(self._last_hour(), self._clock()))

    def _with_heading(self, page: dict[str, Any]) -> dict[str, Any]:
        return {"version": __version__, "node": self._settings.node_name, **page}
