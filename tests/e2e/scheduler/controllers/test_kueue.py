"""Kueue in front: it says when a workload may start, and the scheduler where. Each leaves the other's part alone."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import pytest

from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE, JOB_LABEL, REPLICAS_LABEL
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.controllers.controller import Controller
from tests.e2e.scheduler.controllers.held import GatedPods, HeldGpus, is_gated
from tests.e2e.scheduler.controllers.page import run_page
from tests.e2e.scheduler.controllers.workloads import (
    GROUP_LABEL,
    QUEUE,
    QUEUE_LABEL,
    cluster_queue,
    flavor,
    gang_job,
    job_set,
    leader_worker_set,
    local_queue,
    namespace,
    pod_group,
    replicated_job,
    template,
)
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import share_node, whole_node
from tests.e2e.scheduler.pods import RUNS_FOR, job, why
from tests.e2e.scheduler.replica import Replica

TEAMS = ("red", "blue")
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
MERGE = "application/merge-patch+json"
_GPUS = 8
"""Of each node, and of each job: two pods with half of them each."""
_JOBS = 10
"""Of each team."""
_NODES = 4
_LABELS: dict[str, dict[str, str]] = {
    "group": {GROUP_LABEL: "gang"},
    "group that is a job by its labels": {GROUP_LABEL: "gang", JOB_LABEL: "gang", REPLICAS_LABEL: "2"},
    "job of pods that are admitted one by one": {JOB_LABEL: "gang", REPLICAS_LABEL: "2"},
    "single pods": {},
}
_GATED = dict.fromkeys(_LABELS, 2) | {"LeaderWorkerSet": 2, "JobSet": 0}
"""How many pods there are before Kueue admits them. A JobSet is suspended instead."""

Create = Callable[[Iterable[Json]], None]
Make = Callable[[Iterable[Json]], Allocations]


@pytest.fixture(scope="module")
def kueue(start_controller: Callable[..., Controller], running_control_plane: ControlPlane) -> Controller:
    """It also manages what the other two make, as their kinds are there before it starts."""
    for team in TEAMS:
        running_control_plane.client.apply(namespace(team))
    start_controller("jobset")
    start_controller("lws")
    # Its server of pending workloads would need a port and rights of its own.
    return start_controller("kueue", {"featureGates": {"VisibilityOnDemand": False}})


@pytest.fixture
def queues(create: Create, kueue: Controller) -> None:
    """Each team has half of the GPUs, and may borrow the other half."""
    create([flavor()])
    for team in TEAMS:
        create([cluster_queue(team, _NODES * _GPUS // 2), local_queue(team)])


@pytest.fixture
def replica(make_replica: Callable[..., Replica]) -> Replica:
    return make_replica("a")


@pytest.mark.usefixtures("queues", "replica")
def test_twenty_jobs_of_two_teams_start_whole_within_their_quota(
    control_plane: ControlPlane, make_allocations: Make, create: Create
) -> None:
    """The first team borrows what is free. When the second one wants it back, Kueue evicts two of the first's jobs."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(_NODES))
    create(gang_job("red", f"red-{n}", 2, _GPUS // 2) for n in range(_JOBS))
    pods = control_plane.pods.wait(lambda pods: _running(pods) == {"red": 8})
    borrowers = _jobs(pods)
    create(gang_job("blue", f"blue-{n}", 2, _GPUS // 2) for n in range(_JOBS))
    pods = control_plane.pods.wait(lambda pods: _running(pods) == {"red": 4, "blue": 4})
    evicted = borrowers - _jobs(pods)
    assert len(evicted) == 2
    assert allocations.problems() == []
    ended = _end_all(control_plane, 2 * _JOBS * 2)
    # Those that were evicted have started again, and each job ran whole.
    assert Counter(map(_job, ended.values())) == {f"{team}-{n}": 2 for team in TEAMS for n in range(_JOBS)}
    assert allocations.problems() == []
    assert allocations.used()[GPU_WHOLE] == 0


@pytest.mark.usefixtures("queues", "replica")
def test_a_job_that_kueue_evicts_gives_its_gpus_back_and_starts_again(
    control_plane: ControlPlane, make_allocations: Make, create: Create
) -> None:
    allocations = make_allocations([whole_node("node")])
    create([gang_job("red", "evicted", 2, _GPUS // 2)])
    first = control_plane.pods.wait(lambda pods: _running(pods) == {"red": 2})
    workload = _workload_of(control_plane, "evicted")
    control_plane.client.expect("PATCH", workload, {"spec": {"active": False}}, MERGE)
    control_plane.pods.wait(lambda pods: not pods)
    other = control_plane.add_pods(job("other", 2, {GPU_WHOLE: _GPUS // 2}))
    control_plane.pods.wait(lambda pods: _running(pods) == {"default": 2})
    control_plane.client.expect("PATCH", workload, {"spec": {"active": True}}, MERGE)
    control_plane.pods.wait(lambda pods: len(pods) == 4)
    control_plane.delete_pods(other)
    again = control_plane.pods.wait(lambda pods: _running(pods) == {"red": 2})
    assert first.keys().isdisjoint(again)
    assert allocations.problems() == []


@pytest.mark.usefixtures("queues", "replica")
def test_a_group_of_pods_that_kueue_evicts_gives_its_gpus_back(
    control_plane: ControlPlane, make_allocations: Make, create: Create
) -> None:
    allocations = make_allocations([whole_node("node")])
    create(pod_group("red", "evicted", {GROUP_LABEL: "gang"}, template({GPU_WHOLE: _GPUS // 2})))
    control_plane.pods.wait(lambda pods: _running(pods) == {"red": 2})
    workload = _workload_of(control_plane, "evicted-0")
    control_plane.client.expect("PATCH", workload, {"spec": {"active": False}}, MERGE)
    evicted = control_plane.pods.wait(lambda pods: all("deletionTimestamp" in pod["metadata"] for pod in pods.values()))
    other = control_plane.add_pods(job("other", 2, {GPU_WHOLE: _GPUS // 2}))
    control_plane.pods.wait(lambda pods: all(why(pods, name) for name in other))
    for name in evicted:
        # What kubelet says when it has ended the containers. Until then they use their GPUs.
        path = f"/api/v1/namespaces/red/pods/{name}/status"
        control_plane.client.expect("PATCH", path, {"status": {"phase": "Failed"}}, MERGE)
    control_plane.pods.wait(lambda pods: _running(pods) == {"default": 2})
    assert allocations.problems() == []


@pytest.fixture
def crowd(make_allocations: Make) -> Allocations:
    """Two nodes for the test, among so many that the scheduler has to nominate the planned ones."""
    others = (whole_node(f"other-{n}", gpus=1) for n in range(120))
    return make_allocations([whole_node("node-0", zone="test"), whole_node("node-1", zone="test"), *others])


@pytest.mark.parametrize("kind", _GATED)
def test_what_kueue_holds_back_holds_nothing_and_starts_once_admitted(
    control_plane: ControlPlane, crowd: Allocations, create: Create, kueue: Controller, replica: Replica, kind: str
) -> None:
    """Another gang takes the same GPUs meanwhile, and is not kept waiting."""
    listener = GatedPods(crowd)
    control_plane.pods.listen(listener)
    create([flavor(), cluster_queue("red", 2 * _GPUS, stopPolicy="Hold"), local_queue("red")])
    with HeldGpus(control_plane.client, replica).watched() as held:
        create(_held_back(kind))
        control_plane.pods.wait(lambda pods: len(pods) == _GATED[kind])
        other = control_plane.add_pods(job("other", 2, {GPU_WHOLE: _GPUS}, node_selector={"zone": "test"}))
        pods = control_plane.pods.wait(lambda pods: _running(pods) == {"default": 2})
        assert sum(map(is_gated, pods.values())) == _GATED[kind]
        control_plane.delete_pods(other)
        control_plane.pods.wait(lambda pods: len(pods) == _GATED[kind])
        control_plane.client.expect("PATCH", f"{QUEUES}/red", {"spec": {"stopPolicy": "None"}}, MERGE)
        pods = control_plane.pods.wait(lambda pods: _running(pods) == {"red": 2})
    assert (held.gpu_seconds, listener.nominated) == (0, set())
    assert held.looks > 0
    assert not any(map(is_gated, pods.values()))
    assert crowd.problems() == []


@pytest.mark.usefixtures("kueue", "replica")
def test_the_commands_of_the_page_work_one_after_the_other(
    control_plane: ControlPlane, make_allocations: Make, made: list[str]
) -> None:
    allocations = make_allocations([whole_node("node-0"), whole_node("node-1"), share_node("shared", gpus=1)])
    run_page(control_plane, "kueue.md", made)
    control_plane.pods.wait(lambda pods: _running(pods) == {"team-a": 7})
    used = allocations.used()
    assert (used[GPU_WHOLE], used[GPU_MEM]) == (12, 60)
    assert allocations.problems() == []


def _held_back(kind: str) -> list[Json]:
    """Two pods of 8 GPUs each, on the two nodes for the test."""
    on_test_nodes = template({GPU_WHOLE: _GPUS})
    on_test_nodes["spec"]["nodeSelector"] = {"zone": "test"}
    queue = {QUEUE_LABEL: QUEUE}
    if kind == "JobSet":
        return [job_set("red", "held", [replicated_job("workers", 1, 2, on_test_nodes)], queue)]
    if kind == "LeaderWorkerSet":
        return [leader_worker_set("red", "held", 1, 2, on_test_nodes, queue)]
    return pod_group("red", "held", _LABELS[kind], on_test_nodes)


def _end_all(control_plane: ControlPlane, expected: int) -> Mapping[str, Json]:
    """End each pod as soon as it runs, until so many have ended."""
    told: set[str] = set()

    def to_tell(pods: Mapping[str, Json]) -> list[Json]:
        running = (pod for pod in pods.values() if pod["status"]["phase"] == "Running")
        return [pod for pod in running if pod["metadata"]["uid"] not in told]

    def ended(pods: Mapping[str, Json]) -> bool:
        succeeded = [pod for pod in pods.values() if pod["status"]["phase"] == "Succeeded"]
        return len(succeeded) == expected

    while True:
        pods = control_plane.pods.wait(lambda pods: ended(pods) or bool(to_tell(pods)))
        if ended(pods):
            return pods
        for running in to_tell(pods):
            metadata = running["metadata"]
            told.add(metadata["uid"])
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            control_plane.client.request("PATCH", path, {"metadata": {"annotations": {RUNS_FOR: "100ms"}}}, MERGE)


def _workload_of(control_plane: ControlPlane, owner: str) -> str:
    """The path of the workload of a Job or of a pod. The garbage collector may not have removed others yet."""
    items = control_plane.client.expect("GET", "/apis/kueue.x-k8s.io/v1beta2/workloads")["items"]
    (workload,) = (found for found in items if owner in _owners(found))
    return control_plane.client.path_of(workload)


def _owners(found: Json) -> set[str]:
    return {reference["name"] for reference in found["metadata"].get("ownerReferences", ())}


def _running(pods: Mapping[str, Json]) -> Counter[str]:
    """Namespace to its running pods."""
    running = [pod for pod in pods.values() if pod["status"]["phase"] == "Running"]
    return Counter(pod["metadata"]["namespace"] for pod in running)


def _jobs(pods: Mapping[str, Json]) -> set[str]:
    return set(map(_job, pods.values()))


def _job(pod: Json) -> str:
    return str(pod["metadata"]["labels"][JOB_LABEL])
