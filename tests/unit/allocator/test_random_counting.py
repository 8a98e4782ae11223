"""Random events on a node whose kubelet does not send GetPreferredAllocation: its device ids are counts.

The checks are those of `test_random_node`, on the units that the agent gave for the ids. Kubelet keeps the agent's
answers in its checkpoint, which the agent reads with the rest of kubelet's allocations.
"""

import random
from collections.abc import Collection, Sequence

import pytest

from gpuagent.domain.pods.exchange import key, read
from gpuagent.domain.pods.pod import CheckpointEntry, Holding
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.mode import Mode
from tests.unit.allocator.test_random_node import ContainerRequest, KubeletPod, RandomNode
from tests.unit.domain.builders import CORE, MEM, WHOLE

pytestmark = pytest.mark.usefixtures("impatient")


class RandomCountingNode(RandomNode):
    kubelet = "v1.18.20"

    def __init__(self) -> None:
        super().__init__()
        self.seen_to_end: set[str] = set()
        self.freed: set[str] = set()

    def picked(self, resource: str, available: Collection[str], must: Sequence[str], size: int) -> frozenset[str]:
        rest = sorted(set(available) - set(must))
        return frozenset([*must, *random.sample(rest, size - len(must))])

    def answered(self, ids: frozenset[str], grant: Grant) -> None:
        text = grant.annotations.get(key(grant.resource))
        self.exchanged |= read(text, ids) if text else {}
        self.freed |= self.ended.keys()  # kubelet does so before it gives out any id
        again = self.allocator.allocate(grant.resource, ids)
        assert again.gpus == grant.gpus

    def checkpoint(self) -> tuple[CheckpointEntry, ...]:
        """The file is a copy of what kubelet lists: no container is in the list alone."""
        return tuple(
            CheckpointEntry(
                f"uid-{pod.name}",
                held.owner.container,
                held.resource,
                held.ids,
                {i: self.exchanged[i] for i in held.ids},
            )
            for pod in (*self.living.values(), *self.still_listed())
            for held in pod.held
        )

    def still_listed(self) -> list[KubeletPod]:
        """Kubelet goes through the pods that there are, and frees all of a pod that ended at the next Allocate."""
        return [pod for pod in self.not_deleted() if pod.name not in self.freed]

    def show_pods(self) -> None:
        """The agent reads kubelet's allocations when a pod has left: only they show what is free."""
        left = self.ended.keys() - self.seen_to_end
        super().show_pods()
        if left:
            self.seen_to_end |= left
            self.read_allocations(True)
            self.read_allocations(False)

    def is_answerable(self, held: Holding) -> bool:
        """Before kubelet's allocations were read, what its ids stand for is not known; kubelet tries again."""
        return self.state.holdings.listed is not None and super().is_answerable(held)

    def kubelet_asks_again(self, n: int) -> None:
        """Not for containers of earlier calls: kubelet picks free ids, so theirs would be for a new container."""

    def check_late_refusal(
        self, refusal: Refusal, request: ContainerRequest, resource: str, size: int, free: set[str], reusable: list[str]
    ) -> None:
        self.check_refusal(refusal, request, resource, size, free, reusable)

    def room(self, resource: str, free: Collection[str]) -> Collection[str]:
        """Of the agent's newest list: kubelet may not have it yet."""
        healthy = {device_id for device_id, well in self.listed()[resource].items() if well}
        return healthy - self.units(self.held())


RandomCountingNode.TestCase.settings = RandomNode.TestCase.settings
TestRandomCountingNode = RandomCountingNode.TestCase
TestRandomCountingNode.pytestmark = [pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", range(10))
def test_a_pod_that_ended_does_not_keep_the_allocations_from_being_read(seed):
    """Found at random: the checkpoint of the stand-in lacked what its list had, and the agent used neither."""
    random.seed(seed)
    node = RandomCountingNode()
    node.boot(mode=Mode.CGPU, lists_ended=True, isolated=True, exclusive=True, answers_queries=True)

    def arrive(*pods: list[ContainerRequest]) -> None:
        node.pods_arrive(fitting=True, pods=[(pod, {}) for pod in pods])

    def late(label: str | None, *pod: ContainerRequest) -> None:
        node.allocations_arrive_late(label=label, requests=list(pod))

    both = {MEM: 1, CORE: 10}
    late("default", ContainerRequest({CORE: 10, MEM: 1}, init=True), ContainerRequest({WHOLE: 1}))
    late("share", ContainerRequest({MEM: 1}))
    late("default", ContainerRequest(both, init=True), ContainerRequest({MEM: 1}))
    late("cgpu", ContainerRequest({MEM: 1}), ContainerRequest(both))
    late("default", ContainerRequest({MEM: 1}, init=True), ContainerRequest({MEM: 3}))
    late("cgpu", ContainerRequest({MEM: 6}))
    arrive([ContainerRequest({MEM: 6})], [ContainerRequest({CORE: 10, MEM: 1}), ContainerRequest({MEM: 3})])
    arrive([ContainerRequest({MEM: 6})])
    arrive([ContainerRequest({MEM: 6})])
    late(None, ContainerRequest({MEM: 1}))
    arrive([ContainerRequest({MEM: 1})])
    arrive([ContainerRequest({CORE: 10})])
    assert node.state.holdings.problem is None
    node.teardown()


def test_a_picked_id_that_is_not_offered_any_more_is_not_the_unit_of_that_name():
    """Found at random: kubelet had not read the new list, and its id was the name of a unit that another pod has."""
    random.seed(0)
    node = RandomCountingNode()
    node.boot(mode=Mode.SHARE, lists_ended=False, isolated=True, exclusive=False, answers_queries=False)
    pods = [([ContainerRequest({MEM: 1})], {})] * 3
    node.pods_arrive(
        fitting=True, pods=[*pods, ([ContainerRequest({WHOLE: 1})], {"before": [("label", "default"), ("wait", 2.5)]})]
    )
    node.teardown()


@pytest.mark.parametrize("seed", range(20))
def test_the_compute_of_a_container_is_on_one_gpu_after_a_switch(seed):
    """Found at random: the model gave the list without the checkpoint, which says what the ids were exchanged for."""
    random.seed(seed)
    node = RandomCountingNode()
    node.boot(mode=Mode.SHARE, lists_ended=False, isolated=True, exclusive=True, answers_queries=False)
    node.a_switch_overtakes_an_allocate(label="core_mem", requests=[ContainerRequest({MEM: 2})])
    pods = [
        [ContainerRequest({MEM: 1})],
        [ContainerRequest({MEM: 1}, init=True), ContainerRequest({MEM: 1, CORE: 10})],
        [ContainerRequest({MEM: 2})],
        [ContainerRequest({WHOLE: 1})],
    ]
    node.pods_arrive(fitting=True, pods=[(pod, {}) for pod in pods])
    node.a_container_starts(n=4)
    node.teardown()
