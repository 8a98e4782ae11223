"""The state that the parts of the stand-in kubelet share, under one lock."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from standin.kubelet import checkpoint
from standin.kubelet.devices import Devices
from standin.kubelet.node import Amount, Endpoint, NodeStatus, current
from standin.kubelet.personality import Personality


@dataclass(frozen=True, slots=True)
class Registered:
    """One ``Register`` request as it arrived, also when it was refused later. Time is ``time.monotonic()``."""

    resource: str
    endpoint: str
    version: str
    options: dp.DevicePluginOptions
    socket_existed: bool
    time: float


@dataclass(frozen=True, slots=True)
class RegistrationRefused:
    """One registration that failed; up to 1.24 this happens after ``Register`` returned."""

    resource: str
    endpoint: str
    text: str
    time: float


@dataclass(frozen=True, slots=True)
class Received:
    """One list. ``asked`` is when ``ListAndWatch`` was called; times are ``time.monotonic()``."""

    resource: str
    endpoint: str
    message: dp.ListAndWatchResponse
    size: int
    asked: float
    time: float

    @property
    def health(self) -> dict[str, str]:
        """Health text by device id."""
        return {device.ID: device.health for device in self.message.devices}


@dataclass(slots=True)
class Hooks:
    """Misbehaviour of the registry, to be set by tests at any time.

    Attributes:
        delay_s: time spent inside ``Register`` after the options were asked for.
        never_answer: ``Register`` hangs until the caller gives up.
        refuse: ``Register`` fails with this text.
    """

    delay_s: float = 0.0
    never_answer: bool = False
    refuse: str = ""


class State:
    """Tables and records; everything is read and written with ``changed`` held."""

    def __init__(
        self,
        directory: Path,
        personality: Personality,
        rng: random.Random,
        clock: Callable[[], float],
        double_allocation: bool,
    ) -> None:
        self.directory = directory
        self.personality = personality
        self.rng = rng
        self.clock = clock
        self.changed = threading.Condition(threading.RLock())
        self.stopping = threading.Event()
        self.hooks = Hooks()
        self.registrations: list[Registered] = []
        self.refused: list[RegistrationRefused] = []
        self.lists: list[Received] = []
        self.crashes: list[str] = []
        self.ended: list[tuple[str, str, str]] = []
        self.streams: Counter[str] = Counter()
        self._double_allocation = double_allocation
        self.node = NodeStatus(clock())
        self.devices = Devices(rng)
        self.endpoints: dict[str, list[Endpoint]] = {}

    def begin(self) -> None:
        """Start as a new kubelet process does: from the checkpoint. Node status is the API server's and stays."""
        with self.change():
            self.stopping.clear()
            self.streams.clear()
            self.devices = Devices(
                self.rng,
                double_allocation=self._double_allocation,
                checks_health=self.personality.checks_health,
            )
            held, resources = checkpoint.read(self.directory)
            self.devices.restore(held, resources)
            self.endpoints = {
                resource: [Endpoint("", None, dp.DevicePluginOptions(), self.clock())] for resource in resources
            }

    @contextmanager
    def change(self) -> Iterator[None]:
        """Hold the lock for a change, then notify all waiting threads."""
        with self.changed:
            self.node.catch_up(self.clock(), self.devices, self.endpoints)
            yield
            self.changed.notify_all()

    def endpoint(self, resource: str) -> Endpoint | None:
        """The plugin in use for a resource."""
        return current(self.endpoints, resource)

    def amount(self, resource: str) -> Amount | None:
        """Its amount in `amounts`; None while the node lacks the key."""
        return self.amounts().get(resource)

    def amounts(self) -> dict[str, Amount]:
        """The amounts that a node-status run at this moment would write."""
        with self.changed:
            now = self.clock()
            self.node.catch_up(now, self.devices, self.endpoints)
            self.node.run(now, self.devices, self.endpoints)
            return dict(self.node.current)

    def receive(self, resource: str, endpoint: str, message: dp.ListAndWatchResponse, asked: float) -> None:
        """Take a list, whichever of the resource's streams it came on."""
        self.lists.append(Received(resource, endpoint, message, message.ByteSize(), asked, time.monotonic()))
        self.devices.replace(resource, message.devices)
        self.save()

    def end(self, resource: str, endpoint: str, reason: str) -> None:
        """A stream ended; noted together with what follows from it, so that who waits sees both."""
        self.streams[resource] -= 1
        self.ended.append((resource, endpoint, reason))

    def save(self) -> None:
        """Write the checkpoint, unless this kubelet is going down."""
        if not self.stopping.is_set():
            checkpoint.write(self.directory, self.devices, by_numa=self.personality.checkpoint_by_numa)

    def crash(self, text: str) -> None:
        """Note what would have ended a real kubelet."""
        self.crashes.append(f"kubelet would have crashed: {text}")

    def refuse(self, resource: str, endpoint: str, text: str) -> None:
        """Note a failed registration."""
        with self.change():
            self.refused.append(RegistrationRefused(resource, endpoint, text, time.monotonic()))
