import pytest

from tests.unit.gpuscheduler.running_scheduler import Cluster
from tests.unit.kube.api.in_pod import certificate, pod, renewed

__all__ = ["certificate", "cluster", "pod", "renewed"]


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.close()
