"""Writes what the stand-in kubelet counts to the Node, as kubelet's node status does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from standin.kubelet.node import Amount
from standin.kubelet.observation import Observation

LOOK_S = 1.0


class StatusReporter:
    """A thread that writes the amounts when they change; a real kubelet writes them every 10 s.

    Args:
        kubelet: whose amounts.
        write: merges into the status of the Node, such as `ApiServer.patch_node_status`.
    """

    def __init__(self, kubelet: Observation, write: Callable[[dict[str, Any]], object]) -> None:
        self._kubelet, self._write = kubelet, write
        self._written: dict[str, Amount] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node-status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._kubelet.wait(self._has_changed, LOOK_S)
            amounts = self._kubelet.amounts()
            if amounts != self._written:
                self._written = amounts
                capacity = {name: str(one.capacity) for name, one in amounts.items()}
                allocatable = {name: str(one.allocatable) for name, one in amounts.items()}
                self._write({"capacity": capacity, "allocatable": allocatable})

    def _has_changed(self) -> bool:
        return self._stopping.is_set() or self._kubelet.amounts() != self._written
