"""Devices in use: the indexes after an Allocate equal freshly computed ones."""

from gpuagent.domain.deviceplugin.admission.admission_tracker import AdmissionTracker
from gpuagent.domain.deviceplugin.admission.recent_allocations import RecentAllocation, RecentAllocations
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.sharing.mode import Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import MEM, box, holding, in_force, owner, pod_json, uuid


def test_an_allocate_from_before_a_read_restores_a_holding_that_a_later_allocate_had_overridden():
    """Two Allocates overlap, and the agent reads kubelet's allocations between them."""
    kubelet = FakeKubelet(in_force(Mode.SHARE, box(2, 4)))
    ids = frozenset(sorted(kubelet.node.ids(MEM))[:1])
    kubelet.pods(pod_json("a", {MEM: 1}), pod_json("n", {MEM: 1}))
    kubelet.node.now = 10
    kubelet.node.holdings(holding("a", ids))
    kubelet.publish()
    gpus = frozenset({uuid(0)})
    younger = RecentAllocation(MEM, ids | {"other"}, gpus, 11.0, owner("gone"), "uid-gone")
    before = AdmissionTracker(RecentAllocations.of([younger]))
    after = before.allocated(RecentAllocation(MEM, ids, gpus, 9.0, owner("n"), "uid-n"))
    assert Occupancy(kubelet.snap, before).allocated(after).allocations == Occupancy(kubelet.snap, after).allocations
