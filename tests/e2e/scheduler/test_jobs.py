"""Jobs that compete for nodes: each starts whole or not at all, whatever is killed meanwhile."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from gpuagent.domain.sharing.mode import GPU_WHOLE, JOB_LABEL
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.allocations import Allocations
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.nodes import whole_node
from tests.e2e.scheduler.pods import job
from tests.e2e.scheduler.replica import Replica

_NODES, _JOBS, _REPLICAS = 50, 10, 16
_FIT = _NODES // _REPLICAS


def test_jobs_that_compete_start_whole(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
) -> None:
    """Each round has as many jobs as fit; the extender is killed when the first pod of the round is bound."""
    allocations = make_allocations(whole_node(f"node-{n}") for n in range(_NODES))
    replica = make_replica("a")
    waiting = {f"job-{n}": job(f"job-{n}", _REPLICAS, {GPU_WHOLE: 8}) for n in range(_JOBS)}
    pods = [pod for members in waiting.values() for pod in members]
    random.Random(1).shuffle(pods)
    control_plane.add_pods(pods)
    while waiting:
        control_plane.pods.wait(lambda pods: bool(_bound(pods)), timeout=60)
        replica.extender.kill()
        replica.revive()
        expected = min(_FIT, len(waiting))
        found = control_plane.pods.wait(lambda pods: _whole(pods) == expected, timeout=60)
        assert allocations.problems() == []
        started = set(_bound(found))
        control_plane.delete_pods([pod["metadata"]["name"] for name in started for pod in waiting.pop(name)])
        control_plane.pods.wait(lambda pods: not started.intersection(map(_job, pods.values())), timeout=60)


def _whole(pods: Mapping[str, Json]) -> int:
    return sum(bound == _REPLICAS for bound in _bound(pods).values())


def _bound(pods: Mapping[str, Json]) -> Counter[str]:
    """Job to how many of its pods are bound; without those that have none."""
    return Counter(_job(pod) for pod in pods.values() if "nodeName" in pod["spec"])


def _job(pod: Json) -> str:
    return str(pod["metadata"]["labels"][JOB_LABEL])
