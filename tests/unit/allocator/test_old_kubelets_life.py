"""Kubelets before 1.19: what the agent keeps of exchanges over the life of pods, and after an upgrade of kubelet."""

from gpuagent.domain import events as ev
from gpuagent.domain.pods.exchange import key, read
from gpuagent.domain.pods.pod import CheckpointEntry, Holding
from gpuagent.domain.sharing.mode import Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import MEM, NodeUnderTest, box, node_json, owner, pod_json, uuid
from tests.unit.domain.scheduling.test_decision import v1


def version(text):
    return {"status": {"nodeInfo": {"kubeletVersion": text}}}


class OldKubelet:
    """Picks ids itself, and keeps the agent's answers in its checkpoint."""

    def __init__(self):
        self.node = NodeUnderTest(Mode.SHARE).inventory(*box(2))
        self.node.send(ev.NodeSeen(node_json("share") | version("v1.18.20"), self.node.now)).holdings()
        self.fake = FakeKubelet(self.node)
        self.fake.allocations.answers_queries = False
        self.held = {}

    def allocate(self, name, size, skipping=0):
        used = {i for _, ids, _ in self.held.values() for i in ids}
        ids = frozenset([i for i in sorted(self.node.ids(MEM)) if i not in used][skipping:][:size])
        share = self.fake.allocator.allocate(MEM, ids)
        text = share.annotations.get(key(MEM))
        self.held[name] = (f"uid-{name}", ids, read(text, ids) if text else {})
        return share

    def read(self):
        holdings = tuple(Holding(owner(name), MEM, ids) for name, (_, ids, _) in self.held.items())
        kept = tuple(CheckpointEntry(uid, "main", MEM, ids, units) for uid, ids, units in self.held.values())
        self.node.send(ev.HoldingsRead(holdings, self.node.now, self.node.now, kept))
        self.fake.publish()


def test_ids_stand_for_themselves_once_an_upgraded_kubelet_holds_no_exchanged_ones():
    kubelet = OldKubelet()
    kubelet.fake.pods(pod_json("a", {MEM: 2}))
    kubelet.allocate("a", 2)
    kubelet.read()
    kubelet.held.clear()
    kubelet.node.now += 200
    kubelet.fake.pods(pod_json("b", {MEM: 4}))
    kubelet.node.send(ev.NodeSeen(node_json("share") | version("v1.36.3"), kubelet.node.now))
    kubelet.read()
    ids = kubelet.fake.prefer(MEM, 4)
    assert key(MEM) not in kubelet.fake.allocator.allocate(MEM, ids).annotations
    kubelet.fake.publish()
    more = frozenset(sorted(kubelet.node.ids(MEM) - ids)[:2])
    assert key(MEM) not in kubelet.fake.allocator.allocate(MEM, more).annotations


def test_a_pod_that_ended_unseen_is_not_the_oldest_that_waits():
    kubelet = OldKubelet()
    one, none = v1(1, 2), v1(0, 2)
    kubelet.fake.pods(pod_json("a", {MEM: 2}, annotations=one))
    assert [gpu.uuid for gpu in kubelet.allocate("a", 2).gpus] == [uuid(1)]
    kubelet.read()
    kubelet.node.now += 40
    a = pod_json("a", {MEM: 2}, annotations=one)
    started = {"name": "main", "containerID": f"containerd://{'a' * 64}"}
    a["status"] = {"phase": "Running", "containerStatuses": [started]}
    del kubelet.held["a"]  # it has ended, and kubelet freed it for another pod; the watch is a moment late
    kubelet.read()
    kubelet.fake.pods(a, pod_json("b", {MEM: 2}, annotations=none))
    assert [gpu.uuid for gpu in kubelet.allocate("b", 2, skipping=5).gpus] == [uuid(0)]


def test_ids_are_counts_while_a_container_has_one_that_was_exchanged_a_moment_ago(monkeypatch):
    """The last other exchange ended while the agent answered."""
    kubelet = OldKubelet()
    kubelet.fake.pods(pod_json("a", {MEM: 2}))
    kubelet.allocate("a", 2)
    kubelet.read()
    kubelet.node.now += 200
    kubelet.fake.pods(pod_json("a", {MEM: 2}), pod_json("b", {MEM: 1}), pod_json("c", {MEM: 1}))
    kubelet.node.send(ev.NodeSeen(node_json("share") | version("v1.36.3"), kubelet.node.now))
    kubelet.read()

    def prepare(share):
        kubelet.held.clear()
        kubelet.read()
        return share

    monkeypatch.setattr(kubelet.fake.isolation, "prepare", prepare)
    kubelet.allocate("b", 1, skipping=4)
    monkeypatch.undo()
    unit = next(iter(kubelet.held["b"][2].values()))
    share = kubelet.fake.allocator.allocate(MEM, [unit])
    assert unit not in read(share.annotations.get(key(MEM), ""), [unit]).values()


def test_a_static_pod_that_runs_waits_for_nothing_after_a_restart_of_the_agent():
    """The checkpoint has another UID for it than the API server."""
    kubelet = OldKubelet()
    static = pod_json("static", {MEM: 2}, annotations={"kubernetes.io/config.mirror": "x"})
    node = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": True}
    static["metadata"]["ownerReferences"] = [node]
    started = {"name": "main", "containerID": f"containerd://{'a' * 64}"}
    static["status"] = {"phase": "Running", "containerStatuses": [started]}
    units = sorted(kubelet.node.ids(MEM))[:2]
    kubelet.held["static"] = ("uid of the file", frozenset(units), dict(zip(units, units, strict=True)))
    kubelet.fake.pods(static)
    kubelet.read()
    kubelet.fake.pods(static, pod_json("b", {MEM: 2}, annotations=v1(1, 2)))
    assert [gpu.uuid for gpu in kubelet.allocate("b", 2).gpus] == [uuid(1)]


def test_a_repeated_allocate_for_a_running_pod_does_not_make_it_the_oldest_waiting_pod():
    """The agent has restarted. The annotations of the two pods name different GPUs."""
    kubelet = OldKubelet()
    older = pod_json("a", {MEM: 2}, annotations=v1(1, 2))
    kubelet.fake.pods(older)
    kubelet.allocate("a", 2)
    kubelet.node.now += 1
    kubelet.read()
    kubelet.fake = FakeKubelet(kubelet.node, kubelet.fake.allocations)
    kubelet.fake.allocator.allocate(MEM, kubelet.held["a"][1])
    kubelet.fake.pods(older, pod_json("b", {MEM: 2}, annotations=v1(0, 2)))
    assert [gpu.uuid for gpu in kubelet.allocate("b", 2).gpus] == [uuid(0)]
