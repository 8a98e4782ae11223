"""The pages about operators that cannot run here: their commands, and then pods as the operators make them."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest

from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.controllers.controller import CRD, define_kinds, remove_kinds
from tests.e2e.scheduler.controllers.page import run_page
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.pods import why
from tests.e2e.scheduler.replica import Replica

_PODS = "/api/v1/namespaces/default/pods"
_KUBEFLOW_LABEL = "training.kubeflow.org/job-name"
_KINDS = {
    "PyTorchJob": ("kubeflow.org", "v1", "pytorchjobs"),
    "MPIJob": ("kubeflow.org", "v2beta1", "mpijobs"),
    "RayCluster": ("ray.io", "v1", "rayclusters"),
}


@pytest.fixture
def kinds(control_plane: ControlPlane) -> Iterator[None]:
    """The kinds of the operators, with any content. Other tests have an API server without them."""
    definitions = [_definition(kind, *names) for kind, names in _KINDS.items()]
    define_kinds(control_plane, definitions)
    yield
    remove_kinds(control_plane, definitions)


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("kind", ["PyTorchJob", "MPIJob"])
def test_a_job_of_the_page_about_kubeflow_starts_whole(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    made: list[str],
    kind: str,
) -> None:
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(4))
    make_replica("a")
    run_page(control_plane, "pytorchjob.md", made)
    group, version, plural = _KINDS[kind]
    name = {"PyTorchJob": "llama", "MPIJob": "allreduce"}[kind]
    job = control_plane.client.expect("GET", f"/apis/{group}/{version}/namespaces/default/{plural}/{name}")
    specs = job["spec"]["pytorchReplicaSpecs" if kind == "PyTorchJob" else "mpiReplicaSpecs"]
    pods = [
        _pod(job, f"{role.lower()}-{number}", spec["template"], {_KUBEFLOW_LABEL: name})
        for role, spec in specs.items()
        for number in range(spec["replicas"])
    ]
    _start_whole(control_plane, pods, allocations)


@pytest.mark.usefixtures("kinds")
def test_the_workers_of_the_page_about_ray_start_whole(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    made: list[str],
) -> None:
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(4))
    make_replica("a")
    run_page(control_plane, "ray.md", made)
    cluster = control_plane.client.expect("GET", "/apis/ray.io/v1/namespaces/default/rayclusters/tune")
    labels = {"ray.io/cluster": "tune", "ray.io/is-ray-node": "yes"}
    pods = [_pod(cluster, "head", cluster["spec"]["headGroupSpec"]["template"], labels)]
    for group in cluster["spec"]["workerGroupSpecs"]:
        of_group = labels | {"ray.io/group": group["groupName"]}
        pods += [_pod(cluster, f"worker-{number}", group["template"], of_group) for number in range(group["replicas"])]
    _start_whole(control_plane, pods, allocations)


def _start_whole(control_plane: ControlPlane, pods: Iterable[Json], allocations: Allocations) -> None:
    """Create the pods, the last one when the others wait for it. All that ask for GPUs are bound then."""
    *first, last = pods
    with_gpus = {pod["metadata"]["name"] for pod in [*first, last] if _asks_for_gpus(pod)}
    for pod in first:
        control_plane.client.expect("POST", _PODS, pod)
    waiting = with_gpus - {last["metadata"]["name"]}
    control_plane.pods.wait(lambda pods: all("of 4 pods are there" in why(pods, name) for name in waiting))
    control_plane.client.expect("POST", _PODS, last)
    control_plane.pods.wait(lambda pods: with_gpus <= _bound(pods))
    assert allocations.problems() == []


def _pod(owner: Json, name: str, template: Json, labels: Mapping[str, str]) -> Json:
    """A pod of the template, as an operator makes it for its object."""
    of_owner = owner["metadata"]
    of_template = template.get("metadata", {})
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": of_owner["name"],
        "uid": of_owner["uid"],
        "controller": True,
    }
    metadata = of_template | {
        "name": f"{of_owner['name']}-{name}",
        "labels": of_template.get("labels", {}) | labels,
        "ownerReferences": [reference],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _asks_for_gpus(pod: Json) -> bool:
    return any("resources" in container for container in pod["spec"]["containers"])


def _bound(pods: Mapping[str, Json]) -> set[str]:
    return {name for name, found in pods.items() if "nodeName" in found["spec"]}


def _definition(kind: str, group: str, version: str, plural: str) -> Json:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": CRD,
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }
