"""Pods of few names at random, deleted by force and made again: each gets its own scheduler's GPU, or is refused.

The API server's events reach the agent and kubelet each at its own pace, in one order, and the agent's watch posts those
of a moment together. Kubelet lists pods by name: it
does not say whether it admits the pod that was deleted a moment ago or the one that took its name.
"""

import json
import random
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.admission.kubelet_listing import Listed
from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding, Pod, PodName
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import Mode
from gpuagent.kube.watch.node_watch import NodePods
from tests.unit.allocator.fake_kubelet import FakeAllocations, FakeKubelet
from tests.unit.domain.builders import MEM, box, in_force, owner, pod_json

pytestmark = pytest.mark.usefixtures("impatient")


@dataclass
class MadePod:
    """A pod; `gpus` are those that a scheduler chose for its containers, None where none did."""

    name: str
    uid: str
    sizes: list[int]
    gpus: list[int] | None
    failed: bool = False
    held: list[Holding] = field(default_factory=list)

    @property
    def json(self):
        created = f"2026-01-01T00:{int(self.uid[4:]):02}:00Z"
        found = pod_json(self.name, *({MEM: size} for size in self.sizes), created=created)
        if self.gpus is not None:
            table = {str(n): {str(gpu): size} for n, (gpu, size) in enumerate(zip(self.gpus, self.sizes, strict=True))}
            found["metadata"]["annotations"] = {MEMORY_ANNOTATION: json.dumps(table)}
        found["metadata"]["uid"] = self.uid
        return found


class LateKubelet(FakeAllocations):
    """Lists the pods that it was told of, without those that it rejected: from 1.34 on."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, MadePod] = {}

    def query(self, pods: Collection[PodName] | None, *, listing: bool) -> Listed | None:
        known = [pod for pod in self.pods.values() if not pod.failed]
        found = [(PodName("ml", pod.name), tuple(pod.held)) for pod in known]
        random.shuffle(found)  # kubelet lists its pods in no order: two may have one name
        return [one for one in found if pods is None or one[0] in pods]


class ReusedNames:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.node = in_force(Mode.SHARE, box(8, 64))
        self.kubelet = FakeKubelet(self.node, LateKubelet()).pods()
        self.kubelet.fetch = self.fetch  # type: ignore[method-assign]
        self.made: dict[str, MadePod] = {}
        self.api: dict[str, MadePod] = {}
        self.watched = NodePods("n", lambda _: None, lambda: self.node.now, 0.0, (MEM,))
        self.watched.listed([])
        self.to_agent: deque[tuple[str, MadePod]] = deque()
        self.to_kubelet: deque[tuple[str, MadePod]] = deque()
        self.count, self.mistaken, self.early = 0, set[str](), set[str]()
        self.bind("z", [1], [0], decided=True)
        self.the_agent_sees(1)
        self.kubelet_goes_on(1)

    def happens(self, what: str, pod: MadePod) -> None:
        self.to_agent.append((what, pod))
        self.to_kubelet.append((what, pod))

    # -- the API server ------------------------------------------------------------------------------------------

    def bind_any(self) -> None:
        # Two pods of one name often differ in their sizes, and each may be larger than the other.
        sizes = self.chance.choice([[1], [1], [2], [3], [1, 1], [1, 2], [2, 1], [3, 1]])
        gpus = [self.chance.randrange(8) for _ in sizes]
        self.bind(self.chance.choice("abc"), sizes, gpus, decided=self.chance.random() < 0.75)

    def bind(self, name: str, sizes: list[int], gpus: list[int], *, decided: bool) -> None:
        if name in self.api:
            self.delete(name)
        self.count += 1
        pod = self.api[name] = MadePod(name, f"uid-{self.count}", sizes, gpus if decided else None)
        self.made[pod.uid] = pod
        self.happens("added", pod)

    def delete_any(self) -> None:
        self.delete(self.chance.choice("abc"))

    def delete(self, name: str) -> None:
        if name in self.api:
            self.happens("deleted", self.api.pop(name))

    # -- the agent -----------------------------------------------------------------------------------------------

    def the_agent_sees(self, most: int) -> None:
        for _ in range(min(most, len(self.to_agent))):
            what, pod = self.to_agent.popleft()
            if what == "deleted":
                self.watched.changed("DELETED", self.read(pod))
            elif what == "added":
                self.watched.changed("ADDED", self.read(pod))
            else:
                self.watched.changed("MODIFIED", self.read(pod, status={"phase": "Failed"}))
        self.post()

    def read(self, pod: MadePod, **more: Any) -> Pod:
        return self.watched.read(pod.json | more)

    def post(self) -> None:
        for event in self.watched.take():
            self.node.send(event)
            self.kubelet.publish()

    def fetch(self, pods: Collection[PodName], _timeout_s: float) -> frozenset[str]:
        """A pod that took the name of one that only kubelet has seen so far cannot be told from it, and is left out."""
        found = [
            pod
            for pod in self.api.values()
            if PodName("ml", pod.name) in pods and pod.uid in self.kubelet.allocations.pods
        ]
        self.watched.fetched([self.read(pod) for pod in found], self.watched.lists)
        self.post()
        return frozenset(pod.uid for pod in found)

    def the_agent_reads_allocations(self) -> None:
        self.node.now += 1
        held = [(pod.uid, holding) for pod in self.kubelet.allocations.pods.values() for holding in pod.held]
        kept = tuple(CheckpointEntry(uid, h.owner.container, MEM, h.ids) for uid, h in held)
        self.node.send(ev.HoldingsRead(tuple(h for _, h in held), self.node.now, self.node.now, kept))
        self.kubelet.publish()

    # -- kubelet -------------------------------------------------------------------------------------------------

    def kubelet_goes_on(self, most: int) -> None:
        for _ in range(min(most, len(self.to_kubelet))):
            what, pod = self.to_kubelet.popleft()
            if what == "added":
                self.admit(pod)
            elif what == "deleted":
                del self.kubelet.allocations.pods[pod.uid]
        self.kubelet.allocations.holdings = [h for pod in self.kubelet.allocations.pods.values() for h in pod.held]

    def admit(self, pod: MadePod) -> None:
        self.kubelet.allocations.pods[pod.uid] = pod
        if pod.uid not in self.watched.known:
            self.early.add(pod.uid)
            living = [seen.uid for seen in self.watched.known.values() if seen.name.name == pod.name and not seen.ended]
            shown = [self.made[uid] for uid in living]
            if any(one.failed or one.uid in self.early for one in shown):
                self.mistaken.add(pod.uid)  # the watch shows one before as waiting, which kubelet was done with
        for n, size in enumerate(pod.sizes):
            who = owner(pod.name, f"main-{n}" if n else "main")
            try:
                self.serve(pod, who, size)
            except Refusal as refusal:
                assert refusal.reason is Reason.UNKNOWN_POD
                pod.failed, pod.held = True, []
                if self.api.get(pod.name) is pod:
                    self.to_agent.append(("failed", pod))
                return
            if pod.gpus is not None and self.api.get(pod.name) is pod and pod.uid not in self.mistaken:
                (uuid,) = {self.kubelet.snap.units[i] for i in pod.held[-1].ids}
                assert self.kubelet.snap.gpus[uuid].minor == pod.gpus[n]

    def serve(self, pod: MadePod, who: ContainerRef, size: int) -> None:
        self.kubelet.allocations.holdings = [h for pod in self.kubelet.allocations.pods.values() for h in pod.held]
        ids = self.kubelet.prefer(MEM, size)
        self.kubelet.allocator.allocate(MEM, ids)
        pod.held.append(Holding(who, MEM, ids))


# In 5 of the first 5,000 seeds, a name is used so often, before the agent sees any of it, that a pod is taken for a
# later one.
@pytest.mark.parametrize("seed", [*range(100, 200), 239, 976, 981])  # kubelet lists another pod of the name
def test_pods_of_reused_names_get_their_own_gpu_or_are_refused(seed):
    chance = random.Random(seed)
    random.seed(seed)
    life = ReusedNames(chance)
    for _ in range(40):
        match chance.randrange(5):
            case 0:
                life.bind_any()
            case 1:
                life.delete_any()
            case 2:
                life.the_agent_sees(chance.randint(1, 4))
            case 3:
                life.the_agent_reads_allocations()
            case 4:
                life.kubelet_goes_on(chance.randint(1, 4))
