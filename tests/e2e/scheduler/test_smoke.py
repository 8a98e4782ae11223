"""Sixty pods on twenty nodes, with nothing broken."""

from collections.abc import Callable, Iterable

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import broken_node, core_node, share_node, silent_node, whole_node
from tests.e2e.scheduler.pods import job, pod
from tests.e2e.scheduler.replica import Replica


def test_pods_of_all_kinds_run(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
) -> None:
    allocations = make_allocations(
        [
            *(share_node(f"share-{n}") for n in range(8)),
            *(core_node(f"core-{n}") for n in range(4)),
            *(whole_node(f"whole-{n}") for n in range(6)),
            broken_node("broken"),
            silent_node("silent"),
        ]
    )
    make_replica("a")
    names = control_plane.add_pods(
        [
            *(pod(f"share-{n}", {GPU_MEM: 10 + n, "cpu": "100m"}) for n in range(30)),
            *(pod(f"core-{n}", {GPU_MEM: 5, GPU_CORE: 20}) for n in range(16)),
            *(pod(f"whole-{n}", {GPU_WHOLE: 1 + n % 4}) for n in range(10)),
            *job("job", 4, {GPU_WHOLE: 4}),
        ]
    )
    control_plane.pods.wait(
        lambda pods: all(name in pods and pods[name]["status"]["phase"] == "Running" for name in names)
    )
    assert allocations.problems() == []
    assert allocations.used() == {GPU_MEM: sum(range(10, 40)) + 80, GPU_CORE: 320, GPU_WHOLE: 23 + 16}
