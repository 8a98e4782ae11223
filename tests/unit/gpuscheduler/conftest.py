import pytest

from tests.unit.gpuscheduler.running_scheduler import Cluster


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.close()
