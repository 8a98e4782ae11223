"""JobSet makes several Jobs of one object. Their pods start together, whichever of the Jobs they belong to."""

from collections.abc import Callable, Iterable, Mapping

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.controllers.controller import Controller
from tests.e2e.scheduler.controllers.page import fill_by_page
from tests.e2e.scheduler.controllers.workloads import job_set, replicated_job, template
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.pods import pod, why
from tests.e2e.scheduler.replica import Replica

_PODS = 5


@pytest.fixture(scope="module")
def jobset(start_controller: Callable[..., Controller]) -> Controller:
    return start_controller("jobset")


@pytest.mark.usefixtures("jobset")
def test_a_jobset_of_two_kinds_of_jobs_starts_whole_or_waits(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    create: Callable[[Iterable[Json]], None],
) -> None:
    """A driver of 2 GPUs and four workers of 4 GPUs need a third node of 8. Another pod gets the GPUs meanwhile."""
    nodes = [whole_node(f"node-{n}") for n in range(3)]
    allocations = make_allocations(nodes)
    control_plane.client.expect("DELETE", "/api/v1/nodes/node-2")
    make_replica("a")
    driver = replicated_job("driver", 1, 1, template({GPU_WHOLE: 2}))
    workers = replicated_job("workers", 2, 2, template({GPU_WHOLE: 4}))
    create([job_set("default", "train", [driver, workers])])
    control_plane.pods.wait(lambda pods: len(pods) == _PODS and all(why(pods, name) for name in pods))
    control_plane.add_pods([pod("other", {GPU_WHOLE: 8})])
    pods = control_plane.pods.wait(lambda pods: _bound(pods) > 0)
    assert _names_of_bound(pods) == {"other"}
    control_plane.delete_pods(["other"])
    control_plane.add_nodes(nodes[2:])
    control_plane.pods.wait(lambda pods: _bound(pods) == _PODS)
    assert allocations.problems() == []


@pytest.mark.usefixtures("jobset")
def test_the_commands_of_the_page_work(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    made: list[str],
) -> None:
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(2))
    make_replica("a")
    fill_by_page(control_plane, "jobset.md", made, allocations)


def _bound(pods: Mapping[str, Json]) -> int:
    return len(_names_of_bound(pods))


def _names_of_bound(pods: Mapping[str, Json]) -> set[str]:
    return {name for name, found in pods.items() if "nodeName" in found["spec"]}
