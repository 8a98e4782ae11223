"""What unit tests of several modules need."""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def environment_is_restored() -> Iterator[None]:
    """A variable that stays changes what the tests after it see, and these depend on the process that runs them."""
    before = _variables()
    yield
    assert _variables() == before


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@pytest.fixture(scope="module")
def impatient() -> Iterator[None]:
    """No waiting for a pod to appear in the watch: in these tests it has, or never will."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuagent.allocator.requester_queries.WAIT_S", 0.0)
        patch.setattr("gpuagent.allocator.allocator.READ_S", 0.0)
        yield


@pytest.fixture
def own_logging() -> Iterator[None]:
    """For a test that runs a program in this process: the program takes over the log and the hooks for errors.

    Without this, the level and the closed streams of that log would stay for the tests that follow.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = warnings.showwarning, threading.excepthook, sys.unraisablehook, sys.excepthook
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    warnings.showwarning, threading.excepthook, sys.unraisablehook, sys.excepthook = hooks
