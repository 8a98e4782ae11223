"""Pods of Deployments are moved through the Eviction API, so that one that waits has room on a GPU."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import pytest

from gpuagent.domain.sharing.mode import GPU_MEM
from tests.e2e.build import bin_dir
from tests.e2e.cluster import WAIT_S
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import EVENTS, ControlPlane
from tests.e2e.scheduler.controllers.controller import kubernetes_controllers
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import share_node
from tests.e2e.scheduler.pods import pod
from tests.e2e.scheduler.replica import Replica

FLAGS = ("--defragment-moves", "2", "--defragment-after", "1", "--defragment-pause", "1")
EVICTIONS = 'gpuscheduler_evictions_total{cause="defragmentation",result="evicted"}'
Result = TypeVar("Result")
Create = Callable[[Json], Json]


@pytest.fixture(scope="module")
def controllers(running_control_plane: ControlPlane) -> Iterator[None]:
    """Those that make pods of Deployments, and that say how many a PodDisruptionBudget allows to evict."""
    if not (bin_dir() / "kube-controller-manager").exists():
        pytest.fail("run `python tests/e2e/build.py kube-controller-manager` first", pytrace=False)
    names = ("deployment", "replicaset", "disruption", "garbage-collector")
    process = kubernetes_controllers(running_control_plane, names)
    process.start()
    yield
    process.kill()


@pytest.fixture
def create(control_plane: ControlPlane) -> Iterator[Create]:
    """Creates an object, which is removed after the test, with its pods."""
    paths: list[str] = []

    def create_one(manifest: Json) -> Json:
        path = control_plane.client.path_of(manifest)
        made = control_plane.client.expect("POST", path.rpartition("/")[0], manifest)
        paths.append(path)
        return made

    yield create_one
    for path in reversed(paths):
        control_plane.client.request("DELETE", path, {"propagationPolicy": "Foreground"})
        collection, _, name = path.rpartition("/")
        control_plane.client.wait(collection, name, lambda found: found is None)


class Halves(NamedTuple):
    """A pod of a Deployment is alone on the GPU of one node, and also fits on the GPU of the other one.

    Attributes:
        replica: of the scheduler.
        allocations: of the GPUs.
        name: of the pod.
        at: where it is.
        elsewhere: the other node, where a pod is that cannot be moved.
    """

    replica: Replica
    allocations: Allocations
    name: str
    at: str
    elsewhere: str


@pytest.fixture
def halves(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    create: Create,
    controllers: None,
) -> Halves:
    names = ["node-0", "node-1"]
    allocations = make_allocations(share_node(name, gpus=1, units=40) for name in names)
    replica = make_replica("a", *FLAGS)
    create(deployment("web", {GPU_MEM: 15, "cpu": "100m"}))
    pods = control_plane.pods.wait(lambda pods: any(_nodes_of(pods, "web")))
    [(name, found)] = pods.items()
    at = found["spec"]["nodeName"]
    [elsewhere] = {*names} - {at}
    # Without a controller, it cannot be moved.
    control_plane.add_pods([pod("fixed", {GPU_MEM: 25}, nodeSelector={"kubernetes.io/hostname": elsewhere})])
    control_plane.pods.wait(lambda pods: _node(pods, "fixed") == elsewhere)
    return Halves(replica, allocations, name, at, elsewhere)


def deployment(name: str, limits: Mapping[str, int | str]) -> Json:
    """One pod."""
    made = pod(name, limits, labels={"app": name}, restartPolicy="Always")
    template = {"metadata": {"labels": {"app": name}}, "spec": made["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def test_a_pod_that_waits_starts_after_another_has_moved(
    control_plane: ControlPlane,
    halves: Halves,
) -> None:
    """kube-scheduler does not even ask about the pod, because no node has enough in all."""
    created_at = time.monotonic()
    control_plane.add_pods([pod("large", {GPU_MEM: 40, "cpu": "100m"})])
    control_plane.pods.wait(lambda pods: _node(pods, "large") == halves.at)
    control_plane.pods.wait(lambda pods: _nodes_of(pods, "web") == [halves.elsewhere])
    print(f"the waiting pod and the moved one were bound {time.monotonic() - created_at:.1f} s after the former came")
    assert halves.allocations.problems() == []
    until(lambda: halves.replica.metric('gpuscheduler_defragmentations_total{outcome="done"}') == 1)
    assert halves.replica.metric(EVICTIONS) == 1
    # Events are sent one after the other, and later than what they tell of.
    until(lambda: {("large", "Defragmenting"), (halves.name, "EvictedToDefragment")} <= _events(control_plane))


def test_a_budget_that_allows_no_eviction_keeps_the_pod_where_it_is(
    control_plane: ControlPlane,
    halves: Halves,
    create: Create,
) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }
    create(budget)
    budgets = control_plane.client.path_of(budget).rpartition("/")[0]
    control_plane.client.wait(budgets, "web", _counts_one_pod)
    control_plane.add_pods([pod("large", {GPU_MEM: 40, "cpu": "100m"})])
    # The page searches as the scheduler itself does. Either may see the pod before it sees the budget.
    until(lambda: _waits_without_plan(halves.replica, "default/large"))
    before = control_plane.pods.wait(lambda _: True)
    assert _nodes_of(before, "web") == [halves.at]
    assert halves.replica.metric(EVICTIONS) == 0
    # With the budget gone, the same pod is moved.
    control_plane.client.expect("DELETE", f"{budgets}/web")
    control_plane.pods.wait(lambda pods: _node(pods, "large") == halves.at)
    assert halves.allocations.problems() == []


def _counts_one_pod(budget: Json | None) -> bool:
    status = (budget or {}).get("status", {})
    return bool(status.get("currentHealthy") == 1 and status.get("disruptionsAllowed") == 0)


def _node(pods: Mapping[str, Json], name: str) -> str:
    node: str = pods.get(name, {"spec": {}})["spec"].get("nodeName", "")
    return node


def _nodes_of(pods: Mapping[str, Json], app: str) -> list[str]:
    """Nodes of the running pods of a Deployment."""
    running = [found for found in pods.values() if found["metadata"].get("labels", {}).get("app") == app]
    return [found["spec"].get("nodeName", "") for found in running if "deletionTimestamp" not in found["metadata"]]


def _waits_without_plan(replica: Replica, name: str) -> bool:
    page = json.loads(replica.page("/defragment"))
    return [waiting["plan"] for waiting in page["waiting"] if waiting["pod"] == name] == [None]


def _events(control_plane: ControlPlane) -> set[tuple[str, str]]:
    """Pod and reason of each Event."""
    events = control_plane.client.expect("GET", EVENTS)["items"]
    return {(event["involvedObject"]["name"], event["reason"]) for event in events}


def until(condition: Callable[[], Result]) -> Result:
    """Ask until the condition holds; its value."""
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.1)
    return found
