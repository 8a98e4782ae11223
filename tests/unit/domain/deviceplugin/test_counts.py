"""Which container an old kubelet asks for, which picks devices itself."""

from dataclasses import replace

from gpuagent.domain.deviceplugin.admission.recent_allocations import RecentAllocation
from gpuagent.domain.deviceplugin.admission.requester import Requester
from gpuagent.domain.deviceplugin.counts import oldest
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.sharing.mode import Kind
from tests.unit.domain.builders import CORE, MEM, pod_json, unit_ids, uuid

PAIR = Requester(container_gpus=frozenset({uuid(0)}))
POD = parse_pod(pod_json("waits", {MEM: 2}))
WAITING = Requester(POD, POD.containers[0])


def test_a_pod_that_waits_comes_before_one_that_the_agent_has_not_seen():
    """Most pods seem unseen because another one was taken for them: the pod that waits would get two GPUs."""
    assert oldest([PAIR, WAITING]) == WAITING


def test_a_pod_that_is_seen_between_its_two_calls_has_what_the_unseen_one_got():
    """Both resources of a container are on one GPU, also if the watch shows its pod between the two calls."""
    both = parse_pod(pod_json("seen", {MEM: 2, CORE: 10}))
    seen = Requester(both, both.containers[0])
    for units in (2, 3):
        last = RecentAllocation(MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, *range(units)), PAIR.container_gpus, 0.0)
        assert oldest([PAIR, seen], last) == (replace(seen, container_gpus=PAIR.container_gpus) if units == 2 else seen)


def test_the_second_resource_of_an_unseen_pod():
    assert oldest([PAIR]) == PAIR
    assert oldest([]) == Requester()
