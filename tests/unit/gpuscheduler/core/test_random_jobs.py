"""Random jobs on a small cluster: no job starts in part, none holds GPUs while it waits, and every one that fits runs."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.calls import BindWait, BindWrite, CommitJob
from gpuscheduler.core.jobs.plan import plan
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, WHOLE, pod_facts
from gpuscheduler.core.scheduling import BindOutcome, Scheduling
from tests.unit.gpuscheduler.core.build import LeastFree, lives, pod_object, shared_node, whole_node

NODES = {
    "n1": whole_node("n1", gpus=4),
    "n2": whole_node("n2", gpus=4),
    "n3": shared_node("n3", gpus=2, memory=8),
    "n4": shared_node("n4", gpus=1, memory=8),
}
jobs = st.tuples(
    st.integers(1, 4), st.one_of(st.builds(dict, whole=st.integers(1, 4)), st.builds(dict, mem=st.integers(1, 8)))
)


class RandomJobs(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.server = {}
        self.in_bind = {}
        self.created = 0
        self.touched = set()

    @initialize()
    def start(self):
        self.scheduling = Scheduling(LeastFree())
        self.in_bind.clear()
        for node in NODES.values():
            self.scheduling.node_seen(node)
        for made in self.server.values():
            self.scheduling.pod_seen(pod_facts(made), self.now)
        self.scheduling.synced(self.now)
        self.act()

    @rule()
    def crash(self):
        self.start()

    @rule(job=jobs, another=st.sampled_from([0, 0, 0, 1, 2]))
    def create(self, job, another):
        """A job comes; now and then it has the name of an earlier one, which may be there with another number of pods."""
        replicas, given = job
        self.created += 1
        name = f"j{max(1, self.created - another)}"
        if any(job_of(made) == name for made in self.server.values()):
            self.touched.add(name)
        labels = {JOB_LABEL: name, REPLICAS_LABEL: str(replicas)}
        for n in range(replicas):
            made = pod_object(uid=f"{self.created:04}-{n}", name=f"p{self.created}-{n}", labels=labels, **given)
            self.server[made["metadata"]["uid"]] = made
            self.show(made)

    @rule(data=st.data(), names=st.lists(st.sampled_from(sorted(NODES)), min_size=1, unique=True))
    def one_try(self, data, names):
        """kube-scheduler tries a pod, with the nodes that its own plugins leave."""
        if waiting := self.waiting():
            self.attempt(data.draw(st.sampled_from(waiting)), names)

    @rule(data=st.data())
    def many_tries(self, data):
        for uid in data.draw(st.permutations(self.waiting())):
            self.attempt(uid, sorted(NODES))

    @rule(data=st.data(), refused=st.booleans())
    def bindings(self, data, refused):
        """Binding calls go on in any order; the API server refuses the first one now and then."""
        self.poll(data.draw(st.permutations(sorted(self.in_bind))), refused=refused)

    @rule(data=st.data())
    def delete(self, data):
        if self.server:
            uid = data.draw(st.sampled_from(sorted(self.server)))
            self.touched.add(job_of(self.server.pop(uid)))
            self.in_bind.pop(uid, None)
            self.scheduling.pod_gone(uid, self.now)
            self.act()

    @rule(seconds=st.sampled_from([0.5, 5.0, 16.0]))
    def wait(self, seconds):
        self.now += seconds
        self.scheduling.tick(self.now)
        self.act()
        self.poll(sorted(self.in_bind))

    def waiting(self):
        bound = {uid for uid, made in self.server.items() if "nodeName" in made["spec"]}
        return sorted(self.server.keys() - bound - self.in_bind.keys())

    def attempt(self, uid, names):
        answer = self.scheduling.filter(pod_facts(self.server[uid]), names, self.now)
        self.act()
        if answer.nodes:
            self.in_bind[uid] = answer.nodes[0]

    def poll(self, uids, *, refused=False):
        for uid in (*uids, *uids):
            if uid not in self.in_bind:
                continue
            answer = self.scheduling.bind(uid, self.in_bind[uid], self.now, 1)
            self.act()
            if isinstance(answer, BindWait):
                continue
            del self.in_bind[uid]
            if isinstance(answer, BindWrite) and refused:
                refused = False
                self.scheduling.bound(uid, BindOutcome.REFUSED)
            elif isinstance(answer, BindWrite):
                made = self.server[uid]
                made["metadata"]["annotations"].update(answer.annotations)
                made["spec"]["nodeName"] = answer.node
                self.scheduling.bound(uid, BindOutcome.BOUND)
                self.show(made)

    def show(self, made):
        self.scheduling.pod_seen(pod_facts(made), self.now)
        self.act()

    def act(self):
        for action in self.scheduling.actions():
            if isinstance(action, CommitJob):
                made = self.server.get(action.uid)
                if made:
                    made["metadata"]["annotations"][COMMIT_ANNOTATION] = action.text
                self.scheduling.committed(action.job, self.now, written=made is not None)
                self.act()

    @invariant()
    def no_gpu_has_more_than_it_has(self):
        used = Counter()
        for made in self.server.values():
            facts = pod_facts(made)
            for minor, amounts in (facts.used or ()) if facts.node else ():
                used[facts.node, minor] += 1 if amounts == WHOLE else amounts.memory
        assert all(count <= (8 if name in ("n3", "n4") else 1) for (name, _), count in used.items())

    @invariant()
    def all_pods_of_a_job_hold_gpus_or_none(self):
        for members in self.jobs().values():
            unbound = [uid for uid, made in members if "nodeName" not in made["spec"]]
            kept = [uid for uid in unbound if self.scheduling.reservations.get(uid)]
            if len(unbound) == len(members) and job_of(members[0][1]) not in self.touched:
                assert not kept or len(kept) == len(members), "a job that has not started holds a part"

    def jobs(self):
        found = {}
        for uid, made in self.server.items():
            if made["metadata"]["labels"].get(REPLICAS_LABEL) != "1":
                found.setdefault(job_of(made), []).append((uid, made))
        return found

    def teardown(self):
        """Events stop: kube-scheduler goes on to try, and every job that fits runs."""
        if not hasattr(self, "scheduling"):
            return
        for _ in range(12):
            self.wait(5.0)
            for uid in self.waiting():
                self.attempt(uid, sorted(NODES))
            self.poll(sorted(self.in_bind))
        for job, members in self.jobs().items():
            pending = [pod_facts(made) for _, made in members if "nodeName" not in made["spec"]]
            numbers = {int(made["metadata"]["labels"][REPLICAS_LABEL]) for _, made in members}
            if len(pending) < len(members):
                assert not pending or (job in self.touched and not self.fits(pending)), "a part of a job runs"
            elif numbers == {len(members)}:
                assert not self.fits(pending), "a job that fits does not run"

    def fits(self, pending):
        return len(plan(pending, self.scheduling.usage.nodes, self.scheduling.links)) == len(pending)


def job_of(made):
    return made["metadata"]["labels"][JOB_LABEL]


class TestRandomJobs(RandomJobs.TestCase):
    settings = lives(steps=30)
