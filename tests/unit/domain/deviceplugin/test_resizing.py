"""Resizes of running pods, from the annotation to the shares that the isolation driver gets."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.advertise import SETTLE_S
from gpuagent.domain.deviceplugin.resize.resizing import LEAVE_S, deadline
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.node_state.resizes import Resizes
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION
from gpuagent.domain.pods.pod import CheckpointEntry
from gpuagent.domain.reconcile.published_gpus import published_gpus
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import Isolates, Kind, Mode
from gpuagent.domain.snapshot import ids_of, leaving_ids
from gpuagent.domain.step import step
from gpuagent.isolation.need import isolation_needs
from tests.unit.domain.builders import MEM, NodeUnderTest, gpu, holding, pod_json, unit_ids, uuid

MC = Kind.MEMORY_CGPU
GIB = 2**30
FAKE = Layer(
    driver="fake",
    installed=True,
    isolates=frozenset({Isolates.MEMORY}),
    modes=frozenset({Mode.CGPU}),
    limits_pods=True,
)


class ResizingNode(NodeUnderTest):
    """A node in mode cgpu whose fake driver limits pods from outside, and applies at once what it is told.

    Attributes:
        held: pod name and container to the units that kubelet has allocated.
        json: the pods.
        refuses: UIDs of pods whose limits the driver cannot change, to why.
        is_slow: the driver does not report what it has applied.
    """

    def __init__(self, *pods: dict[str, Any], gpus: int = 1, live_resize: bool = True) -> None:
        super().__init__(Mode.CGPU, isolates=frozenset(), live_resize=live_resize)
        self.held: dict[tuple[str, str], frozenset[str]] = {}
        self.json: dict[str, dict[str, Any]] = {}
        self.refuses: dict[str, str] = {}
        self.is_slow = False
        self.layer = FAKE
        self.saves = True
        self.version = 0
        self.state = replace(self.state, isolation=replace(self.state.isolation, layers={"fake": self.layer}))
        self.inventory(*(gpu(n) for n in range(gpus)))
        self.read()
        for pod in pods:
            self.run(pod)

    def run(self, pod: dict[str, Any], first: int = 0, gpu_index: int = 0) -> None:
        """Have kubelet admit a pod: its containers get units from number `first` on."""
        name = pod["metadata"]["name"]
        pod["status"] = {"phase": "Running", "containerStatuses": []}
        for number, container in enumerate(pod["spec"]["containers"]):
            count = int(container["resources"]["limits"].get(MEM, 0))
            ids = unit_ids(gpu_index, MC, *range(first, first + count))
            if ids:
                self.held[name, container["name"]] = ids
            first += count
            status = {"name": container["name"], "containerID": f"containerd://{name}{number}"}
            pod["status"]["containerStatuses"].append(status)
        self.json[name] = pod
        self.show()
        self.read()

    def show(self) -> None:
        self.version += 1
        for pod in self.json.values():
            pod["metadata"]["resourceVersion"] = str(self.version)
        self.pods(*self.json.values())
        self.follow()

    def read(self) -> None:
        """Read kubelet's allocations."""
        held = tuple(holding(pod, ids, container=container) for (pod, container), ids in self.held.items())
        entries = tuple(CheckpointEntry(f"uid-{pod}", name, MEM, ids) for (pod, name), ids in self.held.items())
        self.send(ev.HoldingsRead(held, self.now, self.now, entries))
        self.follow()

    def annotate(self, name: str, text: str | None) -> None:
        annotations = self.json[name]["metadata"]["annotations"]
        annotations.pop(LIMIT_ANNOTATION, None)
        if text is not None:
            annotations[LIMIT_ANNOTATION] = text
        self.show()

    def ends(self, name: str) -> None:
        self.held = {key: ids for key, ids in self.held.items() if key[0] != name}
        del self.json[name]
        self.show()
        self.read()

    def follow(self) -> None:
        """What the agent does after each event: it stores resizes, and tells the driver its need."""
        resizes = self.state.resizes
        if self.saves and resizes.to_store != resizes.stored:
            self.send(ev.ResizesStored(resizes.to_store, None, self.now))
        need = isolation_needs(self.state, ["fake"])["fake"]
        if self.is_slow:
            return
        applied = {uid: need.pods[uid] for uid in need.resized if uid in need.pods and uid not in self.refuses}
        refused = {uid: text for uid, text in self.refuses.items() if uid in need.resized}
        if (applied, refused) != (dict(self.layer.applied), dict(self.layer.refused)):
            self.layer = replace(self.layer, applied=applied, refused=refused)
            self.send(ev.LayerSeen(self.layer, self.now))
            self.follow()

    def count(self, *recent: str, running: int = 0) -> None:
        """The agent looks at the Allocate calls."""
        self.now += 0.02
        self.send(ev.AllocatesSeen(running, self.state.allocates.last_end, self.now, frozenset(recent)))
        self.follow()

    def settle(self) -> None:
        """All that follows within half a second."""
        self.now += 0.01
        self.read()
        self.now += LEAVE_S
        self.count()
        self.count()

    def share(self, name: str, container: str = "main", gpu_index: int = 0) -> float:
        """GiB of a container that the driver is told."""
        shares = self.shares(name)
        return shares.containers[container][uuid(gpu_index)] / GIB

    def shares(self, name: str) -> PodShares:
        need = isolation_needs(self.state, ["fake"])["fake"]
        return need.pods[f"uid-{name}"]

    def total(self, name: str) -> float:
        return self.shares(name).total[uuid(0)] / GIB

    @property
    def offered(self) -> int:
        """Units of GPU 0 that a container may get or has."""
        return self.offer_of(0)

    def offer_of(self, index: int) -> int:
        return next(b.healthy_units for b in self.state.advertised.lists[MEM] if b.gpu.index == index)

    @property
    def leaving(self) -> frozenset[str]:
        return frozenset[str]().union(*map(leaving_ids, self.state.advertised.lists[MEM]))

    def verdict(self, name: str) -> str:
        verdict = self.state.resizes.verdicts.get(f"uid-{name}")
        return verdict.annotation if verdict else ""

    def restarted(self) -> "ResizingNode":
        """The agent after a restart, with what it had stored, before the API server has answered."""
        other = ResizingNode(live_resize=self.state.policy.live_resize)
        stored = self.state.resizes.stored
        other.state = replace(
            other.state,
            advertised=replace(other.state.advertised, lists=dict.fromkeys(other.state.advertised.lists, ())),
            resizes=Resizes(stored=stored, to_store=stored),
            pods=Pods(),
        )
        other.now = self.now
        other.held = dict(self.held)
        other.json = dict(self.json)
        other.read()
        return other


def trainer(**limits: str) -> dict[str, Any]:
    return pod_json("train", {MEM: 8}, **limits)


def test_a_larger_limit_takes_free_units_out_of_the_list_and_is_in_force_within_a_second():
    node = ResizingNode(trainer())
    began = node.now
    node.annotate("train", "main=12")
    assert node.leaving == unit_ids(0, MC, 12, 13, 14, 15)
    assert node.offered == 12
    assert node.share("train") == 8, "the units may still be given to another pod"
    node.settle()
    assert node.now - began < 1
    assert node.share("train") == node.total("train") == 12
    assert node.verdict("train") == "InForce: main=12"
    assert node.announcements[-1].reason == "GPUMemoryResized"
    node.wait(SETTLE_S)
    assert node.ids(MEM) == unit_ids(0, MC, *range(12))
    assert published_gpus(node.state).gpus[0].memory == 12


def test_a_number_alone_is_for_a_pod_with_one_gpu_container():
    node = ResizingNode(pod_json("train", {MEM: 8}, {}))
    node.annotate("train", "12")
    node.settle()
    assert node.share("train") == 12


def test_a_smaller_limit_gives_kubelet_nothing_back():
    node = ResizingNode(trainer())
    node.annotate("train", "main=4")
    node.settle()
    assert node.share("train") == node.total("train") == 4
    assert node.offered == 16
    assert node.verdict("train") == "InForce: main=4"


def test_without_the_annotation_the_pod_is_as_kubelet_allocated_it():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    node.annotate("train", None)
    node.settle()
    assert node.share("train") == 8
    assert node.offered == 16
    assert not node.state.resizes.stored
    assert node.verdict("train") == "InForce: main=8"


def test_a_limit_is_in_force_only_when_it_is_stored():
    node = ResizingNode(trainer())
    node.saves = False
    node.annotate("train", "main=12")
    node.settle()
    assert node.share("train") == 8
    node.send(ev.ResizesStored({}, "the limit cannot be recorded: No space left on device", node.now))
    assert "No space left" in node.verdict("train")
    assert node.offered == 12
    node.saves = True
    node.follow()
    assert node.share("train") == 12


def test_units_come_back_only_when_the_driver_has_lowered_the_limit():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    node.refuses["uid-train"] = "container main uses 11.5 GiB of GPU 0"
    node.annotate("train", "main=8")
    node.settle()
    assert node.offered == 12
    assert node.verdict("train") == "Refused: container main uses 11.5 GiB of GPU 0; in force: main=12"
    node.refuses.clear()
    node.follow()
    assert node.offered == 16
    assert node.verdict("train") == "InForce: main=8"


def test_a_pod_that_ends_gives_its_units_back():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    node.ends("train")
    assert node.offered == 16
    assert not node.state.resizes.stored


def test_a_deleted_pod_keeps_its_units_until_kubelet_has_ended_it():
    node = ResizingNode(trainer())
    node.send(ev.NodeSeen({"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}}, node.now))
    node.annotate("train", "main=12")
    node.settle()
    del node.json["train"]
    node.show()
    assert node.offered == 12, "it was deleted by force, and kubelet still has its containers"
    node.held.clear()
    node.read()
    assert node.offered == 16


def test_nobody_gets_more_than_is_free():
    node = ResizingNode(trainer())
    node.run(pod_json("other", {MEM: 6}), first=8)
    node.annotate("train", "main=12")
    node.settle()
    assert node.share("train") == 8
    assert node.offered == 16
    refused = node.announcements[-1]
    assert (refused.reason, refused.warning) == ("GPUResizeRefused", True)
    assert "GPU 0 has 2 GiB that no pod holds or is promised, and 4 GiB more are needed" in refused.message
    assert "in force: main=8" in node.verdict("train")
    node.ends("other")
    node.settle()
    assert node.share("train") == 12, "it is tried again when a pod ends"


def test_units_that_a_scheduler_has_promised_are_not_free():
    node = ResizingNode(trainer())
    node.json["comes"] = pod_json("comes", {MEM: 6})
    node.show()
    node.annotate("train", "main=12")
    assert "2 GiB that no pod holds or is promised" in node.verdict("train")


def test_an_allocate_that_has_picked_a_unit_before_wins():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    (picked,) = unit_ids(0, MC, 12)
    node.now += 0.01
    node.read()
    node.now += LEAVE_S
    node.count(picked)
    node.count(picked)
    assert picked not in node.state.resizes.withheld
    assert node.share("train") == 8
    node.held["other", "main"] = frozenset({picked})
    node.read()
    node.settle()
    node.settle()
    assert "GPU 0 has 7 GiB" not in node.verdict("train")
    assert node.share("train") == 12
    assert not node.state.resizes.withheld & unit_ids(0, MC, *range(8), 12)


def test_nothing_is_granted_while_an_allocate_is_in_progress():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.now += 0.01
    node.read()
    node.now += LEAVE_S
    node.count(running=1)
    for _ in range(5):
        node.count(running=1)
    assert node.state.resizes.closed, "a new call may not take them"
    assert node.share("train") == 8
    assert deadline(node.state) is not None
    node.count()
    assert node.share("train") == 12


def test_after_a_restart_the_first_list_lacks_the_units_before_the_api_server_answers():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    after = node.restarted()
    assert after.ids(MEM) == unit_ids(0, MC, *range(12))
    assert after.share("train") == 12
    after.show()
    after.settle()
    assert after.share("train") == 12
    assert after.ids(MEM) == unit_ids(0, MC, *range(12))


def test_kubelets_allocations_decide_after_the_agent_ran_without_its_file():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    node.held["other", "main"] = unit_ids(0, MC, 15)
    after = node.restarted()
    after.show()
    assert after.share("train") == 8
    after.settle()
    after.settle()
    assert after.share("train") == 12
    assert not after.state.resizes.withheld & unit_ids(0, MC, 15)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write main=12"),
        ("main", "write main=12"),
        ("main=0", "write main=12"),
        ("main=-1", "write main=12"),
        ("main=12Gi", "write main=12"),
        ("main=12,main=13", "names container main twice"),
        ("side=4", "container side has no aliyun.com/gpu-mem by kubelet's allocations; main has"),
        ("main=17", "17 GiB for main is more than GPU 0 has: 16 GiB"),
        ("main=99999999999", "write main=12"),
        ("9" * 1000, "write main=12"),
    ],
)
def test_other_text_is_refused_with_a_sentence(text, words):
    node = ResizingNode(trainer())
    node.annotate("train", text)
    assert words in node.verdict("train")
    assert node.share("train") == 8
    assert node.offered == 16


def test_a_refused_text_leaves_in_force_what_was():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    node.annotate("train", "main=twelve")
    node.settle()
    assert node.share("train") == 12
    assert node.verdict("train").endswith("in force: main=12")


def test_without_the_setting_the_annotation_changes_nothing():
    node = ResizingNode(trainer(), live_resize=False)
    node.annotate("train", "main=12")
    node.settle()
    assert node.share("train") == 8
    assert node.offered == 16
    assert "--live-resize" in node.verdict("train")


def test_when_the_setting_goes_off_pods_go_back_to_their_allocations():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    after = node.restarted()
    after.state = replace(after.state, policy=replace(after.state.policy, live_resize=False))
    after.show()
    after.settle()
    assert after.share("train") == 8
    assert after.offered == 16


def test_a_driver_that_limits_a_container_only_at_its_start_is_named():
    node = ResizingNode(trainer())
    node.send(ev.LayerSeen(replace(node.layer, limits_pods=False), node.now))
    node.annotate("train", "main=12")
    assert "isolation driver fake of mode cgpu cannot change the limit of a container that runs" in node.verdict(
        "train"
    )


def test_a_fenced_gpu_gives_no_more_memory_and_takes_no_limit_away():
    node = ResizingNode(trainer())
    node.annotate("train", "main=10")
    node.settle()
    node.send(ev.FenceRead(Fence(indexes=frozenset({"0"})), node.now))
    node.annotate("train", "main=12")
    node.settle()
    assert "GPU 0 is unhealthy and gives no more memory" in node.verdict("train")
    assert node.share("train") == 10
    node.annotate("train", "main=4")
    node.settle()
    assert node.share("train") == 4


def test_a_share_of_several_gpus_changes_evenly():
    node = ResizingNode(gpus=2)
    pod = pod_json("wide", {MEM: 8}, labels={"aliyun.com/gpu-count": "2"})
    node.run(pod)
    node.held["wide", "main"] = unit_ids(0, MC, *range(4)) | unit_ids(1, MC, *range(4))
    node.read()
    node.annotate("wide", "main=13")
    assert "cannot be spread evenly over the 2 GPUs" in node.verdict("wide")
    node.annotate("wide", "main=12")
    node.settle()
    assert node.share("wide", gpu_index=0) == node.share("wide", gpu_index=1) == 6
    assert (node.offer_of(0), node.offer_of(1)) == (14, 14)


def test_one_container_of_a_pod_can_give_what_another_one_gets():
    node = ResizingNode(pod_json("two", {MEM: 8}, {MEM: 8}))
    node.annotate("two", "main=4")
    node.settle()
    assert (node.share("two"), node.share("two", "main-1")) == (4, 8)
    node.annotate("two", "main=4,main-1=12")
    node.settle()
    assert "0 GiB that no pod holds" in node.verdict("two"), "kubelet's units stay with the container that has them"


def test_what_a_container_gives_up_is_lowered_before_another_one_rises():
    node = ResizingNode(pod_json("two", {MEM: 6}, {MEM: 6}))
    node.annotate("two", "main=10")
    node.settle()
    node.is_slow = True
    node.annotate("two", "main-1=10")
    node.settle()
    assert (node.share("two"), node.share("two", "main-1")) == (6, 6)
    node.is_slow = False
    node.follow()
    node.settle()
    assert (node.share("two"), node.share("two", "main-1")) == (6, 10)
    assert node.offered == 12


def test_an_init_container_does_not_count_twice():
    node = ResizingNode(trainer())
    entries = (
        CheckpointEntry("uid-train", "init-0", MEM, unit_ids(0, MC, *range(10))),
        CheckpointEntry("uid-train", "main", MEM, unit_ids(0, MC, *range(8))),
    )
    node.annotate("train", "main=4")
    node.settle()
    held = (holding("train", unit_ids(0, MC, *range(8))),)
    node.send(ev.HoldingsRead(held, node.now, node.now, entries))
    assert node.total("train") == 10, "the init container may run again"
    assert node.share("train") == 4


def test_refusals_do_not_repeat_with_each_pod_that_comes_and_goes():
    node = ResizingNode(trainer())
    node.run(pod_json("other", {MEM: 6}), first=8)
    node.annotate("train", "main=14")
    events = len(node.announcements)
    for units in (5, 4):
        node.held["other", "main"] = unit_ids(0, MC, *range(8, 8 + units))
        node.read()
    assert len(node.announcements) == events


def test_a_node_without_resizes_keeps_its_state():
    node = ResizingNode(trainer())
    before = node.state
    after, _ = step(before, ev.Tick(node.now))
    assert after.resizes is before.resizes
    assert after.advertised is before.advertised


def test_listed_ids_are_those_of_the_blocks():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    (block,) = node.state.advertised.lists[MEM]
    assert len(set(ids_of(block))) == block.listed == 16
    assert block.healthy_units == 12
