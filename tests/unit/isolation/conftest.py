"""Hosts with stand-ins of NVIDIA's programs, and drivers on them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuagent.isolation.limits import new_containers
from gpuagent.isolation.mps import ceiling_keeper, driver
from gpuagent.limits_helper import newborn_guard
from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S
from tests.unit.isolation.mps_under_test import MpsUnderTest, running
from tests.unit.isolation.node_lives import Watches


@pytest.fixture(autouse=True)
def patient_starts(monkeypatch) -> None:
    """A start waits for a slow daemon: the machine may be busy. Tests of daemons that hang set these times themselves."""
    monkeypatch.setattr(ceiling_keeper, "START_S", PATIENCE_S)
    monkeypatch.setattr(driver, "VERIFY_S", PATIENCE_S)


@pytest.fixture
def host() -> Iterator[MpsHost]:
    with MpsHost() as host:
        yield host


@pytest.fixture
def agent(host) -> Iterator[Callable[..., MpsUnderTest]]:
    """Make drivers; every one has stopped when the test is over."""
    made: list[MpsUnderTest] = []

    def make(**options: Any) -> MpsUnderTest:
        made.append(MpsUnderTest(host, **options))
        return made[-1]

    yield make
    for one in made:
        one.driver.stop()
    for thread in running():
        thread.join(PATIENCE_S)
    assert not running()


@pytest.fixture
def watches(monkeypatch) -> Watches:
    """In place of the kernel's events about cgroups."""
    made = Watches()
    for module in (new_containers, newborn_guard):
        monkeypatch.setattr(module, "CgroupWatch", made.make)
    return made
