"""Plain Jobs with one pair of labels: a sweep makes many jobs, a launcher with several Jobs makes one."""

import random

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import BindWrite, CommitJob
from gpuscheduler.core.gangs.batch_job import read_batch_job
from gpuscheduler.core.gangs.gang_object import ObjectKey
from gpuscheduler.core.gangs.gang_objects import GangObjects
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.jobs.commit import committed_places
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import pod_object, whole_node
from tests.unit.gpuscheduler.core.gangs.test_gang_objects import GangUnderTest
from tests.unit.gpuscheduler.core.gangs.workloads import batch_job, batch_pod, owned

JOBS = ("trial-1", "trial-2", "trial-3", "trial-4")
MEMBERS = 3


@pytest.fixture
def cluster():
    return GangUnderTest(whole_node("n1", gpus=4), whole_node("n2", gpus=4))


def gang(made, *jobs):
    """Title of a pod's gang and its number of pods, when these Jobs were seen."""
    known = GangObjects({})
    for found in jobs:
        known.seen(read_batch_job(found))
    facts = known.resolved(pod_facts(made))
    return facts.job.key_in("default").title, facts.job.pods


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"parallelism": 2}, "job sweep/trial-1"),
        ({"parallelism": 3}, "job sweep/trial-1"),
        ({"parallelism": 2, "completions": 9}, "job sweep/trial-1"),
        ({"parallelism": 3, "completions": 1}, "job sweep"),
        ({"parallelism": 1}, "job sweep"),
        ({}, "job sweep"),
        ({"parallelism": 0}, "job sweep"),
        ({"parallelism": "many"}, "job sweep"),
    ],
)
def test_a_job_that_runs_as_many_pods_as_the_label_says_is_a_job_of_its_own(spec, expected):
    found = batch_job("trial-1")
    found["spec"] = spec
    assert gang(batch_pod("a", "trial-1"), found) == (expected, 2)


def test_kubernetes_before_127_writes_other_labels():
    made = batch_pod("a", "trial-1")
    for name in ("job-name", "controller-uid"):
        del made["metadata"]["labels"][f"batch.kubernetes.io/{name}"]
    assert gang(made, batch_job("trial-1")) == ("job sweep/trial-1", 2)


def test_a_label_that_names_the_job_itself_needs_no_second_name():
    assert gang(batch_pod("a", "train", label="train"), batch_job("train")) == ("job train", 2)


@pytest.mark.parametrize("number", ["1", "x"])
def test_a_job_is_not_waited_for_where_its_number_of_pods_does_not_matter(number):
    assert pod_facts(batch_pod("a", "trial-1", replicas=number)).gang_ref is None


def test_jobs_of_other_projects_are_told_by_labels_alone():
    """Volcano's kind has the same name, and no object of batch/v1."""
    made = owned(pod_object(labels={JOB_LABEL: "sweep", REPLICAS_LABEL: "2"}, whole=1), "Job")
    assert gang(made) == ("job sweep", 2)
    made = batch_pod("a", "trial-1")
    assert gang(owned(made, "ReplicaSet")) == ("job sweep", 2)


def test_interleaved_pods_of_two_jobs_of_one_template_make_no_mixed_job(cluster):
    """There is room for one Job. Were the first pod of each one job, neither Job would have both of its pods."""
    for name in ("left", "right"):
        cluster.show(read_batch_job(batch_job(name)))
    for name, job in (("a", "left"), ("c", "right"), ("b", "left"), ("d", "right")):
        cluster.see(batch_pod(name, job, whole=4))
    writes = cluster.run("a", "b")
    assert {write.node for write in writes.values()} == {"n1", "n2"}
    assert not cluster.filter("c").nodes
    assert not cluster.filter("d").nodes


def test_several_jobs_that_make_the_number_together_are_one(cluster):
    """A launcher makes a Job for the master and one for the workers."""
    cluster.show(read_batch_job(batch_job("master", 1)))
    cluster.show(read_batch_job(batch_job("workers", 2)))
    cluster.see(batch_pod("w0", "workers", replicas=3, label="launch", whole=2))
    cluster.see(batch_pod("w1", "workers", replicas=3, label="launch", whole=2))
    assert cluster.why("w0") == "node(s) not given to job launch: 2 of 3 pods are there"
    cluster.see(batch_pod("m", "master", replicas=3, label="launch", whole=2))
    assert len(cluster.run("m", "w0", "w1")) == 3


def test_pods_wait_until_their_job_is_seen(cluster):
    for name in ("a", "b"):
        cluster.see(batch_pod(name, "trial-1", whole=4))
    assert cluster.why("a") == "node(s) not given to Job trial-1: its object has not been seen"
    assert cluster.reserved() == 0
    cluster.show(read_batch_job(batch_job("trial-1")))
    assert len(cluster.run("a", "b")) == 2


def test_a_pod_without_gpus_of_another_scheduler_counts_although_its_job_is_seen_later(cluster):
    launcher = batch_pod("l", "launch", replicas=2, whole=1)
    launcher["spec"]["containers"] = [{"name": "c"}]
    launcher["spec"]["schedulerName"] = "default-scheduler"
    cluster.pods["l"] = launcher
    cluster.scheduling.pod_seen(pod_facts(launcher), cluster.now)
    cluster.see(batch_pod("w", "launch", whole=4))
    cluster.show(read_batch_job(batch_job("launch")))
    assert cluster.filter("w").nodes


def test_jobs_that_cannot_be_read_are_told_by_labels_alone(cluster):
    cluster.scheduling.gangs_readable(ObjectKind.BATCH_JOB, "gpuscheduler may not list and watch jobs.batch")
    for name, job in (("a", "left"), ("b", "right")):
        cluster.see(batch_pod(name, job, whole=4))
    assert len(cluster.run("a", "b")) == 2


def test_a_job_that_is_made_again_does_not_join_the_former_one(cluster):
    cluster.show(read_batch_job(batch_job("trial-1")))
    for name in ("a", "b"):
        cluster.see(batch_pod(name, "trial-1", whole=2))
    cluster.run("a", "b")
    again = batch_job("trial-1")
    again["metadata"]["uid"] = "uid-again"
    cluster.show(read_batch_job(again))
    later = batch_pod("c", "trial-1", whole=2)
    later["metadata"]["ownerReferences"][0]["uid"] = "uid-again"
    cluster.see(later)
    assert not cluster.filter("c").nodes


class Sweep(GangUnderTest):
    """Jobs of one template on nodes that have room for two of them. Their pods and objects come in any order."""

    def __init__(self, seed):
        super().__init__(whole_node("n1", gpus=4), whole_node("n2", gpus=2))
        self.chance = random.Random(seed)
        self.made = 0

    def act(self):
        for action in self.scheduling.actions():
            if isinstance(action, CommitJob):
                self.check_start(action)
                self.pods[action.pod.name]["metadata"]["annotations"]["gpuagent.io/gang-commit"] = action.text
                self.scheduling.committed(action.job, self.now, written=True)
                self.act()

    def check_start(self, action):
        """All pods of a plan are of one Job. It is the whole Job, unless that runs already and has lost pods."""
        planned = committed_places(action.text)
        jobs = {job_of(self.pods[uid]) for uid in planned}
        assert len(jobs) == 1, f"pods of {jobs} start as one job"
        running = [uid for uid in self.members(*jobs) if "nodeName" in self.pods[uid]["spec"]]
        assert running or len(planned) == MEMBERS

    def members(self, job):
        return [name for name, made in self.pods.items() if job_of(made) == job]

    def step(self):
        self.now += self.chance.choice([0.0, 0.1, 1.0, 5.0])
        job = self.chance.choice(JOBS)
        events = (self.create, self.create, self.remove, self.show_job, self.take_away, self.place, self.place)
        self.chance.choice(events)(job)
        self.settle()

    def create(self, job):
        if len(self.members(job)) < MEMBERS:
            self.made += 1
            self.see(batch_pod(f"p{self.made}", job, replicas=MEMBERS, whole=1))

    def remove(self, job):
        members = self.members(job)
        if members and self.chance.random() < 0.5:
            self.forget(self.chance.choice(members))

    def forget(self, name):
        del self.pods[name]
        self.scheduling.pod_gone(name, self.now)
        self.act()

    def show_job(self, job):
        self.scheduling.gang_seen(read_batch_job(batch_job(job, MEMBERS)))

    def take_away(self, job):
        if self.chance.random() < 0.2:
            self.scheduling.gang_gone(ObjectKey(ObjectKind.BATCH_JOB, "default", job), f"uid-{job}")

    def place(self, _job):
        """kube-scheduler tries all pods that wait."""
        waiting = [name for name, made in self.pods.items() if "nodeName" not in made["spec"]]
        self.chance.shuffle(waiting)
        on = {}
        for name in waiting:
            nodes = self.filter(name).nodes
            if nodes:
                on[name] = nodes[0]
        for _ in range(2):
            for name, node in on.items():
                if "nodeName" not in self.pods[name]["spec"]:
                    answer = self.bind(name, node)
                    if isinstance(answer, BindWrite):
                        self.write(name, answer)


def job_of(made):
    return made["metadata"]["labels"]["batch.kubernetes.io/job-name"]


@pytest.mark.parametrize("seed", range(20))
def test_a_sweep_starts_whole_jobs_only(seed):
    cluster = Sweep(seed)
    for _ in range(300):
        cluster.step()
    # All but one Job go, and that one runs.
    for job in JOBS[1:]:
        for name in cluster.members(job):
            cluster.forget(name)
    cluster.show_job(JOBS[0])
    while len(cluster.members(JOBS[0])) < MEMBERS:
        cluster.create(JOBS[0])
    for _ in range(60):
        cluster.now += 5.0
        cluster.settle()
        cluster.place(JOBS[0])
    assert all("nodeName" in cluster.pods[name]["spec"] for name in cluster.members(JOBS[0])), "it is stuck"
    assert cluster.reserved() == 0
