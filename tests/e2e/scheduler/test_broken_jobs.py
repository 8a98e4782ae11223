"""A running job that loses a pod: the others are evicted by the API server, as far as budgets allow it."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import EVENTS, PODS, ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.pods import job
from tests.e2e.scheduler.replica import Replica

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
EVICT_S = 3
_HASTY = """
from gpuscheduler import __main__
from gpuscheduler.core.jobs import broken_jobs
broken_jobs.BROKEN_S = 1.0
__main__.main()
"""
"""The extender, which says after a second instead of a minute that a job is broken."""
IN_TIME_S = 45
"""The time for a pod that comes again before that: this test, kwok and kube-scheduler may be slow meanwhile."""


@pytest.fixture
def allocations(make_allocations: Callable[[Iterable[Json]], Allocations]) -> Iterator[Allocations]:
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(2))
    yield allocations
    assert allocations.problems() == []


@pytest.fixture
def replica(make_replica: Callable[..., Replica], allocations: Allocations) -> Replica:
    return make_replica("a", "--job-evict-broken", str(EVICT_S))


@pytest.fixture
def budget(control_plane: ControlPlane) -> Iterator[Callable[[int], None]]:
    """Sets how many pods of the job may be evicted. No controller runs here that would work it out."""
    path = f"{BUDGETS}/job"
    client = control_plane.client

    def allow(pods: int) -> None:
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"gpu-topology": "job"}}}
        body: Json = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "job"}}
        client.apply(body | {"spec": spec})
        generation = client.expect("GET", path)["metadata"]["generation"]
        status = {"disruptionsAllowed": pods, "currentHealthy": 3, "desiredHealthy": 3 - pods, "expectedPods": 3}
        status["observedGeneration"] = generation
        client.expect("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")

    yield allow
    client.request("DELETE", path)


def _start(control_plane: ControlPlane) -> None:
    control_plane.add_pods(job("job", 3, {GPU_WHOLE: 4}))
    control_plane.pods.wait(lambda pods: len(_running(pods)) == 3)


def _running(pods: Mapping[str, Json]) -> list[str]:
    return [name for name, pod in pods.items() if pod["status"].get("phase") == "Running"]


def _metric(replica: Replica, result: str) -> float:
    return replica.metric(f'gpuscheduler_evictions_total{{cause="broken-job",result="{result}"}}')


def _said(control_plane: ControlPlane, reason: str) -> dict[str, str]:
    """The pods that an Event with this reason is about, with its message."""
    items = control_plane.client.expect("GET", EVENTS)["items"]
    return {event["involvedObject"]["name"]: event["message"] for event in items if event["reason"] == reason}


def test_the_others_of_a_broken_job_are_evicted(control_plane: ControlPlane, replica: Replica) -> None:
    _start(control_plane)
    control_plane.delete_pods(["job-0"])
    control_plane.pods.wait(lambda pods: not pods)
    replica.extender.wait_for(lambda: _said(control_plane, "JobEvicted").keys() == {"job-1", "job-2"})
    text = f"Evicted: job job has lacked 1 of its 3 pods for {EVICT_S} s or longer."
    assert set(_said(control_plane, "JobEvicted").values()) == {text}
    assert _metric(replica, "evicted") == 2


def test_the_pods_come_again_and_start_as_a_whole(control_plane: ControlPlane, replica: Replica) -> None:
    _start(control_plane)
    control_plane.delete_pods(["job-0"])
    control_plane.pods.wait(lambda pods: not pods)
    _start(control_plane)
    assert _metric(replica, "evicted") == 2


@pytest.mark.usefixtures("allocations")
def test_a_pod_that_is_evicted_and_exits_with_0_is_lost(
    control_plane: ControlPlane, make_replica: Callable[..., Replica]
) -> None:
    """Training saves its state then. kubelet says that it has succeeded, and its controller makes another pod."""
    replica = make_replica("a", "--job-evict-broken", str(EVICT_S), program=("-c", _HASTY))
    evicted, *others = job("job", 3, {GPU_WHOLE: 4})
    # As kubelet does, keep the pod until its process has ended.
    evicted["metadata"]["finalizers"] = ["gpuagent.test/ends"]
    control_plane.add_pods([evicted, *others])
    control_plane.pods.wait(lambda pods: len(_running(pods)) == 3)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "job-0"}}
    control_plane.client.expect("POST", f"{PODS}/job-0/eviction", eviction)
    control_plane.pods.wait(lambda pods: "deletionTimestamp" in pods["job-0"]["metadata"])
    succeeded = {"status": {"phase": "Succeeded"}}
    control_plane.client.expect("PATCH", f"{PODS}/job-0/status", succeeded, "application/merge-patch+json")
    control_plane.change_pod("job-0", {"metadata": {"finalizers": None}})
    lost = "job job has lost 1 of its 3 pods 1 s ago or longer"
    others_go = f"The other 2 are evicted {EVICT_S} s after the loss, unless the job is whole by then"
    replica.extender.wait_for(lambda: _said(control_plane, "JobBroken") == {"job-1": f"{lost}. {others_go}."})
    control_plane.pods.wait(lambda pods: not pods)
    assert _metric(replica, "evicted") == 2


@pytest.mark.usefixtures("allocations")
def test_a_job_whose_pod_comes_again_is_left_alone(
    control_plane: ControlPlane, make_replica: Callable[..., Replica]
) -> None:
    make_replica("a", "--job-evict-broken", str(IN_TIME_S))
    _start(control_plane)
    before = {name: pod["metadata"]["uid"] for name, pod in control_plane.pods.wait(bool).items()}
    control_plane.delete_pods(["job-0"])
    control_plane.pods.wait(lambda pods: "job-0" not in pods)
    control_plane.add_pods(job("job", 3, {GPU_WHOLE: 4})[:1])
    control_plane.pods.wait(lambda pods: len(_running(pods)) == 3)
    # Another job that breaks later is evicted, so the time of the first one is over.
    control_plane.add_pods(job("later", 2, {GPU_WHOLE: 1}))
    control_plane.pods.wait(lambda pods: len(_running(pods)) == 5)
    control_plane.delete_pods(["later-0"])
    after = control_plane.pods.wait(lambda pods: not any(name.startswith("later") for name in pods))
    assert {name: after[name]["metadata"]["uid"] for name in ("job-1", "job-2")} == {
        name: before[name] for name in ("job-1", "job-2")
    }
    assert len(_running(after)) == 3


def test_a_budget_is_respected_and_the_eviction_is_tried_again(
    control_plane: ControlPlane, replica: Replica, budget: Callable[[int], None]
) -> None:
    budget(0)
    _start(control_plane)
    control_plane.delete_pods(["job-0"])
    replica.extender.wait_for(lambda: _said(control_plane, "EvictionBlocked").keys() == {"job-1", "job-2"})
    for message in _said(control_plane, "EvictionBlocked").values():
        assert message.endswith("Cannot evict pod as it would violate the pod's disruption budget."), message
    # What is evicted is deleted in the same moment, and job-0 may take its time to go.
    control_plane.pods.wait(lambda pods: pods.keys() - {"job-0"} == {"job-1", "job-2"})
    assert _metric(replica, "evicted") == 0
    assert _metric(replica, "later") >= 2
    budget(2)
    control_plane.pods.wait(lambda pods: not pods)
    replica.extender.wait_for(lambda: _said(control_plane, "JobEvicted").keys() == {"job-1", "job-2"})
