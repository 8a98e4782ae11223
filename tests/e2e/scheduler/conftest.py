"""One control plane for all tests; each test has nodes and replicas of its own, and ends with the audit."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from tests.e2e.build import bin_dir
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import BINARIES, ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.replica import PROGRAM, Replica


@pytest.fixture(scope="session")
def running_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    missing = [name for name in BINARIES if not (bin_dir() / name).exists()]
    if missing:
        pytest.fail(f"run `python tests/e2e/build.py {' '.join(missing)}` first", pytrace=False)
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as running:
        yield running


@pytest.fixture
def control_plane(running_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Without nodes, pods and a leader."""
    yield running_control_plane
    running_control_plane.clear()


@pytest.fixture
def make_allocations(control_plane: ControlPlane) -> Iterator[Callable[[Iterable[Json]], Allocations]]:
    """Adds nodes, and follows the pods on them."""

    def make(nodes: Iterable[Json]) -> Allocations:
        control_plane.add_nodes(nodes)
        allocations = Allocations(control_plane.nodes())
        control_plane.pods.listen(allocations)
        return allocations

    yield make
    control_plane.pods.listen(None)


@pytest.fixture
def make_replica(control_plane: ControlPlane) -> Iterator[Callable[..., Replica]]:
    """Starts a kube-scheduler with its extender, and waits until both are ready."""
    with ExitStack() as stack:

        def make(
            name: str,
            *flags: str,
            alone: bool = True,
            scores: str = "",
            program: Sequence[str] = PROGRAM,
        ) -> Replica:
            replica = Replica(control_plane, name, flags, alone=alone, scores=scores, program=program)
            stack.callback(replica.stop)
            replica.start()
            return replica

        yield make
