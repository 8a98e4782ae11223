"""LeaderWorkerSet makes groups of one leader and its workers from one template. Each group starts by itself, and whole."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.controllers.controller import Controller
from tests.e2e.scheduler.controllers.page import fill_by_page
from tests.e2e.scheduler.controllers.workloads import leader_worker_set, template
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.pods import why
from tests.e2e.scheduler.replica import Replica

_GROUPS, _SIZE = 3, 2


@pytest.fixture(scope="module")
def leaderworkerset(start_controller: Callable[..., Controller]) -> Controller:
    return start_controller("lws")


@pytest.mark.usefixtures("leaderworkerset")
def test_each_group_of_a_leaderworkerset_starts_whole_or_waits(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    create: Callable[[Iterable[Json]], None],
) -> None:
    """Each pod wants a node for itself. There are five nodes for six pods, and a sixth one later."""
    nodes = [whole_node(f"node-{n}") for n in range(_GROUPS * _SIZE)]
    allocations = make_allocations(nodes)
    control_plane.client.expect("DELETE", "/api/v1/nodes/node-5")
    make_replica("a")
    create([leader_worker_set("default", "serve", _GROUPS, _SIZE, template({GPU_WHOLE: 8}))])
    pods = control_plane.pods.wait(_has_two_groups_and_reasons)
    waiting = [pod for pod in pods.values() if "nodeName" not in pod["spec"]]
    assert Counter(map(_group, waiting)).most_common() == [(_group(waiting[0]), _SIZE)]
    control_plane.add_nodes(nodes[-1:])
    control_plane.pods.wait(lambda pods: Counter(_bound_groups(pods).values()) == {_SIZE: _GROUPS})
    assert allocations.problems() == []


@pytest.mark.usefixtures("leaderworkerset")
def test_the_commands_of_the_page_work(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    made: list[str],
) -> None:
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(2))
    make_replica("a")
    fill_by_page(control_plane, "leaderworkerset.md", made, allocations)


def _has_two_groups_and_reasons(pods: Mapping[str, Json]) -> bool:
    """Whether two groups are bound, and each pod of the third one says why it waits."""
    waiting = [name for name, pod in pods.items() if "nodeName" not in pod["spec"]]
    is_quiet = len(pods) == _GROUPS * _SIZE and all(why(pods, name) for name in waiting)
    return is_quiet and sorted(_bound_groups(pods).values()) == [_SIZE, _SIZE]


def _bound_groups(pods: Mapping[str, Json]) -> Counter[str]:
    """Group to how many of its pods are bound."""
    return Counter(_group(pod) for pod in pods.values() if "nodeName" in pod["spec"])


def _group(pod: Json) -> str:
    return str(pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"])
