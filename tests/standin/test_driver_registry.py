"""Kubelet's plugin watcher: drivers that end while they register."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from standin.kubelet.dra.periods import Periods
from standin.kubelet.dra.registry import DriverRegistry
from standin.waiting import PATIENCE_S
from tests.contract.harness import wait_for
from tests.contract.other_driver import OTHER, OtherDriver


class EndingDriver(OtherDriver):
    """Its socket goes when it is told that it is registered, and the call fails only after kubelet has seen that."""

    registry: DriverRegistry
    socket: Path

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self.socket.unlink()
        wait_for(lambda: not self.registry.instances(OTHER))
        context.abort(grpc.StatusCode.UNAVAILABLE, "it has ended")


def test_a_driver_that_ends_while_it_is_told_of_its_registration_is_dropped_once():
    # The path of a socket has to be short.
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "plugins_registry"
        folder.mkdir()
        periods = replace(Periods(), registry=0.05, info=PATIENCE_S, notify=PATIENCE_S)
        registry = DriverRegistry(folder, ["v1.DRAPlugin"], periods, lambda _: None, lambda _: None)
        with EndingDriver(folder.parent) as driver:
            driver.registry = registry
            driver.socket = folder / f"{OTHER}.sock"
            registry.start()
            wait_for(lambda: any("it has ended" in problem for _, problem in registry.registrations))
            registry.stop()
        assert registry.instances(OTHER) == []
