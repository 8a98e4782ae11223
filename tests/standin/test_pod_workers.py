"""Which pods kubelet knows: those that it has admitted or rejected, until they are gone."""

import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from standin.api.objects import Objects
from standin.kubelet.dra.periods import Periods
from standin.kubelet.dra.pod_workers import PodWorkers, Runtime
from standin.kubelet.pods import Admission, Granted, Pod
from standin.waiting import PATIENCE_S

NODE = "node-1"


class RejectingKubelet:
    """Rejects each pod, and has events for what it is told."""

    def __init__(self) -> None:
        self.rejected = threading.Event()
        self.forgot = threading.Event()

    def admit(self, pod: Pod) -> Admission:
        self.rejected.set()
        return Admission(pod, {}, failed="no devices", reason="UnexpectedAdmissionError")

    def start_container(self, pod: Pod, container: str) -> Granted:
        raise AssertionError(f"{container} of a rejected pod {pod.name} was started")

    def remove(self, pod: Pod) -> None:
        assert self.rejected.is_set(), pod
        self.forgot.set()


def test_kubelet_forgets_a_pod_that_it_has_rejected_when_the_pod_is_deleted(tmp_path: Path) -> None:
    """Before 1.34, its list would show the pod for ever."""
    objects = Objects()
    kubelet = RejectingKubelet()
    claims: Any = None  # no pod gets as far
    cluster = SimpleNamespace(objects=objects, node_name=NODE)
    workers = PodWorkers(cluster, kubelet, claims, Runtime(tmp_path), Periods(), random.Random(1), every_pod=True)
    spec = {"nodeName": NODE, "containers": [{"name": "main", "image": "work"}]}
    objects.create("pods", "default", {"metadata": {"name": "pod"}, "spec": spec, "status": {"phase": "Pending"}})
    workers.start()
    try:
        assert kubelet.rejected.wait(PATIENCE_S)
        assert not kubelet.forgot.is_set()
        objects.delete(("pods", "default", "pod"))
        assert kubelet.forgot.wait(PATIENCE_S)
    finally:
        workers.stop()
