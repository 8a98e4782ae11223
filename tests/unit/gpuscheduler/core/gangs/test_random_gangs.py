"""Random lives of PodGroups and their pods: no group starts in part, nothing is held for one that waits, none is stuck."""

import random

import pytest

from gpuscheduler.core.calls import BindRefused, BindWait, BindWrite, CommitJob
from gpuscheduler.core.gangs.gang_object import ObjectKey
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.pod_group import read_pod_group
from gpuscheduler.core.jobs.commit import committed_places
from tests.unit.gpuscheduler.core.api_objects import pod_object, whole_node
from tests.unit.gpuscheduler.core.gangs.test_gang_objects import GangUnderTest
from tests.unit.gpuscheduler.core.gangs.workloads import pod_group

STEPS = 300
GROUPS = ("red", "blue")
MOST_MEMBERS = 5
GPUS = 4
GONE = 0


class RandomGroups(GangUnderTest):
    """Two groups on three nodes. Each has pods that come and go, and an object that changes and goes."""

    def __init__(self, seed):
        super().__init__(*(whole_node(f"n{n}", gpus=GPUS) for n in range(3)))
        self.chance = random.Random(seed)
        self.minimum = dict.fromkeys(GROUPS, GONE)
        self.made = 0
        self.starts = 0

    def members(self, group):
        return {
            name: made
            for name, made in self.pods.items()
            if made["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == group
        }

    def act(self):
        for action in self.scheduling.actions():
            if isinstance(action, CommitJob):
                self.check_start(action)
                self.pods[action.pod.name]["metadata"]["annotations"]["gpuagent.io/gang-commit"] = action.text
                self.scheduling.committed(action.job, self.now, written=True)
                self.act()

    def check_start(self, action):
        """A group starts when its object has been seen, with at least the pods that the object says."""
        group = action.job.name
        members = self.members(group)
        is_running = any("nodeName" in made["spec"] for made in members.values())
        self.starts += not is_running
        if is_running:
            return
        assert self.minimum[group] != GONE
        assert len(members) >= self.minimum[group]
        assert len(committed_places(action.text)) >= self.minimum[group]

    def step(self):
        self.now += self.chance.choice([0.0, 0.1, 1.0, 5.0])
        group = self.chance.choice(GROUPS)
        events = (
            self.create,
            self.create,
            self.remove,
            self.change,
            self.take_away,
            self.place,
            self.place,
            self.place,
        )
        self.chance.choice(events)(group)
        self.settle()
        self.check_held()

    def create(self, group):
        if len(self.members(group)) >= MOST_MEMBERS:
            return
        self.made += 1
        name = f"{group}-{self.made}"
        labels = {"scheduling.x-k8s.io/pod-group": group}
        whole = self.chance.randint(1, 3)
        self.see(pod_object(name, uid=name, labels=labels, whole=whole, owner=f"owner-{group}"))

    def remove(self, group):
        members = self.members(group)
        if members:
            name = self.chance.choice(sorted(members))
            del self.pods[name]
            self.scheduling.pod_gone(name, self.now)
            self.act()

    def change(self, group):
        self.minimum[group] = self.chance.randint(1, MOST_MEMBERS - 1)
        self.scheduling.gang_seen(read_pod_group(pod_group(self.minimum[group], name=group, uid=group)))

    def take_away(self, group):
        if self.chance.random() < 0.3:
            self.minimum[group] = GONE
            self.scheduling.gang_gone(ObjectKey(ObjectKind.POD_GROUP, "default", group), group)

    def place(self, group):
        """kube-scheduler tries all pods of a group that wait."""
        waiting = [name for name, made in self.members(group).items() if "nodeName" not in made["spec"]]
        self.chance.shuffle(waiting)
        on = {}
        for name in waiting:
            nodes = self.filter(name).nodes
            if nodes:
                on[name] = nodes[0]
        for _ in range(2):
            for name, node in on.items():
                if "nodeName" in self.pods[name]["spec"]:
                    continue
                answer = self.bind(name, node)
                assert isinstance(answer, (BindWait, BindRefused, BindWrite))
                if isinstance(answer, BindWrite):
                    self.write(name, answer)

    def check_held(self):
        """Reservations are only for groups that have all of their pods, or run."""
        held = [made for uid, made in self.pods.items() if self.scheduling.reservations.get(uid)]
        for made in held:
            group = made["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
            members = self.members(group)
            is_running = any("nodeName" in made["spec"] for made in members.values())
            is_whole = self.minimum[group] != GONE and len(members) >= self.minimum[group]
            assert is_running or is_whole, f"{group} holds GPUs and waits"

    def end(self):
        """Everything else goes, and a group that has its pods starts."""
        for group in GROUPS:
            others = self.members(GROUPS[1 - GROUPS.index(group)])
            for name in others:
                del self.pods[name]
                self.scheduling.pod_gone(name, self.now)
            self.minimum[group] = 1
            while len(self.members(group)) < 2:
                self.create(group)
            for name in sorted(self.members(group))[2:]:
                del self.pods[name]
                self.scheduling.pod_gone(name, self.now)
            self.minimum[group] = 2
            self.scheduling.gang_seen(read_pod_group(pod_group(2, name=group, uid=group)))
            for _ in range(60):
                self.now += 5.0
                self.settle()
                self.place(group)
            assert all("nodeName" in made["spec"] for made in self.members(group).values()), "it is stuck"


@pytest.mark.parametrize("seed", range(20))
def test_groups_start_whole_or_wait_and_hold_nothing(seed):
    cluster = RandomGroups(seed)
    for _ in range(STEPS):
        cluster.step()
    cluster.end()
    assert cluster.starts
    for name in list(cluster.pods):
        del cluster.pods[name]
        cluster.scheduling.pod_gone(name, cluster.now)
    assert cluster.reserved() == 0
