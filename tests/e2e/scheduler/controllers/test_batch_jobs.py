"""Kubernetes makes the pods of many Jobs of one template at one time, in any order. Each Job starts whole or waits."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE, JOB_LABEL, REPLICAS_LABEL
from tests.e2e.cluster.manifests import Json
from tests.e2e.documents import DOCS, objects
from tests.e2e.scheduler.control_plane import NODES, ControlPlane
from tests.e2e.scheduler.controllers.controller import kubernetes_controllers
from tests.e2e.scheduler.controllers.workloads import template
from tests.e2e.scheduler.gpu_allocations import OF_EACH_JOB, Allocations
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.pods import why
from tests.e2e.scheduler.replica import Replica

_TRIALS = 6
_PODS = 2
_JOBS = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture(scope="module", autouse=True)
def job_controller(running_control_plane: ControlPlane) -> Iterator[None]:
    controllers = kubernetes_controllers(running_control_plane)
    controllers.start()
    yield
    controllers.kill()


def test_the_jobs_of_a_sweep_start_whole_in_turn(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    create: Callable[[Iterable[Json]], None],
) -> None:
    """All pods are there before the scheduler is, and two of the six Jobs have room at one time."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(2))
    trials = [f"trial-{n}" for n in range(_TRIALS)]
    create(_job(name, f"{OF_EACH_JOB}sweep", _PODS, _PODS) for name in trials)
    control_plane.pods.wait(lambda pods: len(pods) == _TRIALS * _PODS)
    make_replica("a")
    left = set(trials)
    while left:
        bound = min(len(left), 2) * _PODS
        pods = control_plane.pods.wait(partial(_is_quiet, bound=bound))
        running = sorted(job for job, pod in _jobs(pods) if "nodeName" in pod["spec"])
        started = set(running)
        assert running == sorted([*started, *started])
        assert allocations.problems() == []
        for name in started:
            control_plane.client.expect("DELETE", f"{_JOBS}/{name}", {"propagationPolicy": "Background"})
        left -= started
        control_plane.pods.wait(partial(_are_gone, started))


def test_two_jobs_that_make_the_number_together_start_together(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    create: Callable[[Iterable[Json]], None],
) -> None:
    """A launcher makes a Job for the master, and later one for the workers."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(2))
    make_replica("a")
    create([_job("master", "launch", 1, 4)])
    waits = "job launch: 1 of 4 pods are there"
    control_plane.pods.wait(lambda pods: len(pods) == 1 and all(waits in why(pods, name) for name in pods))
    create([_job("workers", "launch", 3, 4)])
    control_plane.pods.wait(lambda pods: sum("nodeName" in pod["spec"] for pod in pods.values()) == 4)
    assert allocations.problems() == []


def test_the_job_of_the_page_starts_with_as_many_pods_as_the_labels_of_acks_scheduler_say(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    create: Callable[[Iterable[Json]], None],
) -> None:
    """Each of its three pods needs a node. With the second node, the two start that have to start together."""
    nodes = [whole_node(f"node-{n}") for n in range(3)]
    allocations = make_allocations(nodes)
    for node in nodes[1:]:
        control_plane.client.expect("DELETE", f"{NODES}/{node['metadata']['name']}")
    make_replica("a")
    create(made for made in objects(DOCS / "gpuscheduler.md") if made["kind"] == "Job")
    waits = "pod group tune: it asks for 16 of aliyun.com/gpu, and the cluster has 8"
    control_plane.pods.wait(lambda pods: len(pods) == 3 and all(waits in why(pods, name) for name in pods))
    for number, node in enumerate(nodes[1:], 2):
        control_plane.add_nodes([node])
        control_plane.pods.wait(partial(_is_quiet, bound=number))
    assert allocations.problems() == []


def _job(name: str, label: str, pods: int, number: int) -> Json:
    """A Job whose pods have 4 GPUs each."""
    labels = {JOB_LABEL: label, REPLICAS_LABEL: str(number)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"parallelism": pods, "completions": pods, "template": template({GPU_WHOLE: 4}, labels)},
    }


def _jobs(pods: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """Each pod with the name of its Job."""
    for pod in pods.values():
        yield pod["metadata"]["labels"]["batch.kubernetes.io/job-name"], pod


def _are_gone(jobs: set[str], pods: Mapping[str, Json]) -> bool:
    return jobs.isdisjoint(job for job, _ in _jobs(pods))


def _is_quiet(pods: Mapping[str, Json], bound: int) -> bool:
    """Whether so many pods are bound, and the others say why they wait."""
    waiting = [name for name, pod in pods.items() if "nodeName" not in pod["spec"]]
    return len(pods) - len(waiting) == bound and all(why(pods, name) for name in waiting)
