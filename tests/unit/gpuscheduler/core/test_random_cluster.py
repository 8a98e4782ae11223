"""Random lives of a small cluster: whatever comes in whatever order, the scheduler keeps its invariants.

The machine plays API server, kube-scheduler, watch and agents. The watch shows the changes of each object in order, but
late, and those of different objects in any order. Binding calls and writes take time, fail, or lose their answers. The
scheduler may crash at any moment and read everything again, or another replica may lead. Pods have gates, affinities
and spread constraints, come in two namespaces, and ask for CPU: kube-scheduler's own filters decide which nodes it
names. The invariants, checked in each step:

- I1 No GPU is bound or reserved beyond its units.
- I2 A job that has not started reserves GPUs for all of its pods, or for none.
- I3 No pod of a job is bound before the plan of all of them is written.
- I4 A reservation ends after 15 s (pods of a job), 30 s (other pods), or 60 s (a Binding was sent, a plan is written).
- I5 A reservation belongs to a pod that exists, is not bound, and has no scheduling gate of another controller.
- I6 What counts as used follows from the objects that the API server has, and the reservations.
- I7 When events stop, each pod and each job that fits is placed. A job that fits an empty cluster runs there. One that
  does not fit holds GPUs for a small part of the time.
- I9 Few pods are decided before kube-scheduler asks about them, each for a short time, and only if it may ask.
- I8 The agent reads the GPUs that the scheduler chose. It refuses none, unless the node changed without the scheduler.
"""

from collections import Counter, defaultdict, deque
from copy import deepcopy
from dataclasses import replace
from itertools import product

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import REJECTED
from gpuagent.domain.scheduling.decision import Decision, read
from gpuagent.domain.scheduling.node_gpus import NodeGpu, NodeGpus
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL, Kind
from gpuscheduler.core.bindings import CONFIRMED_S
from gpuscheduler.core.calls import BindOutcome, BindRefused, BindWait, CommitJob, Nominate, Nudge, Ungate
from gpuscheduler.core.choose_gpus import fit, keeps_rules
from gpuscheduler.core.decisions.decision_text import decision_annotations
from gpuscheduler.core.gpu_request import WHOLE, RequestKind
from gpuscheduler.core.jobs.commit import committed_places
from gpuscheduler.core.jobs.job import key_of
from gpuscheduler.core.jobs.places.plan import plan
from gpuscheduler.core.jobs.planning.start_plans import BARRIER_S, COMMITTED_S
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.ahead import AheadLimits
from gpuscheduler.core.single_pods.single_pods import RESERVED_S
from tests.unit.gpuscheduler.core.api_objects import LeastFree, container, node, pod_object
from tests.unit.gpuscheduler.core.random_rules import RULES, accepted, node_labels, put_rule

STEPS = 50
LIVES = max(20, settings.default.max_examples // STEPS)
"""2,000 lives with `make fuzz`. Some end early: `make random-cluster` counts the steps."""
LAG_S = 30.0
"""The watch is never further behind: beyond that, the scheduler answers no call."""
WRITE_S = 12.0
"""Longest time of a Binding, or of writing a plan, until its result is unknown."""
LATE_S = 5.0
"""The API server may carry out a Binding this long after its result was unknown."""
QUIET_S = 3600.0
MOST_HELD_S = QUIET_S / 2
"""How long GPUs may be reserved in that time. kube-scheduler names no node for some pods of a job while it has placed
others, for example where a node has CPU for two of three. So such a job is planned in vain again and again. The plans
of a namespace that lapse have GPUs for a fifth of the time, after some that follow each other more closely.
"""
MOST_ROUNDS = 2000
OURS = "gpu-scheduler"
GATE = "gpuagent.io/job"
AHEAD = AheadLimits(nodes=2, least_lead=0, most=3)
"""With these, the cluster counts as large, so that pods are decided ahead."""
FOREIGN_GATE = "queue.example/admission"
NAMES = ("n1", "n2", "n3", "n4")
OTHER_PLUGIN = "n2"
"""The node with another device plugin, which names GPUs in pods' annotations, and publishes nothing on its Node."""
NAMESPACES = ("one", "two")
"""Their pods, jobs and owners have equal names."""
JOB_NAMES = ("j1", "j2")
JOBS = tuple(product(NAMESPACES, JOB_NAMES))
PRIORITIES = {job: number for number, job in enumerate(JOBS)}
"""A job that waits keeps nodes from pods of lower priority."""
MBPS = [[0, 50, 10, 10], [50, 0, 10, 10], [10, 10, 0, 50], [10, 10, 50, 0]]

picks = st.integers(0, 99)
"""Chooses one of the objects that are there."""


def gpus_in_mode(mode, sizes, out, most_pods, known):
    """The GPUs of a node; those of size 0 are not published, as in MIG mode, those in `out` are not usable."""
    core = 100 if mode == "core_mem" else 0
    found = [
        NodeGpu(n, 0 if mode == "topology" else size, core, mode == "topology", n not in out)
        for n, size in enumerate(sizes)
        if size
    ]
    step = 5 if core else 1
    links = "links" if known and mode == "topology" and len(found) == len(MBPS) else ""
    return NodeGpus(tuple(found), most_pods=most_pods, core_step=step, both=bool(core), links=links)


gpus = st.builds(
    gpus_in_mode,
    mode=st.sampled_from(["share", "core_mem", "topology"]),
    sizes=st.lists(st.sampled_from([10, 8, 6, 0]), min_size=1, max_size=4),
    out=st.sets(st.integers(0, 3), max_size=2),
    most_pods=st.sampled_from([20, 4, 2]),
    known=st.booleans(),
)
SOUND = {
    "n1": gpus_in_mode("share", [10, 10], (), 4, False),
    "n2": gpus_in_mode("share", [6, 6, 8], (), 20, False),
    "n3": gpus_in_mode("core_mem", [8, 8], (), 20, False),
    "n4": gpus_in_mode("topology", [10, 10, 10, 10], (), 20, True),
}

shares = st.one_of(
    st.integers(1, 10).map(lambda units: [container(mem=units)]),
    st.tuples(st.integers(1, 8), st.integers(1, 20)).map(lambda both: [container(mem=both[0], core=5 * both[1])]),
    st.lists(st.integers(1, 6), min_size=2, max_size=4).map(
        lambda units: [container(f"c{n}", mem=one) for n, one in enumerate(units)]
    ),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 10)), min_size=2, max_size=3).map(
        lambda found: [container(f"c{n}", mem=units, core=5 * cores) for n, (units, cores) in enumerate(found)]
    ),
)
whole = st.integers(1, 4).map(lambda number: [container(whole=number)])
odd = st.sampled_from(
    [
        [container(mem="much")],
        [container(mem=3, whole=1)],
        [container(core=10)],
        [container("a", mem=2), container("b", whole=1)],
    ]
)
first = st.builds(
    lambda name, units, stays: container(name, mem=units) | ({"restartPolicy": "Always"} if stays else {}),
    st.sampled_from(["i1", "i2"]),
    st.integers(1, 8),
    st.booleans(),
)


def shape(containers, first):
    return st.fixed_dictionaries(
        {
            "containers": containers,
            "init": first,
            "gpu_count": st.sampled_from([None, None, None, 2]),
            "cpu": st.sampled_from(["0", "1", "12"]),
            "wishes": st.booleans(),
            "rule": st.sampled_from([None] * len(RULES) + list(RULES)),
        }
    )


none = st.just([])
firsts = st.lists(first, min_size=1, max_size=2, unique_by=lambda made: made["name"])
shapes = shape(st.one_of(shares, shares, whole, odd), st.one_of(none, none, firsts))
simple = shape(
    st.one_of(whole, whole, st.integers(1, 10).map(lambda units: [container(mem=units)]), st.just([container()])), none
)
suitable = st.one_of(st.just(NAMES), st.just(NAMES), st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
"""The nodes that kube-scheduler names for a pod, as by its node selector."""


fates = st.sampled_from(["before", "never", "after", "late"])
"""Whether the writes of a scheduler that crashed are carried out before the next one reads all objects.

With `late`, the plans are written before, and the Bindings are carried out a while after.
"""


class RandomCluster(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now, self.wall_ns, self.created = 0.0, 1_800_000_000 * 10**9, Counter()
        self.nodes, self.pods, self.held = {}, {}, {}  # as the API server and the agents have them
        self.published = {name: {} for name in NAMES if name != OTHER_PLUGIN}
        """Name of a node to what its agent publishes of pods."""
        self.accepts, self.former = {}, {}
        self.seen_nodes, self.seen_pods, self.unseen = {}, {}, defaultdict(deque)  # as the watch has shown them
        self.called, self.in_bind, self.asleep = {}, {}, set()  # kube-scheduler's pods
        self.cut = set()
        """UIDs of pods that kube-scheduler's own filters keep off nodes, so that it tries them after other pods' events."""
        self.bindings, self.late, self.commits = {}, [], []  # writes in progress
        self.weather = "fine"
        self.written = defaultdict(list)
        """UID to the places of each plan that was written for it."""
        self.last_made = {}
        self.disturbed = set()
        """Nodes that changed without the scheduler, which it may not have seen."""
        self.kept = {}
        self.odd_calls = set()

    @initialize(limits=st.sampled_from([AHEAD, AheadLimits()]))
    def start(self, limits=AHEAD):
        self.limits = limits
        for name in NAMES:
            self.nodes[name] = self.node_with(name, SOUND[name])
        self.restart()

    # -- pods come and go ----------------------------------------------------------------------------------------------

    @rule(shape=shapes, accepts=suitable, count=st.sampled_from([1, 1, 2, 5]), data=st.data())
    def create(self, shape, accepts, count, data):
        priority = data.draw(st.integers(0, 3))
        owner = data.draw(st.sampled_from([None, "o1", "o2"]))
        scheduler = data.draw(st.sampled_from([OURS, OURS, OURS, "other"]))
        namespace = data.draw(st.sampled_from(NAMESPACES))
        for _ in range(count):
            self.make(shape, accepts, namespace=namespace, priority=priority, owner=owner, scheduler=scheduler)

    @rule(shape=simple, accepts=suitable, count=st.integers(1, 6), priority=st.integers(0, 3), waits=st.booleans())
    def a_backlog_comes(self, shape, accepts, count, priority, waits):
        """kube-scheduler is busy with one pod while others come, which it has not asked about yet."""
        others = sorted(self.waiting())
        if others:
            self.ask(others[0], self.pods[others[0]])
        for _ in range(count):
            self.make(shape | {"wishes": False}, accepts, namespace=NAMESPACES[0], priority=priority)
        self.show_all()
        if waits:
            self.wait(0.1)

    @rule(
        job=st.sampled_from(JOBS),
        replicas=st.integers(1, 4),
        missing=st.sampled_from([0, 0, 0, 1, 2]),
        shape=st.one_of(simple, simple, shapes),
        accepts=suitable,
        gated=st.sampled_from([(), (), (GATE,), (FOREIGN_GATE,), (GATE, FOREIGN_GATE)]),
    )
    def create_job(self, job, replicas, missing, shape, accepts, gated):
        """Jobs of one name are one job, whose pods may disagree. Some pods come later."""
        self.last_made[job] = shape, accepts, replicas, gated
        for _ in range(max(replicas - missing, 1)):
            self.make_member(job, *self.last_made[job])

    @rule(
        job=st.sampled_from(JOBS),
        replicas=st.integers(2, 4),
        shape=simple,
        bound=st.integers(0, 3),
        then=st.sampled_from(["", "", "crash", "node"]),
        data=st.data(),
    )
    def a_job_starts(self, job, replicas, shape, bound, then, data):
        """A job comes to where its plan is written, and some of its pods are bound. Then something happens."""
        self.create_job(job, replicas, 0, shape, NAMES, ())
        self.show_all()
        self.call_filter_for_all(bound=True)
        for commit, _, weather in [self.commits.pop() for _ in list(self.commits)]:
            self.end_commit(commit, weather)
        for uid in sorted(self.bindings)[:bound]:
            self.end_binding(uid)
        if then == "crash":
            self.crash(data.draw(st.booleans()), data.draw(fates))
        elif then == "node" and self.bindings:
            name = data.draw(st.sampled_from(sorted({write.node for write, _, _ in self.bindings.values()})))
            self.node_changes(name, data.draw(gpus), back=False)

    @precondition(lambda self: self.last_made)
    @rule(pick=picks, replicas=st.sampled_from([None, None, None, 3, "x"]), other=shapes | st.none())
    def one_more(self, pick, replicas, other):
        """A pod of a job comes late, replaces another, or is not like the others."""
        job = sorted(self.last_made)[pick % len(self.last_made)]
        shape, accepts, said, gated = self.last_made[job]
        self.make_member(job, other or shape, accepts, said if replicas is None else replicas, gated)

    @precondition(lambda self: self.pods)
    @rule(pick=picks)
    def admit_behind_gate(self, pick):
        """Another controller removes its scheduling gate from a pod."""
        gated = [uid for uid, made in self.pods.items() if FOREIGN_GATE in gates_of(made)]
        if uid := self.one(gated, pick):
            gates = self.pods[uid]["spec"]["schedulingGates"]
            self.pods[uid]["spec"]["schedulingGates"] = [gate for gate in gates if gate["name"] != FOREIGN_GATE]
            self.changed(uid)

    @precondition(lambda self: self.pods)
    @rule(pick=picks, replicas=st.sampled_from([None, "1", "2", "x"]), job=st.sampled_from([None, *JOB_NAMES]))
    def relabel(self, pick, replicas, job):
        """A user changes the labels of a pod that is there."""
        if uid := self.one(self.pods, pick):
            labels = self.pods[uid]["metadata"]["labels"]
            for key, value in ((JOB_LABEL, job), (REPLICAS_LABEL, replicas)):
                if value is not None:
                    labels[key] = value
            self.changed(uid)
            self.asleep.discard(uid)

    @precondition(lambda self: self.pods)
    @rule(pick=picks, of=picks)
    def copy_annotations(self, pick, of):
        """A template has the annotations of a pod that was placed before."""
        uid, source = self.one(self.pods, pick), self.one(self.pods, of)
        if uid and uid != source and not bound_to(self.pods[uid]):
            self.pods[uid]["metadata"]["annotations"] = dict(self.pods[source]["metadata"]["annotations"])
            self.changed(uid)

    @precondition(lambda self: self.pods)
    @rule(pick=picks, of=picks)
    def edit_of_a_running_pod(self, pick, of):
        """A tenant overwrites the decision on a pod that runs. The agent says on the Node what the pod holds."""
        seen = [uid for uid in self.held if uid in self.seen_pods and self.seen_pods[uid].node]
        uid, source = self.one([uid for uid in seen if self.has_agent(uid)], pick), self.one(self.pods, of)
        if uid:
            self.pods[uid]["metadata"]["annotations"] = dict(self.pods[source]["metadata"]["annotations"])
            self.changed(uid)
            self.publish(bound_to(self.pods[uid]), uid)

    @precondition(lambda self: self.pods)
    @rule(pick=picks, end=st.sampled_from(["Succeeded", "Failed", REJECTED]))
    def end(self, pick, end):
        """A pod ends. The agent may also refuse it for a reason of its own."""
        if uid := self.one([uid for uid, made in self.pods.items() if bound_to(made) and not ended(made)], pick):
            self.finish(uid, end)

    @precondition(lambda self: self.pods)
    @rule(pick=picks, all_of_job=st.booleans())
    def delete(self, pick, all_of_job):
        if uid := self.one(self.pods, pick):
            job = job_of(self.pods[uid])
            alike = [member for member, made in self.pods.items() if job_of(made) == job]
            for member in alike if job and all_of_job else [uid]:
                self.remove(member)

    @precondition(lambda self: self.deleted())
    @rule(pick=picks)
    def is_gone(self, pick):
        """A bound pod that was deleted has ended."""
        self.forget(self.one(self.deleted(), pick))

    # -- nodes, agents and other schedulers ----------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), found=gpus | st.none(), back=st.booleans())
    def node_changes(self, name, found, back):
        """GPUs become unhealthy, are fenced, leave or get MIG mode; the mode is switched; a node goes or comes."""
        if back:
            found = SOUND[name]
        self.nodes.pop(name, None)
        if found and found.gpus:
            self.nodes[name] = self.node_with(name, found)
        self.disturbed.add(name)
        self.unseen[name].append((self.now, self.nodes.get(name)))
        self.asleep.clear()

    @precondition(lambda self: self.unbound())
    @rule(pick=picks, name=st.sampled_from(NAMES), written=st.booleans(), job=st.booleans())
    def another_scheduler_binds(self, pick, name, written, job):
        """Another scheduler chooses by what is bound, and writes its decision, or leaves the choice to the agent."""
        waiting = [uid for uid in self.waiting() if job or self.pods[uid]["spec"]["schedulerName"] != OURS]
        if (uid := self.one(waiting, pick)) and name in self.nodes:
            self.pods[uid]["spec"]["nodeName"] = name
            if written and (choice := fit(pod_facts(self.pods[uid]).request, self.truth(name))):
                found = decision_annotations(uid, choice, self.nodes[name].gpus, self.wall_ns)
                self.pods[uid]["metadata"]["annotations"] = {
                    key: value for key, value in found.items() if key != DECIDED_ANNOTATION
                }
            self.changed(uid)
            self.disturbed.add(name)
            self.admit(uid)

    @precondition(lambda self: self.held)
    @rule(pick=picks)
    def agent_writes(self, pick):
        """The agent says which GPUs a pod has, or moves it."""
        unsaid = [uid for uid in self.held if pod_facts(self.pods[uid]).used is None]
        if uid := self.one(unsaid or list(self.held), pick):
            self.correct(uid)

    # -- kube-scheduler ------------------------------------------------------------------------------------------------

    @rule(pick=picks, left_out=st.sets(st.sampled_from(NAMES), max_size=2), stale=st.sampled_from([False, False, True]))
    def call_filter(self, pick, left_out, stale):
        """kube-scheduler asks about a pod. It may have seen less than the scheduler: the pod is bound, or gone."""
        # kube-scheduler has never asked about a pod that has its gates still.
        ever = [uid for uid, made in [*self.former.items(), *self.pods.items()] if not gates_of(made)]
        uid = self.one(ever if stale else self.waiting(), pick)
        if uid is None or uid in (self.called | self.in_bind | self.bindings):
            return
        made = self.pods.get(uid) or self.former[uid]
        spec = {key: value for key, value in made["spec"].items() if key != "nodeName"}
        self.ask(uid, made | {"spec": spec}, left_out, stale=uid not in self.waiting())

    @precondition(lambda self: self.unbound())
    @rule(bound=st.booleans())
    def call_filter_for_all(self, bound):
        for uid in self.waiting():
            self.ask(uid, self.pods[uid])
        if bound:
            self.call_bind_for_all()

    @precondition(lambda self: self.called)
    @rule(pick=picks, to=st.sampled_from([None, None, None, *NAMES]))
    def call_bind(self, pick, to):
        """kube-scheduler has a pod bound, or a late call of a former leader arrives."""
        if uid := self.one(self.called, pick):
            self.start_bind(uid, to or self.called[uid])

    @precondition(lambda self: self.called)
    @rule()
    def call_bind_for_all(self):
        for uid in sorted(self.called):
            self.start_bind(uid, self.called[uid])

    @precondition(lambda self: self.in_bind)
    @rule(pick=picks)
    def bind_call_ends(self, pick):
        """kube-scheduler ends a bind call that waits for the other pods of the job, or for a Binding."""
        if uid := self.one(self.in_bind, pick):
            del self.in_bind[uid]
            self.leave_bind(uid)

    @rule(weather=st.sampled_from(["fine", "refused", "lost", "written and lost", "late"]))
    def api_server_becomes(self, weather):
        """How the writes go that begin from now on."""
        self.weather = weather

    @precondition(lambda self: self.bindings)
    @rule(pick=picks)
    def write_ends(self, pick):
        if uid := self.one(self.bindings, pick):
            self.end_binding(uid)

    @precondition(lambda self: self.bindings or self.commits)
    @rule()
    def all_writes_end(self):
        self.end_writes()

    @precondition(lambda self: self.unbound())
    @rule(pick=picks, named=st.booleans())
    def preempt(self, pick, named):
        """kube-scheduler evicts pods for one that waits."""
        if (uid := self.one(self.waiting(), pick)) is None:
            return
        asked = pod_facts(self.pods[uid])
        lower = [pod for pod in self.seen_pods.values() if pod.node and pod.priority < asked.priority]
        proposed = {name: [pod.uid for pod in lower if pod.node == name and named] for name in NAMES}
        found = self.scheduling.preempt(asked, proposed, self.now)
        for name, victims in found.items():
            assert {pod.node for pod in lower if pod.uid in victims} <= {name}
            assert set(victims) <= {pod.uid for pod in lower}, "a pod of the same priority is evicted"
        for victim in next(iter(found.values()), []):
            if victim in self.pods:
                self.remove(victim)

    # -- time, the watch and crashes -----------------------------------------------------------------------------------

    @precondition(lambda self: self.unseen)
    @rule(share=st.floats(0, 1), data=st.data())
    def watch(self, share, data):
        """The watch shows a part of the changes: of each object in order."""
        for key in data.draw(st.permutations(sorted(self.unseen))):
            for _ in range(round(share * len(self.unseen[key])) or 1):
                self.show(key)

    @precondition(lambda self: self.unseen)
    @rule()
    def watch_all(self):
        self.show_all()

    @rule()
    def list_again(self):
        """The watch was broken: all objects are shown as they are now, also those that did not change."""
        self.show_all()
        for name, facts in self.nodes.items():
            self.scheduling.node_seen(facts)
        for made in self.pods.values():
            self.scheduling.pod_seen(pod_facts(made), self.now)
        self.act()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 16.0]))
    def wait(self, seconds):
        """Time passes. The scheduler has its turn whenever something is due."""
        end, spins = self.now + seconds, 0
        while (at := self.due()) is not None and at <= end:
            spins = spins + 1 if at <= self.now else 0
            assert spins < 50, "the scheduler is always busy"
            self.now = max(self.now, at)
            self.pass_time()
        self.now = end
        self.pass_time()

    @rule(seconds=st.sampled_from([31.0, 100.0, 4000.0]))
    def freeze(self, seconds):
        """The scheduler has no turn for a while. When it goes on, it looks at the time first, and at the watch later."""
        self.now += seconds
        self.disturbed.update(NAMES)
        self.scheduling.tick(self.now)
        self.act()
        self.wait(0.0)

    @rule(
        shape=simple,
        name=st.sampled_from(NAMES),
        count=st.integers(2, 4),
        seconds=st.sampled_from([1.0, 31.0, 4000.0]),
        pick=picks,
    )
    def freeze_behind_kube_scheduler(self, shape, name, count, seconds, pick):
        """kube-scheduler tries pods, of which some find no room. Before the watch shows these, room becomes free.

        The scheduler stands still meanwhile.
        """
        for _ in range(count):
            self.make(shape, (name,), namespace=NAMESPACES[0], priority=0)
        self.call_filter_for_all(bound=True)
        self.end_writes()
        running = self.one([uid for uid in self.held if bound_to(self.pods[uid]) == name], pick)
        if running:
            self.finish(running, "Succeeded")
            while running in self.unseen:
                self.show(running)
        self.freeze(seconds)

    @rule(wall_ns=st.sampled_from([0, 10**9, 1_800_000_000 * 10**9, 4_000_000_000 * 10**9]))
    def clock_jumps(self, wall_ns):
        self.wall_ns = wall_ns

    @rule(leader_too=st.booleans(), fate=fates)
    def crash(self, leader_too, fate):
        """The scheduler is killed amid its writes. kube-scheduler may go on."""
        rest = self.interrupt(fate)
        if leader_too:
            self.called.clear()
            self.asleep.clear()
        self.restart()
        self.carry_out(*rest)

    @rule(fate=fates)
    def another_leads(self, fate):
        """The other replica leads, which has followed the watch. First it sees what the former leader wrote."""
        for uid in self.bindings:
            self.scheduling.bound(uid, BindOutcome.UNKNOWN)
        for commit, _, _ in self.commits:
            self.scheduling.committed(commit.job, self.now, written=False)
        for uid in self.in_bind:
            if pod := self.scheduling.pods.get(uid):
                self.scheduling.jobs.left_bind(pod)
        self.scheduling.actions()  # nobody carries them out any more
        rest = self.interrupt(fate)
        self.called.clear()
        self.asleep.clear()
        self.show_all()
        self.scheduling, self.standby = self.standby, self.scheduling
        self.scheduling.caught_up(self.now)
        self.kept = self.reserved()
        self.scheduling.tick(self.now)
        self.act()
        self.carry_out(*rest)

    def interrupt(self, fate):
        """End all calls and writes of the scheduler; what is still carried out when the next one has begun."""
        late = self.late + [(write, self.now + LATE_S) for write, _, _ in self.bindings.values()]
        bindings = [write for write, _ in late]
        commits = [commit for commit, _, _ in self.commits]
        self.in_bind.clear()
        self.bindings.clear()
        self.room_changes()
        self.commits.clear()
        self.late = late if fate == "late" else []
        if fate == "before":
            self.carry_out(bindings, commits)
        if fate == "late":
            self.carry_out([], commits)
        if fate in ("after", "late"):
            self.disturbed.update(write.node for write in bindings)
        return (bindings, commits) if fate == "after" else ([], [])

    # -- what the parts do ---------------------------------------------------------------------------------------------

    def make_member(self, job, shape, accepts, replicas, gated):
        namespace, name = job
        labels = {JOB_LABEL: name, REPLICAS_LABEL: str(replicas)}
        self.make(shape, accepts, namespace=namespace, labels=labels, gated=gated, priority=PRIORITIES[job])

    def make(self, shape, accepts, gated=(), **given):
        self.created[given["namespace"]] += 1
        name = f"p{self.created[given['namespace']]}"
        uid = f"uid-{self.created.total():05}"
        # Pods of one shape, and those of other lives, must not share what is written into them.
        shape = deepcopy(shape)
        made = pod_object(name, *shape["containers"], uid=uid, gpu_count=shape["gpu_count"], **given)
        made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": shape["cpu"]}
        made["spec"]["initContainers"] = shape["init"]
        made["spec"]["schedulingGates"] = [{"name": name} for name in gated]
        if shape["wishes"]:
            made["spec"]["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}
        if shape["rule"]:
            put_rule(made, shape["rule"])
        self.pods[uid], self.accepts[uid] = made, accepts
        self.changed(uid)

    def finish(self, uid, end):
        made = self.pods[uid]
        made["status"] = {"phase": "Failed", "reason": REJECTED} if end == REJECTED else {"phase": end}
        self.held.pop(uid, None)
        self.changed(uid)

    def remove(self, uid):
        if bound_to(self.pods[uid]) and not ended(self.pods[uid]):
            self.pods[uid]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
            self.changed(uid)
        else:
            self.forget(uid)

    def forget(self, uid):
        self.former[uid] = self.pods.pop(uid)
        self.held.pop(uid, None)
        self.asleep.discard(uid)
        self.changed(uid)

    def admit(self, uid):
        """The agent gives the pod the GPUs of its decision, or others if there is none; otherwise it refuses it."""
        facts = pod_facts(self.pods[uid])
        if facts.request.kind is RequestKind.NONE:
            return
        there = self.nodes.get(facts.node)
        used = facts.used
        if there and used is None and (choice := fit(facts.request, self.truth(facts.node))):
            used = choice.used
        others = [held for one, held in self.held.items() if bound_to(self.pods[one]) == facts.node]
        problem = too_much(there, used, others) if there and used is not None else "no decision"
        if not problem:
            self.held[uid] = used
            return
        assert facts.node in self.disturbed, f"the agent refuses what the scheduler decided: {problem}"
        self.finish(uid, REJECTED)

    def correct(self, uid):
        """The agent moves a pod and says so on the Node, because any author of a pod can write its annotations.

        Another plugin moves none. It names the GPUs in the pod's annotations where no scheduler has done so.
        """
        made = self.pods[uid]
        name, facts = bound_to(made), pod_facts(made)
        moves = name in self.published
        if name not in self.nodes or facts.request.problem or not (moves or facts.used is None):
            return
        choice = fit(facts.request, self.truth(name, without=uid))
        if choice is None:
            return
        self.held[uid] = choice.used
        self.disturbed.add(name)
        if facts.used is None:
            made["metadata"]["annotations"] = decision_annotations(uid, choice, self.nodes[name].gpus, self.wall_ns)
            self.changed(uid)
        if moves:
            self.publish(name, uid)

    def has_agent(self, uid):
        """Whether the node of a pod is there and has an agent of this project."""
        name = bound_to(self.pods[uid])
        return name in self.nodes and name in self.published

    def publish(self, name, uid):
        former = self.published[name]
        held = {other: used for other, used in former.items() if other in self.held}
        self.published[name] = held | {uid: self.held[uid]}
        self.nodes[name] = replace(self.nodes[name], held=self.published[name])
        self.unseen[name].append((self.now, self.nodes[name]))

    def node_with(self, name, gpus):
        return replace(node(name, gpus, labels=node_labels(name)), held=self.published.get(name))

    def truth(self, name, without=""):
        """The node as its agent has it."""
        found = NodeUsage(self.nodes[name])
        for uid, used in self.held.items():
            if uid != without and bound_to(self.pods[uid]) == name:
                found.use(uid, used)
        return found

    def deleted(self):
        return [uid for uid, made in self.pods.items() if "deletionTimestamp" in made["metadata"]]

    def unbound(self):
        return [uid for uid, made in self.pods.items() if not bound_to(made)]

    def waiting(self):
        """Pods that kube-scheduler may try now."""
        busy = self.called.keys() | self.in_bind.keys() | self.bindings.keys()
        return [
            uid
            for uid, made in self.pods.items()
            if not bound_to(made)
            and uid not in busy
            and not made["spec"]["schedulingGates"]
            and made["spec"]["schedulerName"] == OURS
        ]

    def named(self, uid, made):
        """The nodes that pass kube-scheduler's own filters for a pod. It may name one that is gone by now."""
        placed = []
        for other, found in self.pods.items():
            assumed = self.called.get(other) or self.in_bind.get(other)
            if other in self.bindings:
                assumed = self.bindings[other][0].node
            where = bound_to(found) or assumed
            if other != uid and where in self.nodes and not ended(found):
                placed.append(found | {"spec": found["spec"] | {"nodeName": where}})
        passing = accepted(made, list(self.nodes), placed)
        return [name for name in self.accepts[uid] if name not in self.nodes or name in passing]

    def room_changes(self):
        """kube-scheduler tries pods again that it has kept off nodes itself."""
        self.asleep -= self.cut

    def ask(self, uid, made, left_out=(), *, stale=False):
        pod = pod_facts(made)
        named = self.named(uid, made)
        if not stale:
            self.cut.discard(uid)
            if len(named) < len(self.accepts[uid]):
                self.cut.add(uid)
        names = [name for name in named if name not in left_out]
        if not names:
            # kube-scheduler calls nobody.
            if not (stale or left_out):
                self.asleep.add(uid)
            return
        if pod.request.kind is RequestKind.NONE:  # kube-scheduler binds it by itself
            if not stale:
                self.pods[uid]["spec"]["nodeName"] = names[0]
                self.changed(uid)
            return
        if stale:
            self.odd_calls.add(uid)
        else:
            self.asleep.discard(uid)
        if pod.nominated in names:
            # kube-scheduler looks at this node alone first, and at the others if it is refused.
            answer = self.scheduling.filter(pod, [pod.nominated], self.now)
            self.act()
            if answer.nodes and not stale:
                assert answer.nodes == (pod.nominated,)
                self.called[uid] = pod.nominated
                return
        answer = self.scheduling.filter(pod, names, self.now)
        assert set(answer.nodes) <= set(names)
        assert answer.error or not self.scheduling.ahead.has(uid)
        if not (answer.nodes or answer.error):
            assert answer.failed.keys() | answer.unresolvable.keys() == set(names), "a node has no reason"
            if not self.scheduling.jobs.is_member(pod) and not pod.request.problem:
                short = [
                    name for name, why in answer.failed.items() if not ("same owner" in why or "were kept for" in why)
                ]
                fitting = [name for name in short if fit(pod.request, self.scheduling.usage.nodes[name])]
                assert not fitting, "a pod that fits is refused"
        self.act()
        if answer.nodes and not stale:
            self.called[uid] = answer.nodes[len(answer.nodes) // 2]
        elif not (answer.nodes or answer.error or left_out):
            self.asleep.add(uid)

    def start_bind(self, uid, name):
        del self.called[uid]
        if uid in self.pods and not bound_to(self.pods[uid]):
            self.in_bind[uid] = name
            self.poll([uid])
        else:
            self.room_changes()

    def poll(self, uids):
        """Bind calls ask again. As many times as there are pods, because one may have others go on."""
        for uid in [*uids, *uids]:
            if uid not in self.in_bind:
                continue
            answer = self.scheduling.bind(uid, self.in_bind[uid], self.now, self.wall_ns)
            if isinstance(answer, BindWait):
                assert answer.until > self.now or self.scheduling.next_due(self.now) <= self.now
                self.act()
                continue
            del self.in_bind[uid]
            if isinstance(answer, BindRefused):
                self.leave_bind(uid)
            else:
                self.check_decision(answer)
                self.bindings[uid] = answer, self.now, self.weather
                self.act()

    def leave_bind(self, uid):
        self.room_changes()
        if pod := self.scheduling.pods.get(uid):
            self.scheduling.jobs.left_bind(pod)
        self.act()

    def end_binding(self, uid):
        write, _, weather = self.bindings.pop(uid)
        outcome = BindOutcome.REFUSED
        if weather in ("fine", "written and lost") and self.land(write):
            outcome = BindOutcome.BOUND
        if weather == "late":
            self.late.append((write, self.now + LATE_S))
        self.scheduling.bound(uid, BindOutcome.UNKNOWN if weather not in ("fine", "refused") else outcome)
        self.room_changes()
        self.act()

    def land(self, write):
        """The API server carries out a Binding; whether the pod is bound there now."""
        made = self.pods.get(write.uid)
        if made is None or ended(made) or "deletionTimestamp" in made["metadata"]:
            return False
        if bound_to(made):
            return bound_to(made) == write.node and not write.annotations
        made["metadata"]["annotations"] = made["metadata"]["annotations"] | write.annotations
        made["spec"]["nodeName"] = write.node
        self.changed(write.uid)
        self.admit(write.uid)
        return True

    def end_commit(self, commit, weather):
        written = weather in ("fine", "written and lost") and self.write_plan(commit)
        self.scheduling.committed(commit.job, self.now, written=written and weather == "fine")
        self.act()
        self.poll(sorted(self.in_bind))

    def write_plan(self, commit):
        made = self.pods.get(commit.uid)
        if made is None or bound_to(made) or "deletionTimestamp" in made["metadata"]:
            return False
        made["metadata"]["annotations"] = made["metadata"]["annotations"] | {COMMIT_ANNOTATION: commit.text}
        for uid, place in committed_places(commit.text).items():
            self.written[uid].append(place)
        self.changed(commit.uid)
        return True

    def carry_out(self, bindings, commits):
        for commit in commits:
            self.write_plan(commit)
        for write in bindings:
            self.land(write)

    def end_writes(self, before=float("inf")):
        for uid, (_, sent, _) in list(self.bindings.items()):
            if sent < before:
                self.end_binding(uid)
        for commit, sent, weather in [one for one in self.commits if one[1] < before]:
            self.commits.remove((commit, sent, weather))
            self.end_commit(commit, weather)

    def act(self):
        """Carry out the actions, those of the leader alone."""
        self.check_reservations()
        self.standby.actions()
        for action in self.scheduling.actions():
            if isinstance(action, CommitJob):
                self.check_commit(action)
                self.commits.append((action, self.now, self.weather))
            elif isinstance(action, (Nudge, Nominate)):
                self.check_woken(action)
                self.asleep.discard(action.uid)
                if isinstance(action, Nominate):
                    self.nominate(action)
            elif isinstance(action, Ungate) and (made := self.pods.get(action.uid)):
                gates = made["spec"]["schedulingGates"]
                made["spec"]["schedulingGates"] = [gate for gate in gates if gate["name"] != GATE]
                self.changed(action.uid)

    def check_woken(self, action):
        """As the API server has the pod: kube-scheduler may have seen before the watch that its gate is gone."""
        made = self.pods.get(action.uid)
        is_behind_gate = made is not None and FOREIGN_GATE in gates_of(made)
        assert not is_behind_gate, "a pod behind another controller's gate is woken or nominated"

    def nominate(self, action):
        made = self.pods.get(action.uid)
        if made and not bound_to(made) and self.scheduling.wants(action):
            made["status"]["nominatedNodeName"] = action.node
            self.changed(action.uid)

    def changed(self, uid):
        made = self.pods.get(uid)
        self.unseen[uid].append((self.now, pod_facts(made) if made else None))
        if made is None or bound_to(made):
            self.room_changes()

    def show(self, key):
        if not self.unseen[key]:
            del self.unseen[key]
            return
        _, facts = self.unseen[key].popleft()
        if not self.unseen[key]:
            del self.unseen[key]
        if key in NAMES:
            self.show_node(key, facts)
        else:
            self.show_pod(key, facts)
        self.act()

    def show_node(self, name, facts):
        self.seen_nodes.pop(name, None)
        if facts:
            self.seen_nodes[name] = facts
            on_it = {uid: pod for uid, pod in self.seen_pods.items() if pod.node == name}
            self.seen_pods |= {uid: self.as_decided(pod, pod) for uid, pod in on_it.items()}
        for replica in (self.scheduling, self.standby):
            if facts:
                replica.node_seen(facts)
            else:
                replica.node_gone(name)

    def show_pod(self, uid, facts):
        former = self.seen_pods.pop(uid, None)
        if facts:
            self.seen_pods[uid] = self.as_decided(former, facts)
        for replica in (self.scheduling, self.standby):
            if facts:
                replica.pod_seen(facts, self.now)
            else:
                replica.pod_gone(uid, self.now)

    def as_decided(self, former, pod):
        """What was decided for a bound pod stands until it is gone, and edits of its labels count no longer.

        The agent's word on the Node comes first. A scheduler that restarts knows only what is written.
        """
        if former and former.node and asks(former):
            used = former.used
            if used is None and pod.node not in self.published:
                used = pod.used
            pod = replace(pod, job=former.job, request=former.request, used=used)
        there = self.seen_nodes.get(pod.node)
        held = there.held if there and there.held else {}
        return replace(pod, used=held.get(pod.uid, pod.used))

    def show_all(self):
        for key in list(self.unseen):
            while key in self.unseen:
                self.show(key)

    def due(self):
        """When anything happens next by itself."""
        ends = [sent + WRITE_S for _, sent, _ in [*self.bindings.values(), *self.commits]]
        late = [until for _, until in self.late]
        shown = [changes[0][0] + LAG_S for changes in self.unseen.values() if changes]
        own = self.scheduling.next_due(self.now)
        return min([*ends, *late, *shown, *([] if own is None else [own])], default=None)

    def pass_time(self):
        """What is due happens."""
        for key in list(self.unseen):
            while self.unseen.get(key) and self.unseen[key][0][0] + LAG_S <= self.now:
                self.show(key)
        for write, until in list(self.late):
            if until <= self.now:
                self.late.remove((write, until))
                self.land(write)
        self.end_writes(self.now - WRITE_S + 1e-9)
        self.scheduling.tick(self.now)
        self.standby.tick(self.now)
        assert all(found.until > self.now for found in self.reserved().values()), "a reservation does not end"
        self.act()
        self.poll(sorted(self.in_bind))

    def restart(self):
        """Read all objects again, in two orders: what counts is the same."""
        self.unseen.clear()
        self.seen_nodes = dict(self.nodes)
        self.seen_pods = {uid: self.as_decided(None, pod_facts(made)) for uid, made in self.pods.items()}
        self.scheduling, self.standby = (Scheduling(LeastFree(), schedulers={OURS}, ahead=self.limits) for _ in "12")
        self.kept, self.odd_calls = {}, set()
        for facts in self.nodes.values():
            self.scheduling.node_seen(facts)
        for facts in self.seen_pods.values():
            self.scheduling.pod_seen(facts, self.now)
            self.standby.pod_seen(facts, self.now)
        for facts in reversed(self.nodes.values()):
            self.standby.node_seen(facts)
        for one in (self.scheduling, self.standby):
            one.links.seen("links", MBPS)
            one.synced(self.now)
        assert counted(self.scheduling) == counted(self.standby)
        for uid, found in self.reserved().items():
            (place,) = found.choices.items()
            assert place in self.written[uid], "a reservation follows from no object"
        self.act()

    # -- what is true always -------------------------------------------------------------------------------------------

    def one(self, of, pick):
        found = sorted(of)
        return found[pick % len(found)] if found else None

    def reserved(self):
        known = {*self.pods, *self.former}
        found = {uid: one for uid in known if (one := self.scheduling.reservations.get(uid))}
        assert len(found) == len(self.scheduling.reservations), "a reservation belongs to no pod"
        return found

    def check_decision(self, write):
        """The Binding is of GPUs that are free as far as the watch shows (I1), planned (I3), and readable (I8)."""
        uid, there = write.uid, self.seen_nodes.get(write.node)
        if bound_in(self.seen_pods, uid):
            assert not write.annotations, "a bound pod gets other GPUs"
            return
        assert there, "bound to a node that is gone"
        choice = self.scheduling.reservations.get(uid).choices[write.node]
        problem = self.not_free(uid, write.node, choice.used)
        assert not problem, f"a Binding has GPUs that are not free: {problem}"
        facts = self.seen_pods.get(uid)
        if facts and self.scheduling.jobs.is_member(facts):
            assert (write.node, choice) in self.written[uid], "a pod of a job is bound without a written plan"
        made = self.pods.get(uid) or self.former[uid]
        after = made | {"metadata": made["metadata"] | {"annotations": dict(write.annotations)}}
        request = pod_facts(made).request
        assert keeps_rules(request, NodeUsage(there))
        assert pod_facts(after).used == choice.used, "the pod will count on other GPUs"
        if request.kind is RequestKind.WHOLE:
            assert write.annotations[GROUP_ANNOTATION] == ",".join(str(minor) for minor, _ in choice.used)
        else:
            assert given_by_agent(after, there) == {
                n: {minor: (each.memory, each.core) for minor, each in gpus.items()}
                for n, gpus in choice.containers.items()
            }

    def not_free(self, uid, name, used):
        """Why GPUs are not free for a pod, as far as the watch shows; empty if they are."""
        there = self.seen_nodes[name]
        others = [uses(pod, there) for pod in self.counting(name) if pod.uid != uid]
        others += [
            one.choices[name].used
            for other, one in self.reserved().items()
            if other != uid and name in one.choices and bound_in(self.seen_pods, other) != name
        ]
        return too_much(there, used, others)

    def check_commit(self, commit):
        """A plan is of all pods of the job that wait, each of which is in bind (I2, I3)."""
        places = committed_places(commit.text)
        assert places.keys() <= self.in_bind.keys()
        members = [pod for pod in self.seen_pods.values() if job_key(pod) == commit.job]
        living = [pod for pod in members if not (pod.ended or pod.deleting or pod.foreign_gate)]
        started = any(asks(pod) and pod.node for pod in living) or any(uid in self.written for uid in places)
        wanted = {pod.job.pods for pod in living if pod.uid in places}
        without = [pod for pod in living if not asks(pod)]
        assert started or wanted <= set(range(len(places) + len(without) + 1)), "a part of a job is planned"

    def counting(self, name):
        """The pods that the watch shows on a node."""
        return [
            pod
            for pod in self.seen_pods.values()
            if pod.node == name and not pod.ended and pod.request.kind is not RequestKind.NONE
        ]

    @invariant()
    def what_is_used_follows_from_the_objects_and_the_reservations(self):
        if not hasattr(self, "scheduling"):
            return
        expected = Scheduling(LeastFree())
        for facts in self.seen_nodes.values():
            expected.node_seen(facts)
        for pod in self.seen_pods.values():
            expected.pod_seen(pod, self.now)
        for uid, found in self.reserved().items():
            for name, choice in found.choices.items():
                if bound_in(self.seen_pods, uid) != name:
                    expected.usage.use(uid, name, choice.used)
        assert counted(self.scheduling) == counted(expected)

    def check_reservations(self):
        """New ones are of GPUs that are free (I1), and short (I4), and of pods that kube-scheduler may try (I5)."""
        reserved = self.reserved()
        for uid, found in reserved.items():
            made = self.pods.get(uid)
            assert not (made and FOREIGN_GATE in gates_of(made)), (
                "GPUs are reserved for a pod behind another controller's gate"
            )
            former = self.kept.get(uid)
            if former is not found:
                most = BARRIER_S if self.scheduling.jobs.is_member(found.pod) else RESERVED_S
                if found.sent or uid in self.written:
                    most = max(CONFIRMED_S, COMMITTED_S)
                assert found.until <= self.now + most
            # A plan that was written while its node changed is kept longer, and has the same GPUs.
            if former is None or former.choices != found.choices:
                for name, choice in found.choices.items():
                    problem = self.not_free(uid, name, choice.used)
                    assert not problem, f"GPUs are reserved that are not free: {problem}"
        self.kept = reserved

    @invariant()
    def reservations_end_and_are_of_pods_that_wait(self):
        for uid, found in self.reserved().items() if hasattr(self, "scheduling") else ():
            assert self.scheduling.next_due(self.now) <= found.until
            seen = self.seen_pods.get(uid)
            if uid not in self.odd_calls and (seen or uid not in self.unseen):
                assert seen and not (seen.node or seen.ended), "a reservation is of a pod that is bound or gone"

    @invariant()
    def what_is_decided_ahead_is_little_and_of_pods_that_may_start(self):
        if not hasattr(self, "scheduling"):
            return
        ahead = self.scheduling.ahead
        decided = {uid: found for uid, found in self.reserved().items() if ahead.has(uid)}
        assert len(decided) == len(ahead) <= self.limits.most
        for uid, found in decided.items():
            assert found.until <= self.now + self.limits.held_s
            assert len(found.choices) == 1
            pod = self.seen_pods[uid]
            assert pod.scheduler == OURS
            assert not (pod.node or pod.gated or pod.deleting or self.scheduling.jobs.is_member(pod))

    @invariant()
    def a_job_reserves_for_all_of_its_pods_or_for_none(self):
        if not hasattr(self, "scheduling"):
            return
        kept, others = defaultdict(list), defaultdict(list)
        for found in self.reserved().values():
            if self.scheduling.jobs.is_member(found.pod):
                kept[job_key(found.pod)].append(found)
        for pod in self.seen_pods.values():
            if pod.job and not (pod.ended or pod.deleting or pod.foreign_gate):
                others[job_key(pod)].append(pod)
        for job, found in kept.items():
            started = any(asks(pod) and pod.node for pod in others[job]) or any(
                one.sent or one.pod.uid in self.written for one in found
            )
            number = len(found) + sum(not asks(pod) for pod in others[job])
            wanted = {one.pod.job.pods for one in found}
            assert started or wanted <= set(range(number + 1)), f"{number} pods of a job of {wanted} hold GPUs"

    @invariant()
    def nodes_are_settled(self):
        """A node whose changes were all seen is no longer disturbed."""
        for name in list(self.disturbed):
            writing = {write.node for write, _ in [*self.late, *[(one[0], 0) for one in self.bindings.values()]]}
            unseen = {bound_to(self.pods.get(uid) or self.former.get(uid) or {}) for uid in self.unseen}
            if name not in self.unseen and name not in writing | unseen:
                over = name in self.nodes and any(
                    too_much(self.nodes[name], used, [other for two, other in held if two != uid])
                    for held in [[(one, use) for one, use in self.held.items() if bound_to(self.pods[one]) == name]]
                    for uid, used in held
                )
                if not over and not any(name in one.choices for one in self.reserved().values()):
                    self.disturbed.discard(name)

    # -- events stop ---------------------------------------------------------------------------------------------------

    def teardown(self):
        if not hasattr(self, "scheduling"):
            return
        for uid in self.deleted():
            self.forget(uid)
        for uid, made in self.pods.items():
            if made["spec"]["schedulingGates"]:
                made["spec"]["schedulingGates"] = [
                    gate for gate in made["spec"]["schedulingGates"] if gate["name"] == GATE
                ]
                self.changed(uid)
        self.settle()
        self.all_that_fits_is_placed()
        if jobs := sorted(self.complete_jobs()):
            for uid in [uid for uid in self.pods if uid not in self.complete_jobs()[jobs[0]][0]]:
                self.forget(uid)
            self.settle()
            self.all_that_fits_is_placed()

    def settle(self):
        """kube-scheduler tries each pod once, and again only when it is woken, or when a call failed.

        It ends while nothing is reserved: a plan that is made in vain shortly before the end lapses first.
        """
        self.weather, end = "fine", self.now + QUIET_S
        held_s = 0.0
        for _ in range(MOST_ROUNDS):
            self.end_writes()
            self.show_all()
            self.poll(sorted(self.in_bind))
            for uid in self.waiting():
                if uid not in self.asleep:
                    self.ask(uid, self.pods[uid])
            for uid in sorted(self.called):
                self.start_bind(uid, self.called[uid])
            self.check()
            busy = self.bindings or self.commits or self.unseen or any(uid not in self.asleep for uid in self.waiting())
            due = self.due()
            reserved = self.reserved()
            if not (busy or reserved) and (due is None or due > end):
                assert held_s <= MOST_HELD_S, f"GPUs are reserved for {held_s:.0f} s for pods that do not come"
                return
            seconds = 1.0 if busy else max(due - self.now, 0.0)
            held_s += seconds if reserved else 0
            self.wait(seconds)
        raise AssertionError("the cluster does not become quiet")

    def check(self):
        self.what_is_used_follows_from_the_objects_and_the_reservations()
        self.reservations_end_and_are_of_pods_that_wait()
        self.a_job_reserves_for_all_of_its_pods_or_for_none()
        self.nodes_are_settled()

    def complete_jobs(self):
        """Job to UIDs of the pods that wait, where nothing but room is missing, and how many have to start together."""
        jobs = defaultdict(list)
        for pod in self.seen_pods.values():
            if pod.job and self.scheduling.jobs.is_member(pod) and not pod.ended and pod.scheduler == OURS:
                jobs[job_key(pod)].append(pod)
        found = {}
        for job, members in jobs.items():
            pending = [pod for pod in members if not pod.node and asks(pod)]
            wanted = {pod.job.pods for pod in members}
            started = len(pending) < len(members) and any(pod.node and asks(pod) for pod in members)
            valid = (
                None not in wanted and (len(wanted) == 1 or started) and not any(pod.request.problem for pod in pending)
            )
            if pending and valid and (started or len(members) >= max(wanted)):
                missing = max(wanted) - (len(members) - len(pending))
                found[job] = [pod.uid for pod in pending], min(max(missing, 1), len(pending))
        return found

    def all_that_fits_is_placed(self):
        nodes = self.scheduling.usage.nodes
        for uid in self.waiting():
            pod = pod_facts(self.pods[uid])
            if (
                not self.scheduling.jobs.is_member(pod)
                and pod.request.kind is not RequestKind.NONE
                and not pod.request.problem
            ):
                kept = self.scheduling.jobs.precedence.kept_from(pod)
                named = self.named(uid, self.pods[uid])
                there = [name for name in named if name in nodes and name not in kept]
                fitting = [name for name in there if fit(pod.request, nodes[name])]
                assert not fitting, f"a pod that fits on {fitting[0]} is not placed"
        for job, (uids, needed) in self.complete_jobs().items():
            members = [
                pod for pod in self.seen_pods.values() if job_key(pod) == job and not (pod.ended or pod.deleting)
            ]
            most_urgent = max(members, key=lambda pod: pod.priority)
            kept = self.scheduling.jobs.precedence.kept_from(most_urgent)
            without = {uid: frozenset(NAMES).difference(self.accepts[uid]) | kept for uid in uids}
            near = {pod.node for pod in self.seen_pods.values() if job_key(pod) == job}
            places = plan(
                [pod_facts(self.pods[uid]) for uid in uids],
                nodes,
                self.scheduling.links,
                near=near,
                without=without,
                beside=self.scheduling.usage.pods,
            )
            assert len(places) < needed, f"job {job} fits and does not run"


def bound_to(made):
    return made.get("spec", {}).get("nodeName", "")


def job_of(made):
    """Namespace and name of a pod's job; None if it is in none."""
    metadata = made["metadata"]
    name = metadata["labels"].get(JOB_LABEL)
    return (metadata["namespace"], name) if name else None


def job_key(pod):
    """The same of what is known of a pod."""
    return key_of(pod) if pod.job else None


def asks(pod):
    return pod.request.kind is not RequestKind.NONE


def bound_in(pods, uid):
    return pods[uid].node if uid in pods and not pods[uid].ended else ""


def gates_of(made):
    return [gate["name"] for gate in made["spec"]["schedulingGates"]]


def ended(made):
    return made["status"]["phase"] in ("Succeeded", "Failed")


def counted(scheduling):
    """The users of each node, and what is free."""
    return {
        name: (found.facts, dict(found.users), found.free, found.pods_left)
        for name, found in scheduling.usage.nodes.items()
    }


def uses(pod, there):
    """What a pod uses of each GPU; its request on each where no decision is written."""
    if pod.used is not None:
        return pod.used
    each = WHOLE if pod.request.kind is RequestKind.WHOLE else pod.request.need.over(max(pod.request.gpus, 1))
    return tuple((gpu.minor, each) for gpu in there.gpus.gpus)


def too_much(there, used, others):
    """Why the GPUs cannot take one more pod; empty if they can."""
    by_minor = {gpu.minor: gpu for gpu in there.gpus.gpus}
    for minor, amounts in used:
        gpu = by_minor.get(minor)
        on_it = [one for other in others for number, one in other if number == minor]
        if gpu is None or not gpu.usable:
            return f"GPU {minor} of {there.name} is not usable"
        if gpu.whole or amounts == WHOLE or WHOLE in on_it:
            if on_it or not gpu.whole or amounts != WHOLE:
                return f"GPU {minor} of {there.name} is not free"
            continue
        on_it.append(amounts)
        if len(on_it) > there.gpus.most_pods:
            return f"GPU {minor} of {there.name} has {len(on_it)} pods"
        if sum(one.memory for one in on_it) > gpu.memory or sum(one.core for one in on_it) > gpu.core:
            return f"GPU {minor} of {there.name} has {gpu}, and is used by {on_it}"
    return ""


def given_by_agent(made, there):
    """Container index to minor number to memory and compute, as the agent reads the decision."""
    minors = {f"GPU-{gpu.minor}": gpu.minor for gpu in there.gpus.gpus}
    kinds = {GPU_MEM: Kind.MEMORY_SHARE}
    amounts = {GPU_MEM: {f"GPU-{gpu.minor}": gpu.memory for gpu in there.gpus.gpus}}
    if there.gpus.both:
        kinds = {GPU_MEM: Kind.MEMORY_CORE_MEM, GPU_CORE: Kind.CORE_CORE_MEM}
        amounts[GPU_CORE] = {f"GPU-{gpu.minor}": gpu.core for gpu in there.gpus.gpus}
    parsed = parse_pod(made)
    found = read(parsed, kinds, minors, amounts)
    assert isinstance(found, Decision), found
    assert not found.unmet, found.unmet
    result = defaultdict(dict)
    for n, one in enumerate(parsed.app_containers):
        both = [found.units.get((one.name, resource), {}) for resource in (GPU_MEM, GPU_CORE)]
        for uuid in both[0].keys() | both[1].keys():
            result[n][minors[uuid]] = both[0].get(uuid, 0), both[1].get(uuid, 0)
    return dict(result)


class TestRandomCluster(RandomCluster.TestCase):
    settings = settings(
        max_examples=LIVES,
        stateful_step_count=STEPS,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
