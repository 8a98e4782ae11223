"""Hosts with stand-ins of NVIDIA's programs, and drivers on them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S
from tests.unit.isolation.mps_under_test import MpsUnderTest, running


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
