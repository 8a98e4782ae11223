"""Pods that belong together by an object of another project, or of Kubernetes itself."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.dra_objects import (
    CLAIMS,
    SLICES,
    WHOLE,
    claim,
    claiming_pod,
    classes,
    create_claims,
    node_slice,
    remove,
)
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import node, whole_node
from tests.e2e.scheduler.pods import pod, why
from tests.e2e.scheduler.replica import Replica

_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"},
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "names": {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
_PODS = "/api/v1/namespaces/default/pods"
_NATIVE = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
_GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
_CALLS_A_SECOND = 10.0
"""A group that waits must not keep kube-scheduler busy. Measured over `_QUIET_S`."""
_QUIET_S = 10.0


def _member(name: str, group: str, gpus: int) -> Json:
    return pod(name, {GPU_WHOLE: gpus}, labels={"scheduling.x-k8s.io/pod-group": group})


def _group(name: str, minimum: int) -> Json:
    metadata = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {"minMember": minimum},
    }


def _bound(pods: Mapping[str, Json]) -> set[str]:
    return {name for name, found in pods.items() if "nodeName" in found["spec"]}


def test_a_pod_group_that_is_installed_later_starts_whole(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
) -> None:
    allocations = make_allocations([whole_node("node-0"), whole_node("node-1")])
    make_replica("a")
    control_plane.add_pods(_member(name, "ring", 8) for name in ("a", "b"))
    expected = "PodGroup ring: the cluster has no objects podgroups.scheduling.x-k8s.io"
    control_plane.pods.wait(lambda pods: all(expected in why(pods, name) for name in ("a", "b")))
    control_plane.client.apply(_CRD)
    try:
        expected = "PodGroup ring: its object has not been seen"
        control_plane.pods.wait(lambda pods: any(expected in why(pods, name) for name in ("a", "b")))
        assert _bound(control_plane.pods.wait(lambda _: True)) == set()
        control_plane.client.apply(_group("ring", 2))
        control_plane.pods.wait(lambda pods: _bound(pods) == {"a", "b"})
    finally:
        control_plane.client.request("DELETE", f"{_CRDS}/podgroups.scheduling.x-k8s.io")
    assert allocations.problems() == []


@pytest.fixture(scope="module")
def plane_with_gates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with Kubernetes' own pod groups, which are off by default."""
    flags = (_GATES, "--runtime-config=scheduling.k8s.io/v1alpha2=true")
    with ControlPlane(tmp_path_factory.mktemp("gates"), flags) as running:
        yield running


@pytest.fixture
def native_replica(plane_with_gates: ControlPlane) -> Iterator[Replica]:
    with ExitStack() as stack:
        replica = Replica(plane_with_gates, "a", scheduler_flags=[_GATES])
        stack.callback(plane_with_gates.clear)
        stack.callback(replica.stop)
        replica.start()
        yield replica


def _native_group(name: str, minimum: int) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}},
    }


def _native_member(name: str, group: str, gpus: int) -> Json:
    made = pod(name, {GPU_WHOLE: gpus})
    made["spec"]["schedulingGroup"] = {"podGroupName": group}
    return made


def _calls(replica: Replica) -> float:
    """How often kube-scheduler has asked to filter."""
    lines = replica.page("/metrics").splitlines()
    counts = [
        line for line in lines if line.startswith("gpuscheduler_call_duration_seconds_count") and "filter" in line
    ]
    return sum(float(line.rpartition(" ")[2]) for line in counts)


def test_native_pod_groups_start_whole_and_cost_few_calls(
    plane_with_gates: ControlPlane,
    native_replica: Replica,
) -> None:
    """Two groups of two nodes each, and three nodes: one waits, and others are placed meanwhile."""
    plane_with_gates.add_nodes(whole_node(f"node-{n}") for n in range(3))
    for group in ("red", "blue"):
        plane_with_gates.client.apply(_native_group(group, 2))
    plane_with_gates.add_pods(_native_member(f"{group}-{n}", group, 8) for group in ("red", "blue") for n in range(2))
    found = plane_with_gates.pods.wait(lambda pods: len(_bound(pods)) == 2)
    assert len({name.partition("-")[0] for name in _bound(found)}) == 1
    before = _calls(native_replica)
    began = time.monotonic()
    time.sleep(_QUIET_S)
    rate = (_calls(native_replica) - before) / (time.monotonic() - began)
    assert rate < _CALLS_A_SECOND
    plane_with_gates.add_pods([pod("single", {GPU_WHOLE: 8})])
    plane_with_gates.pods.wait(lambda pods: "single" in _bound(pods))
    plane_with_gates.add_nodes([whole_node("node-3"), whole_node("node-4")])
    plane_with_gates.pods.wait(lambda pods: len(_bound(pods)) == 5)


@pytest.fixture
def dra_plane(plane_with_gates: ControlPlane) -> Iterator[ControlPlane]:
    """Three nodes of eight GPUs in mode `dra`, and two pod groups."""
    client = plane_with_gates.client
    for device_class in classes():
        client.apply(device_class)
    for group in ("red", "blue"):
        client.apply(_native_group(group, 2))
    _add_dra_nodes(plane_with_gates, "dra-0", "dra-1", "dra-2")
    yield plane_with_gates
    plane_with_gates.clear_pods()
    remove(client)


def test_native_pod_groups_with_claims_start_whole_and_hold_nothing_while_they_wait(
    dra_plane: ControlPlane, native_replica: Replica
) -> None:
    """Two groups of two nodes each, and three nodes. kube-scheduler alone does this."""
    names = [f"{group}-{number}" for number in range(2) for group in ("red", "blue")]
    create_claims(dra_plane.client, [claim(name, WHOLE, count=8) for name in names])
    members = [claiming_pod(name) for name in names]
    for member in members:
        group = member["metadata"]["name"].partition("-")[0]
        member["spec"]["schedulingGroup"] = {"podGroupName": group}
    dra_plane.add_pods(members)
    found = dra_plane.pods.wait(lambda pods: len(_bound(pods)) == 2)
    started = _bound(found)
    assert len({name.partition("-")[0] for name in started}) == 1
    waiting = set(names) - started
    dra_plane.pods.wait(lambda pods: all(why(pods, name) for name in waiting))
    assert _allocated(dra_plane) == started
    _add_dra_nodes(dra_plane, "dra-3")
    dra_plane.pods.wait(lambda pods: _bound(pods) == set(names))


def _add_dra_nodes(plane: ControlPlane, *names: str) -> None:
    plane.add_nodes([node(name, [], {}) for name in names])
    plane.client.create_all(SLICES, map(node_slice, names))


def _allocated(plane: ControlPlane) -> set[str]:
    """Names of the claims that have devices."""
    claims = plane.client.expect("GET", CLAIMS)["items"]
    return {found["metadata"]["name"] for found in claims if found.get("status", {}).get("allocation")}
