"""A node's whole life at random, on a kubelet that asks nobody which units to take: its ids are counts.

The checks are those of `test_machine`, on the units that the agent gave for the ids. Kubelet keeps the agent's answers
in its checkpoint; the agent is told of it with the rest of the book.
"""

import random
from collections.abc import Collection, Sequence

import pytest

from gpuagent.domain.errors import Refusal
from gpuagent.domain.exchange import key, read
from gpuagent.domain.grant import Grant
from gpuagent.domain.pods import CheckpointEntry, Holding
from tests.unit.domain.test_machine import KubeletPod, NodeLife, Request

pytestmark = pytest.mark.usefixtures("impatient")


class CountingLife(NodeLife):
    kubelet = "v1.18.20"

    def __init__(self) -> None:
        super().__init__()
        self.seen_to_end: set[str] = set()

    def picked(self, resource: str, available: Collection[str], must: Sequence[str], size: int) -> frozenset[str]:
        rest = sorted(set(available) - set(must))
        return frozenset([*must, *random.sample(rest, size - len(must))])

    def answered(self, ids: frozenset[str], grant: Grant) -> None:
        text = grant.annotations.get(key(grant.resource))
        self.exchanged |= read(text, ids) if text else {}

    def checkpoint(self) -> tuple[CheckpointEntry, ...]:
        return tuple(
            CheckpointEntry(
                f"uid-{pod.name}",
                held.owner.container,
                held.resource,
                held.ids,
                {i: self.exchanged[i] for i in held.ids},
            )
            for pod in self.living.values()
            for held in pod.held
        )

    def still_listed(self) -> list[KubeletPod]:
        """Kubelet goes through the pods that there are."""
        return self.not_deleted()

    def show_pods(self) -> None:
        """The agent reads the book when a pod has left: nobody tells it otherwise what is free."""
        left = self.ended.keys() - self.seen_to_end
        super().show_pods()
        if left:
            self.seen_to_end |= left
            self.read_book(True)
            self.read_book(False)

    def is_answerable(self, held: Holding) -> bool:
        """Before the book was read, what its ids stand for is not known; kubelet tries again."""
        return self.state.holdings is not None and super().is_answerable(held)

    def check_late_refusal(
        self, refusal: Refusal, request: Request, resource: str, size: int, free: set[str], reusable: list[str]
    ) -> None:
        self.check_refusal(refusal, request, resource, size, free, reusable)

    def room(self, resource: str, free: Collection[str]) -> Collection[str]:
        """Of the agent's newest list: kubelet may not have it yet."""
        healthy = {device_id for device_id, well in self.as_told()[resource].items() if well}
        return healthy - self.units(self.held())


CountingLife.TestCase.settings = NodeLife.TestCase.settings
TestCountingLife = CountingLife.TestCase
TestCountingLife.pytestmark = [pytest.mark.timeout(300)]
