"""What unit tests of several modules need."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def impatient() -> Iterator[None]:
    """No waiting for a pod to appear in the watch: in these tests it has, or never will."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuagent.allocator.preferred_allocation.WAIT_S", 0.0)
        patch.setattr("gpuagent.allocator.allocator.READ_S", 0.0)
        yield
