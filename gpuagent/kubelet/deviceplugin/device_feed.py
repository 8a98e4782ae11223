"""The device list of one resource, shared by every ListAndWatch stream."""

import threading
import time
from collections.abc import Iterator

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.domain.node_state.device_lists import DeviceRange
from gpuagent.domain.snapshot import ids_of, leaving_ids

MIN_GAP_S = 0.6
"""Least time between two lists on one stream: each one costs kubelet a checkpoint write with fsync."""

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"


class Feed:
    """Holds the newest list, encoded once per change; wakes the streams that have not sent it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.ranges: tuple[DeviceRange, ...] = ()
        self._message = pb.ListAndWatchResponse()
        self._version = 0
        self._urgent = 0
        self.verified = False
        self.encoded_bytes = 0

    def publish(self, blocks: tuple[DeviceRange, ...], *, urgent: bool = False, verified: bool = False) -> bool:
        """Replace the list; False if it is the same, and kubelet gets no update.

        An `urgent` list, with units that became unhealthy, is sent without the usual pause after the last one.
        `verified`: kubelet must call PreStartContainer before it starts a container with these devices.
        """
        if blocks == self.ranges:
            # Kubelet has to register the resource again, although the list is the same: see `follow`.
            if verified != self.verified:
                with self._changed:
                    self.verified = verified
                    self._version += 1
                    self._changed.notify_all()
            return False
        message = encode(blocks)
        with self._changed:
            self.verified = verified
            self.ranges = blocks
            self._message = message
            self._version += 1
            if urgent:
                self._urgent = self._version
            self.encoded_bytes = message.ByteSize()
            self._changed.notify_all()
        return True

    def follow(self, closed: threading.Event, *, verified: bool = False) -> Iterator[pb.ListAndWatchResponse]:
        """The newest list at once, then each newer one; changes in quick succession are sent as one.

        It ends where the resource must register again, because it registered with another `verified` than is needed.
        It ends only before kubelet receives the first healthy devices, or while there are none: no Allocate can be in
        progress then. While all GPUs are unhealthy from the start, containers on them can start again.
        """
        sent = -1
        not_before = 0.0
        has_healthy = False
        # Whether kubelet has received a healthy device since the list was empty for the last time.
        sent_healthy = False
        while not closed.is_set():
            with self._changed:
                self._wait_for_newer(sent, not_before, closed)
                sent = self._version
                message = self._message
                had_healthy = has_healthy
                has_healthy = any(block.healthy_units for block in self.ranges)
                sent_healthy = sent_healthy and bool(self.ranges)
                must_verify = self.verified and not verified
                if must_verify and (has_healthy or not sent_healthy):
                    return
                sent_healthy = sent_healthy or has_healthy
                may_stop_verifying = verified and not self.verified
                is_first_healthy = has_healthy and not had_healthy
                if may_stop_verifying and is_first_healthy:
                    return
            if not closed.is_set():
                not_before = time.monotonic() + MIN_GAP_S
                yield message

    def _wait_for_newer(self, sent: int, not_before: float, closed: threading.Event) -> None:
        """Wait for a list that was not sent yet, and unless it is urgent, for the end of the pause."""
        while not closed.is_set() and self._version == sent:
            self._changed.wait()
        while not closed.is_set() and self._urgent <= sent:
            left_s = not_before - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def wake(self) -> None:
        """Let every stream check whether it was closed."""
        with self._changed:
            self._changed.notify_all()


def encode(blocks: tuple[DeviceRange, ...]) -> pb.ListAndWatchResponse:
    """A device list as kubelet gets it."""
    message = pb.ListAndWatchResponse()
    for block in blocks:
        message.devices.extend(_devices(block))
    return message


def _devices(block: DeviceRange) -> Iterator[pb.Device]:
    health = HEALTHY if block.healthy else UNHEALTHY
    topology = _topology(block.gpu.numa_node)
    leaving = leaving_ids(block)
    for device_id in ids_of(block):
        of_device = UNHEALTHY if device_id in leaving else health
        yield pb.Device(ID=device_id, health=of_device, topology=topology)


def _topology(numa_node: int | None) -> pb.TopologyInfo | None:
    """The NUMA node to which kubelet may align the container; None if it is not known."""
    if numa_node is None:
        return None
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa_node)])
