"""What unit tests of several modules need."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def impatient() -> Iterator[None]:
    """No waiting for a pod to appear in the watch: in these tests it has, or never will."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuagent.allocator.preference.PATIENCE_S", 0.0)
        patch.setattr("gpuagent.allocator.preference.GONE_PATIENCE_S", 0.0)
        patch.setattr("gpuagent.allocator.starts.BOOK_S", 0.0)
        yield
