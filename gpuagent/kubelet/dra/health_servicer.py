"""The stream from which kubelet shows the health of devices in the status of pods."""

import threading
import time
from collections.abc import Iterator

import grpc

from gpuagent._pb import dra_health_v1alpha1_pb2 as pb
from gpuagent._pb import dra_health_v1alpha1_pb2_grpc as pb_grpc
from gpuagent.domain.dra.device_health import DeviceHealth

REPEAT_S = 5.0
"""Kubelet forgets all devices when the stream of another instance of the driver ends, until it receives the next list.
It also takes a device for unknown that was not repeated for `TIMEOUT_S`."""
TIMEOUT_S = 60
MAX_MESSAGE = 1024
_STATES = {None: pb.UNKNOWN, True: pb.HEALTHY, False: pb.UNHEALTHY}


class HealthServicer(pb_grpc.DRAResourceHealthServicer):
    """Sends the devices of `pool` on every stream: at once, after each change, and every `REPEAT_S` seconds."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._changed = threading.Condition()
        self._devices: tuple[DeviceHealth, ...] = ()
        self._streams = set[threading.Event]()

    def publish(self, devices: tuple[DeviceHealth, ...]) -> None:
        """Replace the devices."""
        if devices != self._devices:
            with self._changed:
                self._devices = devices
                self._changed.notify_all()

    def end_streams(self) -> None:
        """End every stream that is open."""
        with self._changed:
            for ended in self._streams:
                ended.set()
            self._changed.notify_all()

    def NodeWatchResources(  # noqa: N802 (gRPC name)
        self,
        request: pb.NodeWatchResourcesRequest,  # noqa: ARG002 (it is empty)
        context: grpc.ServicerContext,
    ) -> Iterator[pb.NodeWatchResourcesResponse]:
        ended = threading.Event()

        def end() -> None:
            with self._changed:
                ended.set()
                self._streams.discard(ended)
                self._changed.notify_all()

        with self._changed:
            self._streams.add(ended)
        # The call may have ended before it came here. Then nothing calls back.
        if not context.add_callback(end):
            end()
        while not ended.is_set():
            with self._changed:
                devices = self._devices
            yield self._message(devices)
            with self._changed:
                self._changed.wait_for(lambda sent=devices: ended.is_set() or self._devices is not sent, REPEAT_S)  # type: ignore[misc]

    def _message(self, devices: tuple[DeviceHealth, ...]) -> pb.NodeWatchResourcesResponse:
        now = int(time.time())
        message = pb.NodeWatchResourcesResponse()
        for device in devices:
            message.devices.add(
                device=pb.DeviceIdentifier(pool_name=self._pool, device_name=device.device),
                health=_STATES[device.healthy],
                last_updated_time=now,
                health_check_timeout_seconds=TIMEOUT_S,
                message=device.message[:MAX_MESSAGE],
            )
        return message
