"""PreStartContainer for an isolation driver that limits pods: it is told the pod's UID and all shares of the pod."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.sharing.gpu_share import GpuShare
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.isolation.interface import Starting
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import MEM, box, in_force, owner, pod_json, unit_ids, uuid

GIB = 2**30

pytestmark = pytest.mark.usefixtures("impatient")


class LimitedKubelet(FakeKubelet):
    """A kubelet that writes its checkpoint, on a node whose driver limits pods."""

    def __init__(self, mode: Mode = Mode.CGPU) -> None:
        super().__init__(in_force(mode, box(2)))
        layers = {name: replace(layer, limits_pods=True) for name, layer in self.node.state.isolation.layers.items()}
        self.node.isolation(layers=layers)
        self.publish()
        self.told: list[Starting] = []
        self.isolation.verify = lambda _grant, starting: self.told.append(starting)

    def admit(self, pod: str, container: str = "main", size: int = 4, uid: str = "") -> frozenset[str]:
        """The units of a container that kubelet has admitted."""
        self.serve(owner(pod, container), MEM, size)
        ids = self.allocations.holdings[-1].ids
        self.record(uid or f"uid-{pod}", container, ids)
        return ids

    def record(self, uid: str, container: str, ids: frozenset[str]) -> None:
        self.allocations.checkpoint.append(CheckpointEntry(uid, container, MEM, ids))

    def read_without_checkpoint(self) -> None:
        self.node.now += 1
        self.read_allocations()

    def read_all(self) -> None:
        self.node.now += 1
        allocations = self.allocations
        now = self.node.now
        self.node.send(ev.HoldingsRead(tuple(allocations.holdings), now, now, tuple(allocations.checkpoint)))
        self.publish()

    def start(self, ids: frozenset[str]) -> Starting:
        """What the driver is told before a container starts."""
        self.allocator.prestart(MEM, ids)
        return self.told[-1]


def shares(**gib: int) -> PodShares:
    """GiB of each container on GPU 0."""
    containers = {name.replace("_", "-"): {uuid(0): size * GIB} for name, size in gib.items()}
    return PodShares({uuid(0): sum(gib.values()) * GIB}, containers)


def pods(*made: dict[str, Any]) -> LimitedKubelet:
    kubelet = LimitedKubelet()
    kubelet.pods(*made)
    return kubelet


def test_the_driver_is_told_the_pod_by_its_uid_and_its_share():
    kubelet = pods(pod_json("a", {MEM: 4}))
    of_container = {uuid(0): GpuShare(4 * 1024, 100)}
    assert kubelet.start(kubelet.admit("a")) == Starting(owner("a"), {"uid-a": shares(main=4)}, "main", of_container)


def test_kubelets_allocations_are_read_again_while_its_checkpoint_lacks_the_pod():
    """The list of pod-resources names the container already, and has no UID."""
    kubelet = pods(pod_json("a", {MEM: 4}))
    ids = kubelet.admit("a")
    kubelet.read_without_checkpoint()
    assert kubelet.start(ids).pods == {"uid-a": shares(main=4)}
    assert kubelet.allocations.reads == 1


def test_what_was_read_of_kubelets_checkpoint_is_enough():
    kubelet = pods(pod_json("a", {MEM: 4}))
    ids = kubelet.admit("a")
    kubelet.read_all()
    assert kubelet.start(ids).pods == {"uid-a": shares(main=4)}
    assert kubelet.allocations.reads == 0


def test_the_driver_hears_it_if_no_checkpoint_shows_the_pod():
    kubelet = pods(pod_json("a", {MEM: 4}))
    ids = kubelet.admit("a")
    kubelet.allocations.checkpoint.clear()
    assert kubelet.start(ids) == Starting(owner("a"), {})


def test_the_driver_is_told_the_shares_of_all_containers_of_the_pod_and_of_no_other_pod():
    kubelet = pods(pod_json("a", {MEM: 4}, {MEM: 2}), pod_json("b", {MEM: 3}, created="2026-01-01T00:00:01Z"))
    ids = kubelet.admit("a")
    kubelet.admit("a", "main-1", 2)
    kubelet.admit("b", size=3)
    starting = kubelet.start(ids)
    assert starting.owner == owner("a")
    assert starting.pods == {"uid-a": shares(main=4, main_1=2)}


def test_an_init_container_that_kubelet_does_not_list_has_its_pods_uid():
    kubelet = pods(pod_json("a", {MEM: 4}, init=({MEM: 2},)))
    ids = kubelet.prefer(MEM, 2)
    kubelet.allocator.allocate(MEM, ids)
    kubelet.record("uid-a", "init-0", ids)
    kubelet.admit("a")
    starting = kubelet.start(ids)
    assert set(starting.pods) == {"uid-a"}
    assert starting.pods["uid-a"].containers.keys() == {"init-0", "main"}


def test_a_static_pod_has_the_uid_that_kubelet_knows_it_by():
    """Its cgroup is named after the file's hash. The API server's UID is that of its mirror."""
    uid_of_file = "0123456789abcdef0123456789abcdef"
    kubelet = pods(pod_json("static", {MEM: 4}, annotations={"kubernetes.io/config.mirror": uid_of_file}))
    assert kubelet.start(kubelet.admit("static", uid=uid_of_file)).pods == {uid_of_file: shares(main=4)}


def test_all_pods_that_may_be_about_to_start_are_told():
    """Kubelet's checkpoint may still have a pod that has ended, whose units another one got."""
    kubelet = pods(pod_json("a", {MEM: 4}))
    ids = kubelet.admit("a")
    kubelet.record("uid-ended", "main", ids)
    assert kubelet.start(ids).pods == {"uid-a": shares(main=4), "uid-ended": shares(main=4)}


def test_units_of_a_mode_without_limits_have_no_share():
    kubelet = pods(pod_json("a", {MEM: 4}))
    ids = kubelet.admit("a")
    kubelet.record("uid-a", "former", unit_ids(1, Kind.MEMORY_SHARE, 0, 1))
    assert kubelet.start(ids).pods == {"uid-a": shares(main=4)}
