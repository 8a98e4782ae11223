"""The scheduler as the chart installs it: both containers as a real pod, from the real image."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION, MEMORY_ANNOTATION
from tests.e2e.agent.conftest import Node
from tests.e2e.chart.kube_scheduler_image import kube_scheduler_archive
from tests.e2e.cluster import Cluster, pod_manifest

MEM = "aliyun.com/gpu-mem"
REPOSITORY, TAG = "gpuagent.test/kube-scheduler", "v1.36.3"
DEPLOYMENTS = "/apis/apps/v1/namespaces/kube-system/deployments"


@pytest.fixture
def kube_scheduler(cluster: Cluster, tmp_path: Path) -> None:
    cluster.import_images(kube_scheduler_archive(tmp_path, f"{REPOSITORY}:{TAG}"))


@pytest.mark.usefixtures("kube_scheduler")
def test_its_pod_becomes_ready_and_places_pods(installed: Callable[..., Node]) -> None:
    image = {"repository": REPOSITORY, "tag": TAG}
    node = installed("share", scheduler={"enabled": True, "replicas": 1, "kubeScheduler": image})
    node.wait_amounts(mem=640)
    release: Any = node.agent
    release.give_host_network("scheduler", "deployments", "gpu-scheduler")

    def ready(found: dict[str, Any] | None) -> bool:
        return bool((found or {}).get("status", {}).get("readyReplicas") == 1)

    try:
        node.cluster.client.wait(DEPLOYMENTS, "gpu-scheduler", ready)
    except TimeoutError as err:
        err.add_note(json.dumps([pod["status"] for pod in release.pods("scheduler")])[:6000])
        raise
    manifest = pod_manifest("placed", {MEM: 10})
    manifest["spec"]["schedulerName"] = "gpu-scheduler"
    found = node.run(manifest)
    notes = found["metadata"]["annotations"]
    assert notes[DECIDED_ANNOTATION] == found["metadata"]["uid"]
    (gpus,) = json.loads(notes[MEMORY_ANNOTATION]).values()
    assert node.cluster.exec_env("placed")["ALIYUN_COM_GPU_MEM_IDX"] == ",".join(gpus)
