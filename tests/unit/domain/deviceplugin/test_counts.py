"""Which container an old kubelet asks for, which picks devices itself."""

from gpuagent.domain.deviceplugin.counts import oldest
from gpuagent.domain.deviceplugin.identity import Requester
from gpuagent.domain.pods.pod import parse_pod
from tests.unit.domain.builders import MEM, pod_json, uuid

PAIR = Requester(paired=frozenset({uuid(0)}))
POD = parse_pod(pod_json("waits", {MEM: 2}))
WAITING = Requester(POD, POD.containers[0])


def test_a_pod_that_waits_comes_before_one_that_the_agent_has_not_seen():
    """Most pods seem unseen because another one was taken for them: the pod that waits would get two GPUs."""
    assert oldest([PAIR, WAITING]) == WAITING


def test_the_second_resource_of_an_unseen_pod():
    assert oldest([PAIR]) == PAIR
    assert oldest([]) == Requester()
