"""Volumes that are on some nodes only. kube-scheduler alone knows them, and the scheduler learns it from its calls."""

from collections.abc import Callable, Iterable, Iterator

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.controllers.controller import kubernetes_controllers
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.pods import job, why
from tests.e2e.scheduler.replica import Replica

_NODES = [f"node-{number}" for number in range(4)]
_CLASS = "local"
_VOLUMES = "/api/v1/persistentvolumes"
_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
_MERGE = "application/merge-patch+json"


@pytest.fixture
def volumes(control_plane: ControlPlane) -> Iterator[list[str]]:
    """One on each node, and two claims for any of them. Yields the names of the claims.

    A claim gets its volume when kube-scheduler has chosen the node of its pod.
    """
    client = control_plane.client
    binder = kubernetes_controllers(control_plane, ["persistentvolume-binder"])
    binder.start()
    client.apply(_storage_class())
    client.create_all(_VOLUMES, map(_volume, _NODES))
    claims = [f"data-{number}" for number in range(2)]
    client.create_all(_CLAIMS, map(_claim, claims))
    yield claims
    control_plane.clear_pods()
    _remove(control_plane, _CLAIMS)
    _remove(control_plane, _VOLUMES)
    client.request("DELETE", client.path_of(_storage_class()))
    binder.kill()


def test_a_pod_gets_another_node_if_its_volume_is_taken_on_the_planned_one(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    volumes: list[str],
) -> None:
    """Two pods of 4 GPUs are planned on one node, which has one volume. The other pods fill a node each."""
    allocations = make_allocations(map(whole_node, _NODES))
    make_replica("a")
    failures = _FailedPlans(allocations)
    control_plane.pods.listen(failures)
    small, large = (job("job", 4, {GPU_WHOLE: gpus}) for gpus in (4, 8))
    members = [*small[:2], *large[2:]]
    for member, claim in zip(members, volumes, strict=False):
        source = {"persistentVolumeClaim": {"claimName": claim}}
        member["spec"]["volumes"] = [{"name": "data", **source}]
    control_plane.add_pods(members)
    pods = control_plane.pods.wait(
        lambda pods: len(pods) == 4 and all("nodeName" in pod["spec"] for pod in pods.values())
    )
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == {*_NODES}
    assert allocations.problems() == []
    # A plan that breaks as a whole says so.
    assert failures.reasons == []


class _FailedPlans:
    """A listener of the watch of pods, in front of the audit.

    Attributes:
        reasons: of pods that waited because the plan of their job broke.
    """

    def __init__(self, audit: Allocations) -> None:
        self.reasons: list[str] = []
        self._audit = audit

    def seen(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        reason = why({name: pod}, name)
        if "its last plan failed" in reason:
            self.reasons.append(f"{name}: {reason}")
        self._audit.seen(pod)

    def gone(self, uid: str) -> None:
        self._audit.gone(uid)


def _storage_class() -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": _CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(node: str) -> Json:
    """A disk of a node."""
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"disk-of-{node}"},
        "spec": {
            "storageClassName": _CLASS,
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        },
    }


def _claim(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": _CLASS,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "100Gi"}},
        },
    }


def _remove(control_plane: ControlPlane, path: str) -> None:
    """Remove all objects of a collection. No controller that protects volumes in use runs here."""
    client = control_plane.client
    for found in client.expect("GET", path)["items"]:
        name = found["metadata"]["name"]
        client.request("DELETE", f"{path}/{name}")
        client.request("PATCH", f"{path}/{name}", {"metadata": {"finalizers": None}}, _MERGE)
