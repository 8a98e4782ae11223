"""Controllers of the field for the tests of one file, and a control plane that each test leaves empty."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.build import bin_dir
from tests.e2e.cluster import WAIT_S
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import PODS, ControlPlane
from tests.e2e.scheduler.controllers.controller import Controller, kubernetes_controllers

Start = Callable[..., Controller]
MERGE = "application/merge-patch+json"
POD: Json = {"apiVersion": "v1", "kind": "Pod"}
_NO_FINALIZERS: Json = {"metadata": {"finalizers": None}}


@pytest.fixture(scope="module")
def start_controller(running_control_plane: ControlPlane) -> Iterator[Start]:
    """Starts a controller, beside Kubernetes' own that make pods. A file may start several."""
    kubernetes = kubernetes_controllers(running_control_plane)
    with ExitStack() as stack:
        stack.callback(kubernetes.kill)

        def start(name: str, settings: Json | None = None) -> Controller:
            files = (name, f"{name}.yaml", "helm", "kube-controller-manager")
            missing = [file for file in files if not (bin_dir() / file).exists()]
            if missing:
                pytest.fail(f"run `python tests/e2e/build.py {' '.join(missing)}` first", pytrace=False)
            controller = Controller(running_control_plane, name, settings)
            stack.callback(controller.stop)
            controller.start()
            # They come after the new kinds: the garbage collector looks for kinds twice a minute only.
            kubernetes.kill()
            kubernetes.start()
            return controller

        yield start


@pytest.fixture
def made(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Paths of objects to remove after the test, the last one first, before the control plane is cleared."""
    paths: list[str] = []
    yield paths
    for path in reversed(paths):
        control_plane.client.request("DELETE", path, {"propagationPolicy": "Background"})
    control_plane.client.request("DELETE", PODS)
    _release_pods(control_plane)
    for path in reversed(paths):
        # The next test creates others of the same names.
        collection, _, name = path.rpartition("/")
        control_plane.client.wait(collection, name, lambda found: found is None)
    _release_pods(control_plane)


def _release_pods(control_plane: ControlPlane) -> None:
    """Wait until no pod is left. A StatefulSet may make another one before the garbage collector takes it away.

    Kueue holds a pod of a group back until kubelet has ended it, and kwok takes pods away as they are.
    """
    deadline = time.monotonic() + WAIT_S
    while pods := control_plane.pods.wait(lambda _: True):
        assert time.monotonic() < deadline, f"pods are still there: {[*pods]}"
        for pod in filter(_is_held_back, pods.values()):
            control_plane.client.request("PATCH", control_plane.client.path_of(POD | pod), _NO_FINALIZERS, MERGE)
        time.sleep(0.1)


@pytest.fixture
def create(control_plane: ControlPlane, made: list[str]) -> Callable[[Iterable[Json]], None]:
    """Creates objects, which are removed after the test."""

    def create_all(manifests: Iterable[Json]) -> None:
        for manifest in manifests:
            path = control_plane.client.path_of(manifest)
            control_plane.client.expect("POST", path.rpartition("/")[0], manifest)
            made.append(path)

    return create_all


def _is_held_back(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"] and bool(pod["metadata"].get("finalizers"))
