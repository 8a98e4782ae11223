"""Which pods kubelet knows: those that it has admitted or rejected, until they are gone."""

import random
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from standin.api.objects import Json, Objects
from standin.kubelet.dra.periods import Periods
from standin.kubelet.dra.pod_workers import PodWorkers, Runtime
from standin.kubelet.pods import Admission, Granted, Pod, merge
from standin.waiting import PATIENCE_S

NODE = "node-1"


class RejectingKubelet:
    """Rejects each pod, and has events for what it is told."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.forgot = threading.Event()

    def admit(self, pod: Pod) -> Admission:
        self.is_over.set()
        return Admission(pod, {}, failed="no devices", reason="UnexpectedAdmissionError")

    def start_container(self, pod: Pod, container: str) -> Granted:
        raise AssertionError(f"{container} of a rejected pod {pod.name} was started")

    def terminate(self, pod: Pod) -> None:
        raise AssertionError(f"{pod.name} was rejected, and has ended")

    def remove(self, pod: Pod) -> None:
        assert self.is_over.is_set(), pod
        self.forgot.set()


class StartingKubelet(RejectingKubelet):
    """Admits each pod."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Event()

    def admit(self, pod: Pod) -> Admission:
        return Admission(pod, {})

    def start_container(self, pod: Pod, container: str) -> Granted:
        self.started.set()
        return merge([])

    def terminate(self, pod: Pod) -> None:
        self.is_over.set()


class NoClaims:
    """Has nothing to prepare."""

    def prepare(self, pod: Json) -> None:
        pass

    def unprepare(self, uid: str, namespace: str, names: Collection[str]) -> None:
        pass

    def cdi_names(self, pod: Json, container: Json) -> list[str]:
        return []

    def healths(self, pod: Json, container: Json) -> list[Json]:
        return []


def test_kubelet_forgets_a_pod_that_it_has_rejected_when_the_pod_is_deleted(tmp_path: Path) -> None:
    """Before 1.34, its list would show the pod for ever."""
    objects = Objects()
    kubelet = RejectingKubelet()
    create_pod(objects)
    with pods_run(objects, kubelet, Runtime(tmp_path)):
        assert kubelet.is_over.wait(PATIENCE_S)
        assert not kubelet.forgot.is_set()
        objects.delete(("pods", "default", "pod"))
        assert kubelet.forgot.wait(PATIENCE_S)


def test_kubelet_forgets_a_pod_that_has_ended_when_the_pod_is_deleted(tmp_path: Path) -> None:
    """Up to 1.33, its list shows the pod until then."""
    objects = Objects()
    kubelet = StartingKubelet()
    runtime = Runtime(tmp_path)
    uid = create_pod(objects)
    with pods_run(objects, kubelet, runtime) as workers:
        assert kubelet.started.wait(PATIENCE_S)
        runtime.exited.add(uid)
        workers.wake([uid])
        assert kubelet.is_over.wait(PATIENCE_S)
        assert not kubelet.forgot.is_set()
        objects.delete(("pods", "default", "pod"))
        assert kubelet.forgot.wait(PATIENCE_S)


def create_pod(objects: Objects) -> str:
    """Create a pod of this node; its UID."""
    spec = {"nodeName": NODE, "containers": [{"name": "main", "image": "work"}]}
    body = {"metadata": {"name": "pod"}, "spec": spec, "status": {"phase": "Pending"}}
    uid: str = objects.create("pods", "default", body)["metadata"]["uid"]
    return uid


@contextmanager
def pods_run(objects: Objects, kubelet: RejectingKubelet, runtime: Runtime) -> Iterator[PodWorkers]:
    """A node's pods run with this kubelet."""
    cluster = SimpleNamespace(objects=objects, node_name=NODE)
    workers = PodWorkers(cluster, kubelet, NoClaims(), runtime, Periods(), random.Random(1), every_pod=True)
    workers.start()
    try:
        yield workers
    finally:
        workers.stop()
