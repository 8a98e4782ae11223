"""Conformance checks 67 to 71: a claim with a device of another driver too. After kubelet's own list."""

from collections.abc import Callable, Iterator

import pytest

from tests.contract.claim_node import PREPARE, UNPREPARE, ClaimNode
from tests.contract.harness import NODE, wait_for
from tests.contract.other_driver import OTHER, OtherDriver

MakeNode = Callable[..., ClaimNode]


class Two:
    """A node with both drivers, and a claim of both."""

    def __init__(self, node: ClaimNode, other: OtherDriver) -> None:
        self.node, self.other = node, other
        node.run()
        node.registered()
        wait_for(lambda: node.kubelet.claims.instances(OTHER))
        self.begin()

    def begin(self) -> None:
        """Have devices of both drivers published, and a pod made for them."""
        node = self.node
        node.published()
        pool = {"name": "other", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": OTHER, "nodeName": NODE, "pool": pool, "devices": [{"name": "one"}]}
        node.server.objects.create("resourceslices", "", {"metadata": {"name": "other"}, "spec": spec})
        expression = f'device.driver == "{OTHER}"'
        body = {"metadata": {"name": OTHER}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        node.server.objects.create("deviceclasses", "", body)
        claim = node.spec(memory="8Gi")
        claim["devices"]["requests"].append({"name": "other", "exactly": {"deviceClassName": OTHER}})
        node.server.objects.create("resourceclaims", "default", {"metadata": {"name": "both"}, "spec": claim})

    def ours(self, method: str) -> int:
        """How often kubelet called the agent."""
        return sum(OTHER not in call.endpoint for call in self.node.calls(method))


@pytest.fixture
def two(claim_node: MakeNode) -> Iterator[Two]:
    node = claim_node(back_off=0.2)
    with OtherDriver(node.root / "k") as other:
        yield Two(node, other)


def test_67_a_claim_for_two_of_them_is_prepared_and_unprepared(two: Two) -> None:
    """`must prepare and unprepare resources`: what the other driver allots is none of the agent's business."""
    two.node.create("pod", claim="both")
    assert two.node.running("pod").env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8"
    two.node.delete("pod")
    two.node.gone("pod")
    assert two.other.asked == [PREPARE, UNPREPARE]
    assert two.node.files() == (0, 0)


def test_68_a_pod_runs_when_the_other_drivers_preparation_fails_and_then_succeeds(two: Two) -> None:
    """`must run pod if NodePrepareResources fails for one plugin and then succeeds`, and it waits no minute for that."""
    two.other.error = "not now"
    two.node.create("pod", claim="both")
    wait_for(lambda: PREPARE in two.other.asked)
    two.other.error = ""
    two.node.running("pod")
    assert two.node.files() == (1, 1)


def test_69_a_pod_ends_when_the_other_drivers_unpreparation_fails_and_then_succeeds(two: Two) -> None:
    """`must run pod if NodeUnprepareResources fails for one plugin and then succeeds`: what is unprepared may be again."""
    two.node.create("pod", claim="both")
    two.node.running("pod")
    two.other.error = "not now"
    two.node.exit("pod")
    wait_for(lambda: two.other.asked.count(UNPREPARE) > 1)
    two.other.error = ""
    wait_for(lambda: two.node.phase("pod") == "Succeeded")
    assert two.node.files() == (0, 0)


def test_70_a_pod_runs_when_kubelet_restarts_during_its_preparation(two: Two) -> None:
    """`must run pod if NodePrepareResources is in progress for one plugin when Kubelet restarts`."""
    two.other.answering.clear()
    two.node.create("pod", claim="both")
    wait_for(lambda: PREPARE in two.other.asked)
    two.node.kubelet.restart()
    two.other.answering.set()
    two.node.running("pod")
    assert two.node.files() == (1, 1)


def test_71_a_pod_ends_when_kubelet_restarts_during_its_unpreparation(two: Two) -> None:
    """`must call NodeUnprepareResources again if it's in progress for one plugin when Kubelet restarts`."""
    two.node.create("pod", claim="both")
    two.node.running("pod")
    two.other.answering.clear()
    two.node.exit("pod")
    wait_for(lambda: UNPREPARE in two.other.asked)
    two.node.kubelet.restart()
    two.other.answering.set()
    wait_for(lambda: two.node.phase("pod") == "Succeeded")
    assert two.node.files() == (0, 0)
