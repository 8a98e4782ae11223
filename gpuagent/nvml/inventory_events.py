"""The events about the driver that were posted, so that each change is posted once and the last event is true."""

import threading
from collections.abc import Callable

from gpuagent.domain.events import DriverUnavailable, Event, InventoryRead
from gpuagent.domain.gpus.gpu import Inventory


class InventoryEvents:
    """Posts InventoryRead and DriverUnavailable; used by several threads.

    Args:
        post: takes an event at once, without blocking.
        clock: monotonic seconds.
    """

    def __init__(self, post: Callable[[Event], None], clock: Callable[[], float]) -> None:
        self._post = post
        self._clock = clock
        self._lock = threading.Lock()
        self._inventory: Inventory | None = None
        self._problem: str | None = None
        self.hangs: Callable[[], bool] = lambda: False
        """Whether the driver hangs at this moment: then an unchanged inventory does not end the problem."""

    @property
    def inventory(self) -> Inventory | None:
        """The inventory that was posted last."""
        return self._inventory

    @property
    def problem(self) -> str | None:
        """The reason of the current DriverUnavailable; None after an InventoryRead."""
        return self._problem

    def read(self, inventory: Inventory) -> bool:
        """Post `inventory` if it is new or ends a problem. Returns whether it was posted."""
        # Posted with the lock held, so that the events come in the order of the decisions.
        with self._lock:
            if inventory == self._inventory and (self._problem is None or self.hangs()):
                return False
            self._inventory = inventory
            self._problem = None
            self._post(InventoryRead(inventory, self._clock()))
            return True

    def unavailable(self, reason: str) -> bool:
        """Post that the driver cannot be used, unless the last post had the same reason. Returns whether it posted."""
        with self._lock:
            if reason == self._problem:
                return False
            self._problem = reason
            self._post(DriverUnavailable(reason, self._clock()))
            return True
