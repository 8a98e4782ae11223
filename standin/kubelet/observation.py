"""Observe the stand-in kubelet from outside, without sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from standin.kubelet.node import Amount
from standin.kubelet.state import Received, Registered, RegistrationRefused, State
from standin.waiting import PATIENCE_S


class Observation:
    """The records and amounts of a kubelet, and waiting for them to change."""

    def __init__(self, state: State) -> None:
        self._state = state

    def wait(self, predicate: Callable[[], bool], timeout: float = PATIENCE_S) -> bool:
        """Wait until the predicate holds; it is evaluated at every change of this kubelet.

        It runs with kubelet's lock held. Things outside kubelet are looked at every 50 ms.
        """
        end = time.monotonic() + timeout
        with self._state.changed:
            while not predicate():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._state.changed.wait(min(left, 0.05))
            return True

    @property
    def registrations(self) -> list[Registered]:
        """Every ``Register`` request received, in order, also those that failed."""
        with self._state.changed:
            return list(self._state.registrations)

    @property
    def refused(self) -> list[RegistrationRefused]:
        """Every registration that failed."""
        with self._state.changed:
            return list(self._state.refused)

    @property
    def crashes(self) -> list[str]:
        """Faults that would have ended a real kubelet; the stand-in continues."""
        with self._state.changed:
            return list(self._state.crashes)

    @property
    def ended(self) -> list[tuple[str, str, str]]:
        """Every stream that ended: resource, socket name, reason."""
        with self._state.changed:
            return list(self._state.ended)

    def lists(self, resource: str) -> list[Received]:
        """Every list received for the resource."""
        with self._state.changed:
            return [one for one in self._state.lists if one.resource == resource]

    def streams(self, resource: str) -> int:
        """How many ``ListAndWatch`` streams kubelet has open, leaked ones included."""
        with self._state.changed:
            return self._state.streams[resource]

    def options(self, resource: str) -> dp.DevicePluginOptions | None:
        """The options in force for the resource."""
        with self._state.changed:
            endpoint = self._state.endpoint(resource)
            return endpoint.options if endpoint is not None else None

    def capacity(self, resource: str) -> int | None:
        """The capacity that node status would have now; None while it lacks the key."""
        amount = self._state.amount(resource)
        return amount.capacity if amount is not None else None

    def allocatable(self, resource: str) -> int | None:
        """The allocatable amount that node status would have now; None while it lacks the key."""
        amount = self._state.amount(resource)
        return amount.allocatable if amount is not None else None

    def amounts(self) -> dict[str, Amount]:
        """The amounts that node status would have now."""
        return self._state.amounts()

    def node_status(self) -> dict[str, Amount]:
        """Node status as the API server has it: sampled every 10 s of the clock, keys never leave."""
        with self._state.change():
            return dict(self._state.node.sampled)

    def holders(self, resource: str) -> dict[str, set[str]]:
        """UIDs of the pods that hold each device; more than one is double allocation."""
        found: dict[str, set[str]] = {}
        with self._state.changed:
            for slot, held in self._state.devices.held.items():
                for device in held.ids if slot.resource == resource else ():
                    found.setdefault(device, set()).add(slot.uid)
        return found
