"""Kubelet's plugin watcher: drivers that end while they register."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from standin.kubelet.dra.periods import Periods
from standin.kubelet.dra.registry import DriverRegistry
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


def test_a_driver_that_ends_while_it_is_told_of_its_registration_is_dropped_once(tmp_path):
    folder = tmp_path / "plugins_registry"
    folder.mkdir()
    registry = DriverRegistry(
        folder, ["v1.DRAPlugin"], replace(Periods(), registry=0.05), lambda _: None, lambda _: None
    )
    with EndingDriver(tmp_path) as driver:
        driver.registry = registry
        driver.socket = folder / f"{OTHER}.sock"
        registry.start()
        wait_for(lambda: registry.registrations)
        registry.stop()
    ((name, problem),) = registry.registrations
    assert name == f"{OTHER}.sock"
    assert "it has ended" in problem
    assert registry.instances(OTHER) == []
