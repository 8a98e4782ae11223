"""The one cluster of an end-to-end run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import build
from tests.e2e.cluster import Cluster

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark everything here, and run it only when asked for: it takes over kubelet's place on the machine."""
    wanted = "e2e" in config.getoption("-m")
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.e2e)
            if not wanted:
                item.add_marker(pytest.mark.skip(reason="end-to-end tests run with -m e2e"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Up and with a ready node; a test that stops something starts it again."""
    missing = build.missing()
    if missing:
        pytest.fail(f"run `python tests/e2e/build.py` first; missing: {', '.join(missing)}", pytrace=False)
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def agent_image(cluster: Cluster) -> str:
    """The name of the agent's image, built from this tree's Dockerfile, on the node."""
    archive = build.agent_archive()
    if not archive.exists():
        pytest.fail("the agent's image of this tree is not built: run `python tests/e2e/build.py`", pytrace=False)
    cluster.import_images(archive)
    return build.AGENT_IMAGE
