"""Everything is killed, restarted and cut off while pods come and go: no GPU is given twice, and no pod is lost."""

import random
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime

import pytest

from tests.e2e.amounts import SEED, count
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import core_node, share_node, whole_node
from tests.e2e.scheduler.pods import mixed
from tests.e2e.scheduler.replica import Replica, revived_while

_BATCH = 100
_PODS = count(9, 20) * _BATCH
"""Each batch has a disturbance, and there are nine kinds."""


@pytest.fixture
def allocations(make_allocations: Callable[[Iterable[Json]], Allocations]) -> Allocations:
    return make_allocations(
        [
            *(share_node(f"share-{n}") for n in range(90)),
            *(core_node(f"core-{n}") for n in range(50)),
            *(whole_node(f"whole-{n}") for n in range(60)),
        ]
    )


def test_every_pod_runs_and_no_gpu_is_given_twice(
    control_plane: ControlPlane, allocations: Allocations, make_replica: Callable[..., Replica]
) -> None:
    replicas = {name: make_replica(name, alone=False) for name in ("a", "b")}
    disturbances = _Disturbances(control_plane, replicas).in_random_order(random.Random(SEED))
    pods, created = mixed(_PODS, SEED), 0

    def wait(wanted: Callable[[Mapping[str, Json]], bool]) -> None:
        revived_while(replicas.values(), lambda seconds: control_plane.pods.wait(wanted, seconds))

    while batch := pods[created : created + _BATCH]:
        with next(disturbances):
            created += len(control_plane.add_pods(batch))
        # Most have a node before the next one comes: without progress there is nothing to disturb.
        wait(lambda pods: _count(pods, _bound) >= created - _BATCH)
    wait(lambda pods: _count(pods, _ended) == created)
    assert allocations.problems() == []
    assert set(allocations.used().values()) == {0}


class _Disturbances:
    """What may go wrong while pods are created; what has ended is started again afterwards."""

    def __init__(self, control_plane: ControlPlane, replicas: Mapping[str, Replica]) -> None:
        self._control_plane = control_plane
        self._replicas = replicas

    def in_random_order(self, rng: random.Random) -> Iterator[AbstractContextManager[None]]:
        """All kinds equally often."""
        kinds = (
            *(self.extender_killed, self.scheduler_killed, self.both_killed, self.apiserver_killed),
            *(self.leader_changed, self.leader_overtaken, self.extender_hangs, self.extender_cut_off, self.api_hangs),
        )
        while True:
            for kind in rng.sample(kinds, len(kinds)):
                print(kind.__name__)
                yield kind()

    @property
    def _leader(self) -> Replica:
        """The one that leads now: the lease may still name a process that was killed before."""
        asked_at = datetime.now(UTC)
        name = revived_while(
            self._replicas.values(), lambda seconds: self._control_plane.leader(since=asked_at, timeout=seconds)
        )
        return self._replicas[name]

    def _wait_for_another(self, former: Replica) -> None:
        revived_while(
            self._others(former),
            lambda seconds: self._control_plane.leader(other_than=former.name, timeout=seconds),
        )

    def _wait_until_overtaken(self, former: Replica, resumed_at: datetime) -> None:
        """It ends, because it has lost the lease; or it leads again, because the other one has lost it, too."""

        def wait(seconds: float) -> None:
            try:
                former.scheduler.wait_for_end(seconds)
            except subprocess.TimeoutExpired:
                leader = self._control_plane.leader(since=resumed_at, timeout=seconds)
                if leader != former.name:
                    raise TimeoutError(f"{leader} leads, and {former.name} has not ended") from None

        revived_while(self._others(former), wait)

    def _others(self, former: Replica) -> list[Replica]:
        return [replica for replica in self._replicas.values() if replica is not former]

    @contextmanager
    def extender_killed(self) -> Iterator[None]:
        self._leader.extender.kill()
        yield

    @contextmanager
    def scheduler_killed(self) -> Iterator[None]:
        self._leader.scheduler.kill()
        yield

    @contextmanager
    def both_killed(self) -> Iterator[None]:
        self._leader.kill()
        yield

    @contextmanager
    def apiserver_killed(self) -> Iterator[None]:
        self._control_plane.restart_apiserver()
        yield

    @contextmanager
    def leader_changed(self) -> Iterator[None]:
        """The leader ends in order, and gives the lease back."""
        leader = self._leader
        leader.scheduler.stop()
        self._wait_for_another(leader)
        yield

    @contextmanager
    def leader_overtaken(self) -> Iterator[None]:
        """The leader stands still until another leads, and goes on where it was."""
        leader = self._leader
        leader.scheduler.pause()
        self._wait_for_another(leader)
        yield
        resumed_at = datetime.now(UTC)
        leader.scheduler.resume()
        self._wait_until_overtaken(leader, resumed_at)

    @contextmanager
    def extender_hangs(self) -> Iterator[None]:
        leader = self._leader
        leader.extender.pause()
        yield
        leader.extender.resume()

    @contextmanager
    def extender_cut_off(self) -> Iterator[None]:
        """Its connections are reset, also in the middle of a Binding."""
        self._leader.link.cut()
        yield

    @contextmanager
    def api_hangs(self) -> Iterator[None]:
        """The extender's requests go out late, and it learns late what became of them."""
        leader = self._leader
        leader.link.freeze()
        yield
        leader.link.thaw()


def _count(pods: Mapping[str, Json], which: Callable[[Json], bool]) -> int:
    return sum(map(which, pods.values()))


def _bound(pod: Json) -> bool:
    return "nodeName" in pod["spec"]


def _ended(pod: Json) -> bool:
    return bool(pod["status"]["phase"] == "Succeeded")
