"""Random events on a node whose pods are resized while they run: no memory of a GPU is granted twice.

The node, kubelet and the events are those of `test_random_node`. Added are annotations that change, an isolation driver
that limits pods from outside and cannot lower a limit below what a container uses, a disk that sometimes fails, and
agents that are restarted with what the disk has.
"""

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.memory_shares import device_shares
from gpuagent.domain.node_state.resizes import Resizes
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import GPU_MEM, Mode
from gpuagent.domain.sharing.resize import Resize
from gpuagent.domain.sharing.units import parse_id
from gpuagent.isolation.need import isolation_needs
from tests.unit.allocator.test_random_node import (
    GPUS,
    ContainerRequest,
    KubeletPod,
    RandomNode,
    one_action,
    one_pod,
    one_surprise,
)
from tests.unit.domain.builders import MEM

pytestmark = pytest.mark.usefixtures("impatient")

MIB = 2**20
GIB = 2**30


class RandomResizingNode(RandomNode):
    """Attributes:
    disk: what the agent has stored.
    disk_works: whether the agent can write.
    limits: UID of a pod to the shares whose limits the driver has in force.
    uses: UID of a pod to the GiB that its containers use of each of their GPUs.
    asked: UIDs of the pods that had the annotation at any time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk: dict[str, Resize] = {}
        self.disk_works = True
        self.limits: dict[str, PodShares] = {}
        self.uses: dict[str, int] = {}
        self.asked: set[str] = set()
        self.is_following = False

    # -- the agent -----------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        self.policy = replace(self.policy, live_resize=True)
        self.layer = replace(self.layer, limits_pods=True, applied={}, refused={})
        super().start_agent()

    def stored_resizes(self) -> Resizes:
        return Resizes(stored=dict(self.disk), to_store=dict(self.disk))

    def send(self, event: ev.Event) -> None:
        super().send(event)
        if not self.is_following:
            self.is_following = True
            try:
                self.follow()
            finally:
                self.is_following = False

    def follow(self) -> None:
        """What the agent does after each event: it stores resizes, and tells the driver its need."""
        for _ in range(4):
            resizes = self.state.resizes
            if resizes.to_store != resizes.stored:
                if self.disk_works:
                    self.disk = dict(resizes.to_store)
                problem = None if self.disk_works else "no space"
                super().send(ev.ResizesStored(dict(self.disk), problem, self.now))
            layer = self.driver_applies()
            if layer != self.layer:
                self.layer = layer
                super().send(ev.LayerSeen(layer, self.now))

    def driver_applies(self) -> Any:
        """The driver with its report, after it has set the limits of its need."""
        need = isolation_needs(self.state, [self.name])[self.name]
        living = {f"uid-{name}" for name in self.living}
        refused = {}
        for uid, shares in need.pods.items():
            if uid not in living:
                continue
            smallest = min((amount for share in shares.containers.values() for amount in share.values()), default=0)
            is_lowered = uid in self.limits and self.limits[uid] != shares
            if is_lowered and smallest < self.uses.get(uid, 0) * GIB:
                refused[uid] = f"uses {self.uses[uid]} GiB"
            else:
                self.limits[uid] = shares
        self.limits = {uid: shares for uid, shares in self.limits.items() if uid in living}
        applied = {uid: self.limits[uid] for uid in need.resized if uid in self.limits}
        return replace(
            self.layer, applied=applied, refused={uid: refused[uid] for uid in need.resized & refused.keys()}
        )

    # -- kubelet -------------------------------------------------------------------------------------------------

    def checkpoint(self) -> tuple[CheckpointEntry, ...]:
        return tuple(
            CheckpointEntry(f"uid-{pod.name}", held.owner.container, held.resource, held.ids)
            for pod in self.living.values()
            for held in pod.held
        )

    def room(self, resource: str, free: Collection[str]) -> Collection[str]:
        return set(free) - self.state.resizes.withheld

    # -- rules ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.living)
    @rule(
        n=st.integers(0, 5),
        units=st.integers(0, 6),
        form=st.sampled_from(["main-0={}", "main-0={}", "{}", "main-1={}", "init-0={}", "nonsense", None]),
    )
    def somebody_annotates(self, n: int, units: int, form: str | None) -> None:
        pod = list(self.living.values())[n % len(self.living)]
        annotations = pod.json["metadata"]["annotations"]
        annotations.pop(LIMIT_ANNOTATION, None)
        if form is not None:
            annotations[LIMIT_ANNOTATION] = form.format(units)
            self.asked.add(f"uid-{pod.name}")
        self.show_pods()

    @precondition(lambda self: self.living)
    @rule(n=st.integers(0, 5))
    def a_tenant_forges_the_status(self, n: int) -> None:
        pod = list(self.living.values())[n % len(self.living)]
        pod.json["metadata"]["annotations"][LIMIT_STATUS_ANNOTATION] = "InForce: main-0=6"
        self.show_pods()

    @precondition(lambda self: self.living)
    @rule(n=st.integers(0, 5), gib=st.integers(0, 6))
    def a_pod_uses_memory(self, n: int, gib: int) -> None:
        """As much as its limit allows."""
        uid = f"uid-{list(self.living)[n % len(self.living)]}"
        shares = self.limits.get(uid)
        if shares is None:
            return
        amounts = [amount for share in shares.containers.values() for amount in share.values()]
        self.uses[uid] = min(gib, min(amounts, default=0) // GIB)

    @rule(works=st.booleans())
    def the_disk_changes(self, works: bool) -> None:
        self.disk_works = works
        self.send(ev.Tick(self.now))

    @rule()
    def some_time_passes(self) -> None:
        """Enough for one step of a resize."""
        self.now += 0.01
        self.read_allocations(True)
        self.read_allocations(False)
        self.deliver()
        for _ in range(3):
            self.now += 0.3
            self.send(ev.Tick(self.now))

    # -- what must always be true ----------------------------------------------------------------------------------

    @invariant()
    def no_memory_is_granted_twice(self) -> None:
        if not hasattr(self, "state") or self.in_flight:
            return
        in_kubelets_hands = self.held()
        for uid, resize in self.disk.items():
            if uid.removeprefix("uid-") in self.living:
                twice = resize.extra & in_kubelets_hands
                assert not twice, f"{resize.pod} has {twice} by its limit, and another pod has it by kubelet"
        extras = [device_id for resize in self.disk.values() for device_id in resize.extra]
        assert len(extras) == len(set(extras)), "two pods have the same unit by their limits"
        taken: Counter[str] = Counter()
        for pod in self.living.values():
            own = self.kubelets_units(pod)
            most = self.limits.get(f"uid-{pod.name}", PodShares())
            for key_ in {*own, *(g.key for g in GPUS)}:
                granted = self.granted_by_driver(most, key_)
                taken[key_] += max(granted, own[key_])
                resize = self.disk.get(f"uid-{pod.name}")
                extra = sum(parse_id(device_id).gpu_key == key_ for device_id in resize.extra) if resize else 0
                assert granted <= own[key_] + extra, f"{pod.name} may use more than it holds and has extra"
        for one in GPUS:
            assert taken[one.key] <= one.memory_mib // 1024, f"GPU {one.index} has given {taken[one.key]} GiB"

    def kubelets_units(self, pod: KubeletPod) -> Counter[str]:
        ids = {device_id for held in pod.held if held.resource == GPU_MEM for device_id in held.ids}
        return Counter(parse_id(device_id).gpu_key for device_id in ids)

    def granted_by_driver(self, shares: PodShares, key_: str) -> int:
        total = sum(amount for u, amount in shares.total.items() if _key(u) == key_)
        return -(-total // GIB)

    @invariant()
    def a_pod_that_did_not_ask_is_never_changed(self) -> None:
        if not hasattr(self, "state"):
            return
        gpus = self.state.gpus.by_index
        modes = [mode for mode in Mode if self.state.layer_of(mode).driver == self.name]
        allocated = device_shares(self.state.holdings.checkpoint, gpus, self.policy.unit, modes)
        need = isolation_needs(self.state, [self.name])[self.name]
        for uid, shares in allocated.items():
            if uid not in self.asked:
                assert need.pods[uid] == shares

    def teardown(self) -> None:
        if hasattr(self, "state"):
            self.disk_works = True
        super().teardown()
        if hasattr(self, "state"):
            assert not self.disk
            assert not self.state.resizes.withheld


def _key(uuid_: str) -> str:
    return next(one.key for one in GPUS if one.uuid == uuid_)


RandomResizingNode.TestCase.settings = settings(RandomNode.TestCase.settings, max_examples=25)
TestRandomResizingNode = RandomResizingNode.TestCase
TestRandomResizingNode.pytestmark = [pytest.mark.timeout(300)]


@pytest.mark.parametrize("first", range(4, 12, 4))
def test_long_lives_with_resizes_by_dice(first):
    granted = sum(life_by_dice(seed) for seed in range(first, first + 4))
    assert granted, "no limit was raised, so these lives show nothing"


def life_by_dice(seed: int) -> int:
    """One life. Returns the extra units that pods had, added up over all its moments."""
    dice = random.Random(seed)
    node = RandomResizingNode()
    mode = dice.choice([Mode.CGPU, Mode.CGPU, Mode.CORE_MEM, Mode.MPS])
    node.boot(mode, *(dice.random() < chance for chance in (0.6, 1.0, 0.5, 0.5)))
    granted = 0
    for _ in range(120):
        acts = {
            "arrive": 20,
            "end": 8,
            "annotate": 30,
            "uses": 10,
            "passes": 25,
            "settle": 8,
            "forge": 3,
            "disk": 4,
            "restart": 6,
            "again": 3,
            "other": 8,
        }
        act = dice.choices(list(acts), list(acts.values()))[0]
        if act == "arrive":
            small = [ContainerRequest({MEM: dice.choice([1, 2])}) for _ in range(dice.choice([1, 1, 2]))]
            requests = small if dice.random() < 0.7 else one_pod(dice)
            node.pods_arrive([(requests, one_surprise(dice))], True)
        elif act == "end":
            node.end_pod(dice.randrange(4))
        elif act == "passes":
            node.some_time_passes()
        elif act == "settle":
            # Other modes and lost GPUs have no memory to grant.
            node.the_inventory_changes(([0, 1, 2], set(), set()))
            node.do("fence", set())
            for n in range(3):
                node.an_unhealthy_gpu_recovers(n)
            node.change_label(str(mode))
            node.all_is_settled()
        elif act == "disk":
            node.the_disk_changes(dice.random() < 0.7)
        elif act == "restart":
            node.start_agent()
        elif act == "other":
            node.do(*one_action(dice, rough=True))
        elif node.living and act == "annotate":
            forms = ["main-0={}", "main-0={}", "main-0={}", "{}", "main-1={}", "main-0={},main-1=2", None]
            units = dice.choice([1, 2, 3, 3, 4, 5])
            node.somebody_annotates(dice.randrange(5), units, dice.choice(forms))
            if dice.random() < 0.6:
                node.some_time_passes()
        elif node.living and act == "uses":
            # Usually all that they may, so that their limits cannot be lowered.
            for n in range(len(node.living)):
                node.a_pod_uses_memory(n, dice.choice([6, 6, 6, 1, 0]))
        elif node.living and act == "forge":
            node.a_tenant_forges_the_status(dice.randrange(5))
        elif node.living and act == "again" and node.state.holdings.listed is not None:
            node.kubelet_asks_again(dice.randrange(5))
        node.no_memory_is_granted_twice()
        node.a_pod_that_did_not_ask_is_never_changed()
        granted += sum(len(resize.extra) for resize in node.disk.values())
    node.teardown()
    return granted
