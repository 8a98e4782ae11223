"""One resource's DevicePlugin service: protobuf to domain and back. No other module uses gRPC codes."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn, Protocol, TypeVar

import grpc

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent._pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from gpuagent.allocator.allocator import Allocator
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import Grant
from gpuagent.kubelet.deviceplugin.device_feed import Feed

log = logging.getLogger(__name__)
A = TypeVar("A")

MAX_STREAMS = 12
"""Open lists per socket. Each occupies one of the server's 16 workers until it ends.

Beyond this the newest is refused: the oldest is kubelet's own, and kubelet drops the whole plugin when that one ends.
"""

_METHODS = ("GetPreferredAllocation", "Allocate", "PreStartContainer")

_CODES = {
    Reason.EMPTY_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.UNKNOWN_DEVICE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.MIXED_RESOURCES: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.NOT_READY: grpc.StatusCode.UNAVAILABLE,
    Reason.UNKNOWN_POD: grpc.StatusCode.UNAVAILABLE,
    Reason.ISOLATION: grpc.StatusCode.UNAVAILABLE,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}


class Meter(Protocol):
    """Counts the calls of the service."""

    def timer(self, method: str, resource: str) -> Callable[[float], None]:
        """Takes the seconds of each call that was answered or refused."""

    def refused(self, method: str, resource: str, reason: Reason) -> None:
        """One call was refused."""


class Servicer(pb_grpc.DevicePluginServicer):
    """Serves one resource on one socket; `streams_changed` is called when a list stream opens or ends."""

    def __init__(
        self,
        resource: str,
        feed: Feed,
        allocator: Allocator,
        meter: Meter,
        streams_changed: Callable[[], None],
    ) -> None:
        self._resource = resource
        self._feed = feed
        # Kubelet reads the options only when the resource registers. `Feed.follow` ends the stream when they change.
        self._verified = feed.verified
        self.options = pb.DevicePluginOptions(
            pre_start_required=self._verified, get_preferred_allocation_available=True
        )
        self._allocator = allocator
        self._meter = meter
        self._timers = {method: meter.timer(method, resource) for method in _METHODS}
        self._streams_changed = streams_changed
        self._streams: list[threading.Event] = []
        self._kubelets: threading.Event | None = None
        self._lock = threading.Lock()
        self._closing = False

    @property
    def followed(self) -> bool:
        """Whether the stream that opened first is open: kubelet's own, as only kubelet receives a new socket's path."""
        return self._kubelets in self._streams

    def close_streams(self) -> None:
        """End every list stream, and each that would still open."""
        with self._lock:
            self._closing = True
            for closed in self._streams:
                closed.set()
        self._feed.wake()

    def GetDevicePluginOptions(  # noqa: N802 (gRPC name)
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.DevicePluginOptions:
        return self.options

    def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        closed = threading.Event()

        def close() -> None:
            closed.set()
            self._feed.wake()

        with self._lock:
            has_ended = not context.add_callback(close)
            if self._closing or has_ended:
                return
            # Each stream holds a thread of the pool that answers Allocate, too.
            is_full = len(self._streams) >= MAX_STREAMS
            if not is_full:
                self._streams.append(closed)
                self._kubelets = self._kubelets or closed
        if is_full:
            log.warning("Refused a list stream, as there are too many", extra={"resource": self._resource})
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} lists are open on this socket")
        self._streams_changed()
        try:
            yield from self._feed.follow(closed, verified=self._verified)
        finally:
            with self._lock:
                self._streams.remove(closed)
            self._streams_changed()

    def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        def preferred() -> pb.PreferredAllocationResponse:
            answer = pb.PreferredAllocationResponse()
            # Kubelet asks for one container at a time. The API allows several.
            for asked in request.container_requests:
                chosen = self._allocator.prefer(
                    self._resource,
                    frozenset(asked.available_deviceIDs),
                    frozenset(asked.must_include_deviceIDs),
                    asked.allocation_size,
                )
                answer.container_responses.add(deviceIDs=chosen)
            return answer

        return self._answer("GetPreferredAllocation", context, preferred)

    def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        def allocated() -> pb.AllocateResponse:
            if not request.container_requests:
                # An empty answer would leave kubelet's reservation in place forever.
                text = f"{self._resource}: the request names no container"
                raise Refusal(Reason.EMPTY_REQUEST, text)
            answer = pb.AllocateResponse()
            for asked in request.container_requests:
                share = self._allocator.allocate(self._resource, frozenset(asked.devices_ids))
                _add_container(answer, share)
            return answer

        return self._answer("Allocate", context, allocated)

    def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        def started() -> pb.PreStartContainerResponse:
            self._allocator.prestart(self._resource, frozenset(request.devices_ids))
            return pb.PreStartContainerResponse()

        return self._answer("PreStartContainer", context, started)

    def _answer(self, method: str, context: grpc.ServicerContext, work: Callable[[], A]) -> A:
        began = time.perf_counter()
        try:
            return work()
        except Refusal as refusal:
            self._refuse(method, context, refusal)
        except Exception as err:
            log.exception("Failed to answer a call", extra={"method": method, "resource": self._resource})
            self._refuse(method, context, Refusal(Reason.INTERNAL, f"{self._resource}: the GPU agent failed: {err}"))
        finally:
            self._timers[method](time.perf_counter() - began)

    def _refuse(self, method: str, context: grpc.ServicerContext, refusal: Refusal) -> NoReturn:
        self._meter.refused(method, self._resource, refusal.reason)
        self._allocator.report(refusal)
        fields = {"method": method, "reason": refusal.reason.value, "text": refusal.message}
        log.warning("Refused call", extra=fields)
        code = _CODES.get(refusal.reason, grpc.StatusCode.FAILED_PRECONDITION)
        context.abort(code, refusal.message)


def _add_container(answer: pb.AllocateResponse, share: Grant) -> None:
    answer.container_responses.add(
        envs=share.env,
        mounts=[
            pb.Mount(host_path=m.host_path, container_path=m.container_path, read_only=m.read_only)
            for m in share.mounts
        ],
        devices=[pb.DeviceSpec(host_path=n, container_path=n, permissions="rw") for n in share.device_nodes],
        annotations=share.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in share.cdi_names],
    )
