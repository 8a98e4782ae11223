"""The device-plugin API: a socket and a list of devices for each resource, from start to stop."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gpuagent.agent.start_gate import StartGate
from gpuagent.allocator.allocator import Allocator
from gpuagent.domain import events as ev
from gpuagent.kubelet.deviceplugin.device_feed import Feed
from gpuagent.kubelet.deviceplugin.endpoint import Endpoint, Stage, sweep
from gpuagent.kubelet.deviceplugin.servicer import Servicer
from gpuagent.metrics.meter import Metrics
from gpuagent.metrics.reading import EndpointView
from gpuagent.system.inotify import DirectoryWatch

log = logging.getLogger(__name__)

FIRST_LIST_WAIT_S = 0.3
"""How long registration waits for the first reads of the driver and of kubelet's allocations.

The first device list is then complete.
"""
END_S = 1.5
"""How long each endpoint may take to end."""


class DevicePlugins:
    """Keeps every resource registered with kubelet.

    Args:
        resources: names of all resources.
        directory: kubelet's folder of device plugins.
        allocator: answers the calls.
        metrics: counts them.
        waits_for_pods: whether calls wait for the API server's list of pods.
        read_holdings: has kubelet's allocations read.
        post: takes an event at once.
        clock: monotonic seconds.
        gate: closed when the agent stops.

    Attributes:
        feeds: device lists by resource.
        first_reads: set when the first device lists are complete.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        *,
        resources: Collection[str],
        directory: Path,
        allocator: Allocator,
        metrics: Metrics,
        waits_for_pods: bool,
        read_holdings: Callable[[], None],
        post: Callable[[ev.Event], None],
        clock: Callable[[], float],
        gate: StartGate,
    ) -> None:
        self.feeds = {resource: Feed() for resource in resources}
        self.first_reads = threading.Event()
        self._directory = directory
        self._allocator = allocator
        self._metrics = metrics
        self._waits_for_pods = waits_for_pods
        self._read_holdings = read_holdings
        self._post = post
        self._clock = clock
        self._gate = gate
        self._endpoints = {
            resource: Endpoint(resource, directory, self._servicer_maker(resource), self._endpoint_changed)
            for resource in resources
        }
        self._directory_watch = DirectoryWatch(directory, self._nudge)
        self._thread = threading.Thread(target=self._start_endpoints, name="start", daemon=True)

    def start(self) -> None:
        """Register when the first lists are complete, or a moment later."""
        self._thread.start()

    def stop(self) -> None:
        """End streams and sockets. No empty list is sent: running pods and amounts stay as they are."""
        self._directory_watch.stop()
        for endpoint in self._endpoints.values():
            endpoint.begin_stop()
        for endpoint in self._endpoints.values():
            endpoint.join(END_S)

    def views(self) -> Mapping[str, EndpointView]:
        """The registrations by resource."""
        return {resource: self._view(endpoint) for resource, endpoint in self._endpoints.items()}

    def _view(self, endpoint: Endpoint) -> EndpointView:
        return EndpointView(
            stage=endpoint.stage.value,
            registered=endpoint.stage is Stage.CONNECTED,
            registrations=endpoint.registrations,
            list_bytes=self.feeds[endpoint.resource].encoded_bytes,
            problem=endpoint.waits_for or endpoint.problem,
        )

    def _start_endpoints(self) -> None:
        # Before any endpoint starts, so that no socket of this run is taken for one of a former run.
        for path in sweep(self._directory):
            log.info("Removed a socket of a former run", extra={"path": str(path)})
        self.first_reads.wait(FIRST_LIST_WAIT_S)
        with self._gate.passing() as may_start:
            if not may_start:
                return
            for endpoint in self._endpoints.values():
                endpoint.start()
            self._directory_watch.start()

    def _servicer_maker(self, resource: str) -> Callable[[Callable[[], None]], Servicer]:
        def make(streams_changed: Callable[[], None]) -> Servicer:
            return Servicer(resource, self.feeds[resource], self._allocator, self._metrics, streams_changed)

        return make

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        is_connected = endpoint.stage is Stage.CONNECTED
        if endpoint.stage is Stage.REGISTERING:
            # Kubelet's calls come from now on.
            self._allocator.serving(endpoint.kubelet)
            if self._waits_for_pods:
                self._allocator.expect_pods()
        self._post(ev.RegistrationChanged(endpoint.resource, endpoint.problem, self._clock(), is_connected))
        if is_connected:
            self._read_holdings()

    def _nudge(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.nudge()
