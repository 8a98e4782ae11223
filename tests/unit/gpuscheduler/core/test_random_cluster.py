"""Random lives of a small cluster: whatever comes in whatever order, no GPU is given beyond what it has.

The machine plays API server, kube-scheduler and watch. The watch shows each object's changes in order, but late, and of
different objects in any order. The scheduler may crash at any moment and read everything again.
"""

from collections import Counter, deque
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from gpuscheduler.core.calls import BindWrite
from gpuscheduler.core.pod_facts import WHOLE, pod_facts
from gpuscheduler.core.scheduling import CONFIRMED_S, RESERVED_S, REST_LIMIT_S, BindOutcome, Scheduling
from tests.unit.gpuscheduler.core.build import LeastFree, container, lives, pod_object, shared_node, whole_node

WALL_NS = 1_800_000_000 * 10**9
LAG_S = 30.0
"""The watch is never further behind: beyond that, the scheduler answers no call."""
SHARES = ("n1", "n2", "n3")
NODES = {
    "n1": lambda: shared_node("n1", gpus=2, memory=10, most_pods=4),
    "n2": lambda: shared_node("n2", gpus=3, memory=6),
    "n3": lambda: shared_node("n3", gpus=2, memory=8, core=100, core_step=5),
    "n4": lambda: whole_node("n4", gpus=4),
}
CAPACITY = {name: {gpu.minor: gpu for gpu in made().gpus.gpus} for name, made in NODES.items()}
MOST_PODS = {name: made().gpus.most_pods for name, made in NODES.items()}

shapes = st.one_of(
    st.integers(1, 10).map(lambda units: [container(mem=units)]),
    st.tuples(st.integers(1, 8), st.integers(1, 20)).map(lambda both: [container(mem=both[0], core=5 * both[1])]),
    st.lists(st.integers(1, 6), min_size=2, max_size=4).map(
        lambda units: [container(f"c{n}", mem=one) for n, one in enumerate(units)]
    ),
    st.integers(1, 4).map(lambda gpus: [container(whole=gpus)]),
)


class Cluster(RuleBasedStateMachine):
    pods = Bundle("pods")

    def __init__(self):
        super().__init__()
        self.now, self.ticked, self.created = 0.0, -1.0, 0
        self.server = {}
        self.nodes = {name: made() for name, made in NODES.items()}
        self.unseen = {}
        self.called = {}

    @initialize()
    def start(self):
        self.scheduling = Scheduling(LeastFree())
        for node in self.nodes.values():
            self.scheduling.node_seen(node)
        for made in self.server.values():
            self.scheduling.pod_seen(pod_facts(made), self.now)
        self.scheduling.synced(self.now)

    @rule(target=pods, containers=shapes, gpu_count=st.sampled_from([None, None, None, 2]), priority=st.integers(0, 3))
    def create(self, containers, gpu_count, priority):
        self.created += 1
        uid = f"uid-{self.created:05}"
        made = pod_object(None, *containers, uid=uid, gpu_count=gpu_count, priority=priority)
        self.server[uid] = made
        self.changed(uid)
        return uid

    @rule(uid=pods, data=st.data())
    def schedule(self, uid, data):
        """kube-scheduler asks, with any part of the nodes, and binds a while later.

        Like this scheduler, it may not have seen yet that the pod is bound.
        """
        made = self.server.get(uid)
        if made is None or ("nodeName" in made["spec"] and uid not in self.unseen):
            return
        made = made | {"spec": {key: value for key, value in made["spec"].items() if key != "nodeName"}}
        names = data.draw(st.lists(st.sampled_from(sorted(NODES)), min_size=1, unique=True))
        answer = self.scheduling.filter(pod_facts(made), names, self.now)
        assert set(answer.nodes) <= set(names)
        assert answer.error or answer.nodes or answer.failed.keys() | answer.unresolvable.keys() == set(names)
        self.called.pop(uid, None)
        if answer.nodes:
            self.called[uid] = answer.nodes[0]

    @rule(
        uid=pods, fate=st.sampled_from(["bound", "bound", "bound", "refused", "lost", "written and lost", "elsewhere"])
    )
    def bind(self, uid, fate):
        name = self.called.pop(uid, None)
        if name is None:
            return
        if fate == "elsewhere":  # a late call of a former leader
            name = sorted(NODES)[len(uid) % len(NODES)]
        write = self.scheduling.bind(uid, name, self.now, WALL_NS)
        if not isinstance(write, BindWrite):
            return
        made = self.server.get(uid)
        there = made["spec"].get("nodeName") if made else None
        written = made is not None and fate not in ("refused", "lost") and there is None
        if written:
            made["metadata"]["annotations"] = dict(write.annotations)
            made["spec"]["nodeName"] = write.node
            self.changed(uid)
        outcome = BindOutcome.BOUND if written or there == write.node else BindOutcome.REFUSED
        self.scheduling.bound(uid, BindOutcome.UNKNOWN if "lost" in fate else outcome)

    @rule(asked=st.lists(shapes, min_size=2, max_size=8), data=st.data())
    def burst(self, asked, data):
        """Many pods are filtered one after the other, and bound at the same time."""
        uids = [self.create(containers, None, 0) for containers in asked]
        for uid in uids:
            answer = self.scheduling.filter(pod_facts(self.server[uid]), sorted(NODES), self.now)
            if answer.nodes:
                self.called[uid] = answer.nodes[0]
        for uid in data.draw(st.permutations(uids)):
            self.bind(uid, "bound")

    @rule(uid=pods, end=st.sampled_from(["Succeeded", "Failed"]))
    def end(self, uid, end):
        """A pod ends; one that ends as failed was refused by the agent."""
        made = self.server.get(uid)
        if made and "nodeName" in made["spec"]:
            made["status"] = {"phase": end, **({"reason": "UnexpectedAdmissionError"} if end == "Failed" else {})}
            self.changed(uid)

    @rule(uid=consumes(pods))
    def delete(self, uid):
        if self.server.pop(uid, None):
            self.called.pop(uid, None)
            self.changed(uid)

    @rule(data=st.data(), share=st.floats(0, 1))
    def watch(self, data, share):
        """The watch shows a part of the changes: of each object in order."""
        for uid in data.draw(st.permutations(sorted(self.unseen))):
            for _ in range(max(1, round(share * len(self.unseen[uid])))):
                self.show(uid)

    @rule(seconds=st.sampled_from([0.1, 5.0, LAG_S]))
    def wait(self, seconds):
        self.now += seconds
        for uid, changes in list(self.unseen.items()):
            while changes and changes[0][0] < self.now - LAG_S + 1:
                self.show(uid)
        self.ticked = self.now
        self.scheduling.tick(self.now)

    @rule(name=st.sampled_from(sorted(NODES)))
    def node_returns(self, name):
        self.scheduling.node_gone(name)
        self.scheduling.node_seen(self.nodes[name])

    @rule(name=st.sampled_from(sorted(NODES)), unusable=st.sets(st.integers(0, 3)))
    def gpus_change(self, name, unusable):
        """GPUs become unhealthy, fenced, or held under another mode, and come back."""
        facts = NODES[name]()
        gpus = tuple(replace(gpu, usable=gpu.minor not in unusable) for gpu in facts.gpus.gpus)
        self.nodes[name] = replace(facts, gpus=replace(facts.gpus, gpus=gpus))
        self.scheduling.node_seen(self.nodes[name])

    @rule()
    def crash(self):
        self.start()
        self.called.clear()
        self.unseen.clear()
        used = {name: [node.free, node.places] for name, node in self.scheduling.usage.nodes.items()}
        again = Scheduling(LeastFree())
        for made in reversed(self.server.values()):
            again.pod_seen(pod_facts(made), self.now)
        for node in self.nodes.values():
            again.node_seen(node)
        assert {name: [node.free, node.places] for name, node in again.usage.nodes.items()} == used

    def changed(self, uid):
        made = self.server.get(uid)
        self.unseen.setdefault(uid, deque()).append((self.now, pod_facts(made) if made else None))

    def show(self, uid):
        _, facts = self.unseen[uid].popleft()
        if not self.unseen[uid]:
            del self.unseen[uid]
        if facts is None:
            self.scheduling.pod_gone(uid, self.now)
        else:
            self.scheduling.pod_seen(facts, self.now)

    @invariant()
    def no_gpu_is_given_beyond_what_it_has(self):
        """Neither to pods that are bound nor to those for which it is reserved."""
        memory, core, whole, pods = Counter(), Counter(), Counter(), Counter()
        for name, used in self.given():
            for minor, amounts in used:
                gpu = name, minor
                if amounts == WHOLE:
                    whole[gpu] += 1
                else:
                    memory[gpu] += amounts.memory
                    core[gpu] += amounts.core
                    pods[gpu] += 1
        for (name, minor), units in memory.items():
            gpu = CAPACITY[name][minor]
            assert units <= gpu.memory
            assert core[name, minor] <= gpu.core
            assert pods[name, minor] <= MOST_PODS[name]
        assert all(count == 1 for count in whole.values())
        assert not whole.keys() & memory.keys()

    def given(self):
        """Node and GPUs of every pod that is bound on the server, and of every reservation for one that is not."""
        for made in self.server.values():
            facts = pod_facts(made)
            if facts.node and not facts.ended:
                assert facts.used is not None, "a pod is bound without a decision"
                yield facts.node, facts.used
        for uid, one in self.reserved():
            if "nodeName" not in self.server.get(uid, {"spec": {}})["spec"]:
                for name, choice in one.choices.items():
                    yield name, choice.used

    def reserved(self):
        uids = (f"uid-{n:05}" for n in range(1, self.created + 1))
        found = [(uid, one) for uid in uids if (one := self.scheduling.reservations.get(uid))]
        assert len(found) == len(self.scheduling.reservations)
        return found

    @invariant()
    def reservations_end(self):
        """Each is for a pod that waits as far as the scheduler can see, and is over in time."""
        for uid, one in self.reserved():
            assert self.ticked < one.until <= self.now + (CONFIRMED_S if one.sent else RESERVED_S)
            seen_bound = uid in self.server and "nodeName" in self.server[uid]["spec"]
            assert uid in self.unseen or (uid in self.server and not seen_bound)

    def teardown(self):
        """Events stop: kube-scheduler goes on to try, and every pod that fits runs."""
        if not hasattr(self, "scheduling"):
            return
        for uid in list(self.unseen):
            while uid in self.unseen:
                self.show(uid)
        for _ in range(2):
            self.wait(2 * REST_LIMIT_S)
            for uid in self.waiting():
                answer = self.scheduling.filter(pod_facts(self.server[uid]), sorted(NODES), self.now)
                if answer.nodes:
                    self.called[uid] = answer.nodes[0]
                    self.bind(uid, "bound")
                    self.show(uid)
        self.start()
        for uid in self.waiting():
            answer = self.scheduling.filter(pod_facts(self.server[uid]), sorted(NODES), self.now)
            assert not answer.nodes, "a pod that fits does not run"

    def waiting(self):
        return sorted(uid for uid, made in self.server.items() if "nodeName" not in made["spec"])


class TestCluster(Cluster.TestCase):
    settings = lives(steps=40)
