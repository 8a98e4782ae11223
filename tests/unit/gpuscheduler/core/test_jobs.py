"""Jobs: all of their pods are bound, or none; nothing is held while they wait."""

import random

import pytest

from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL, VISIBLE_ANNOTATION
from gpuscheduler.core.calls import BindOutcome, BindRefused, BindWait, BindWrite, CommitJob, Nominate, Nudge, Ungate
from gpuscheduler.core.choose_gpus import fit
from gpuscheduler.core.gangs.pod_group_labels import MINIMUM, NAME
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.jobs.job import RETRY_FIRST_S, JobState
from gpuscheduler.core.jobs.jobs import NO_LIMITS
from gpuscheduler.core.jobs.places.plan import plan
from gpuscheduler.core.jobs.planning.planning import MOST_AT_ONCE, UNSUITABLE_S
from gpuscheduler.core.jobs.planning.start_plans import BARRIER_S, COMMITTED_S
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, pod_facts
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod, pod_object, shared_node, whole_node

WALL_NS = 1_800_000_000 * 10**9


class JobUnderTest:
    """A cluster with one scheduler, and pods that kube-scheduler tries."""

    def __init__(self, *nodes, limits=NO_LIMITS):
        self.nodes = nodes
        self.limits = limits
        self.pods = {}
        self.now = 0.0
        self.done = []
        self.start()

    def start(self):
        """As after a crash: the scheduler reads everything again."""
        self.scheduling = Scheduling(LeastFree(), job_limits=self.limits)
        for node in self.nodes:
            self.scheduling.node_seen(node)
        for made in self.pods.values():
            self.scheduling.pod_seen(pod_facts(made), self.now)
        self.scheduling.synced(self.now)
        self.act()

    def create(self, name, job="j", replicas=2, asked=True, **given):
        """A new pod, about which kube-scheduler asks once, if no scheduling gate holds it back."""
        labels = {JOB_LABEL: job, REPLICAS_LABEL: str(replicas)} if job else given.pop("labels", {})
        made = self.pods[name] = pod_object(name, uid=name, labels=labels, **given)
        self.scheduling.pod_seen(pod_facts(made), self.now)
        self.act()
        if asked and not given.get("gates"):
            self.filter(name)
        return made

    def filter(self, name, names=None):
        named = [node.name for node in self.nodes] if names is None else names
        answer = self.scheduling.filter(pod_facts(self.pods[name]), named, self.now)
        self.act()
        return answer

    def bind(self, name, node):
        answer = self.scheduling.bind(name, node, self.now, WALL_NS)
        self.act()
        return answer

    def act(self):
        """Carry out the actions at once; a written plan is seen."""
        for action in self.scheduling.actions():
            self.done.append(action)
            if isinstance(action, CommitJob):
                self.pods[action.pod.name]["metadata"]["annotations"][COMMIT_ANNOTATION] = action.text
                self.scheduling.committed(action.job, self.now, written=True)
                self.act()

    def write(self, name, write):
        """Bind the pod at the API server, and show it."""
        assert isinstance(write, BindWrite), write
        self.pods[name]["metadata"]["annotations"].update(write.annotations)
        self.pods[name]["spec"]["nodeName"] = write.node
        self.scheduling.bound(name, BindOutcome.BOUND)
        self.scheduling.pod_seen(pod_facts(self.pods[name]), self.now)
        return write

    def run(self, *names):
        """Filter and bind the pods of a job as kube-scheduler does; their Bindings."""
        answers = {name: self.filter(name) for name in names}
        # The first pods are refused until kube-scheduler has asked about the last one.
        on = {name: (answer.nodes or self.filter(name).nodes)[0] for name, answer in answers.items()}
        for name in names:
            self.bind(name, on[name])
        return {name: self.write(name, self.bind(name, on[name])) for name in names}

    def reserved(self):
        return len(self.scheduling.reservations)


@pytest.fixture
def two_nodes():
    return JobUnderTest(whole_node("n1", gpus=4), whole_node("n2", gpus=4))


def test_a_job_waits_for_its_last_pod_and_holds_nothing(two_nodes):
    two_nodes.create("a", whole=2)
    answer = two_nodes.filter("a")
    assert answer.unresolvable == dict.fromkeys(["n1", "n2"], "node(s) not given to job j: 1 of 2 pods are there")
    assert two_nodes.reserved() == 0


def test_the_last_pod_wakes_the_others_and_all_are_placed_together(two_nodes):
    two_nodes.create("a", whole=2)
    two_nodes.create("b", whole=2)
    assert {action.pod.name for action in two_nodes.done if isinstance(action, Nudge)} == {"a"}
    writes = two_nodes.run("a", "b")
    assert {write.node for write in writes.values()} == {"n1"}
    groups = sorted(write.annotations[GROUP_ANNOTATION] for write in writes.values())
    assert groups == ["0,1", "2,3"]
    assert {write.annotations[VISIBLE_ANNOTATION] for write in writes.values()} == {"0,1,2,3"}
    assert two_nodes.reserved() == 0


def test_no_pod_is_bound_before_all_are_in_bind(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    on = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b")}
    assert set(on.values()) == {"n1", "n2"}
    assert isinstance(two_nodes.bind("a", on["a"]), BindWait)
    assert isinstance(two_nodes.bind("a", on["a"]), BindWait)
    two_nodes.bind("b", on["b"])
    assert [type(action) for action in two_nodes.done].count(CommitJob) == 1
    assert isinstance(two_nodes.bind("a", on["a"]), BindWrite)


def test_a_plan_breaks_when_a_pod_does_not_come_and_is_made_again(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    node = two_nodes.filter("a").nodes[0]
    two_nodes.bind("a", node)
    two_nodes.now = BARRIER_S
    assert isinstance(two_nodes.bind("a", node), BindRefused)
    assert two_nodes.reserved() == 0
    assert [action.uid for action in two_nodes.done if isinstance(action, Nudge)][-1] == "b"
    two_nodes.now += RETRY_FIRST_S
    two_nodes.scheduling.tick(two_nodes.now)
    assert two_nodes.reserved() == 0, "kube-scheduler may have no node for it"
    assert "no node yet for 1 of its pods, such as b" in str(two_nodes.filter("a").unresolvable)
    two_nodes.filter("b")
    assert two_nodes.reserved() == 2
    two_nodes.run("a", "b")


def test_a_job_whose_plan_cannot_be_written_says_so_and_not_that_it_does_not_fit(two_nodes):
    """The annotations of its pod leave no room, or the API server refuses."""
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    on = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b")}
    two_nodes.bind("a", on["a"])
    two_nodes.scheduling.bind("b", on["b"], two_nodes.now, WALL_NS)
    (commit,) = [action for action in two_nodes.scheduling.actions() if isinstance(action, CommitJob)]
    two_nodes.scheduling.committed(commit.job, two_nodes.now, written=False)
    reasons = str(two_nodes.filter("a").unresolvable)
    assert "its last plan failed" in reasons
    assert "do not fit" not in reasons


def test_jobs_that_kube_scheduler_has_no_node_for_leave_the_gpus_to_others():
    """Their pods have a node selector that fits nowhere: no call comes about them."""
    cluster = JobUnderTest(whole_node("n1", gpus=4))
    for number in range(6):
        for name in "ab":
            cluster.create(f"{name}{number}", job=f"j{number}", whole=2)
    for cluster.now in range(600):
        cluster.scheduling.tick(float(cluster.now))
        cluster.act()
    assert cluster.reserved() == 0
    cluster.create("single", job=None, whole=1)
    assert cluster.filter("single").nodes


NUMBERS = ["1e999", "-1000", "-1" + 30 * "0", "1" + 30 * "0", "true", '"1"', "[]", "{}"]


@pytest.mark.parametrize(
    "used",
    [
        *(f"[[{number},1,1]]" for number in NUMBERS),
        *(f"[[2,{number},0]]" for number in NUMBERS),
        "[]",
        "1",
        "[[2,1,0],[3,1,0]]",
        "[[2,-1,-1],[2,-1,-1]]",
        "[[2,-1,-1]]",
        "[[1,-1,-1],[2,-1,-1],[3,-1,-1]]",
    ],
)
def test_a_plan_that_a_tenant_wrote_reserves_nothing_but_what_its_pods_ask_for(two_nodes, used):
    """It is read when the scheduler starts."""
    text = f'{{"a":["n1",{{"used":[[0,-1,-1]],"containers":{{}}}}],"b":["n1",{{"used":{used},"containers":{{}}}}]}}'
    two_nodes.create("a", whole=1, replicas=3, on="n1", annotations={COMMIT_ANNOTATION: text, GROUP_ANNOTATION: "0"})
    two_nodes.create("b", whole=2, replicas=3)
    two_nodes.start()
    assert two_nodes.reserved() == 0
    assert two_nodes.filter("b").nodes == ("n1",)


def test_thousands_of_pods_of_one_job_are_taken_one_by_one(two_nodes):
    for number in range(2 * MOST_AT_ONCE):
        two_nodes.create(f"p{number}", whole=1)
    assert two_nodes.reserved() <= MOST_AT_ONCE


def test_a_plan_breaks_when_a_former_leader_gave_its_gpus_away(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    nodes = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b")}
    assert isinstance(two_nodes.bind("a", nodes["a"]), BindWait)
    two_nodes.pods["other"] = pod_object(
        "other", uid="other", whole=1, on=nodes["a"], annotations={GROUP_ANNOTATION: "3"}
    )
    two_nodes.scheduling.pod_seen(pod_facts(two_nodes.pods["other"]), 0.0)
    assert "not free any more" in two_nodes.bind("b", nodes["b"]).reason
    assert isinstance(two_nodes.bind("a", nodes["a"]), BindRefused)
    assert not len(two_nodes.scheduling.reservations)


def test_a_job_that_does_not_fit_says_how_much_does_and_starts_when_room_is_made(two_nodes):
    two_nodes.create("other", job=None, whole=3)
    two_nodes.write("other", two_nodes.bind("other", two_nodes.filter("other").nodes[0]))
    for name in ("a", "b", "c"):
        two_nodes.create(name, whole=2, replicas=3)
    pod_text = "(a: node(s) had at most 4 unused GPUs, 2 wanted)"
    text = f"node(s) not given to job j: its 3 pods do not fit together, at most 2 of them do now {pod_text}"
    assert set(two_nodes.filter("a").unresolvable.values()) == {text}
    assert two_nodes.reserved() == 0
    two_nodes.scheduling.pod_gone("other", two_nodes.now)
    del two_nodes.pods["other"]
    two_nodes.scheduling.tick(two_nodes.now)
    assert two_nodes.reserved() == 3
    two_nodes.run("a", "b", "c")


def test_a_pod_that_comes_while_its_job_starts_is_placed_afterwards(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=3)
    on = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b")}
    two_nodes.create("c", whole=3)
    assert two_nodes.reserved() == 2
    assert set(two_nodes.filter("c").unresolvable.values()) == {
        "node(s) not given to job j: it is planned without this pod, which comes next"
    }
    for name in ("a", "b"):
        two_nodes.bind(name, on[name])
    for name in ("a", "b"):
        two_nodes.write(name, two_nodes.bind(name, on[name]))
    assert two_nodes.scheduling.next_due(0.0) == 0.0
    two_nodes.scheduling.tick(0.0)
    text = "node(s) not given to job j: it asks for 9 of aliyun.com/gpu, and the cluster has 8"
    assert set(two_nodes.filter("c").unresolvable.values()) == {text}


@pytest.mark.parametrize("replicas", [(2, 2), (2, 3)])
def test_pods_that_were_asked_about_before_are_woken_when_the_reason_changes(two_nodes, replicas):
    two_nodes.create("a", whole=5, replicas=replicas[0])
    two_nodes.filter("a")
    two_nodes.create("b", whole=5, replicas=replicas[1])
    assert [action.pod.name for action in two_nodes.done if isinstance(action, Nudge)] == ["a"]


def test_two_jobs_of_which_one_fits_never_share_the_room(two_nodes):
    for job in ("j", "k"):
        for name in ("a", "b"):
            two_nodes.create(f"{job}-{name}", job=job, whole=4)
    answers = {name: two_nodes.filter(name) for name in two_nodes.pods}
    assert [name for name, answer in answers.items() if answer.nodes] == ["j-a", "j-b"]
    two_nodes.run("j-a", "j-b")
    assert not two_nodes.filter("k-a").nodes


def test_a_pod_whose_labels_change_leaves_its_job(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    assert two_nodes.reserved() == 2
    two_nodes.create("a", whole=4, replicas=1, asked=False)
    assert two_nodes.reserved() == 0
    assert set(two_nodes.filter("b").unresolvable.values()) == {"node(s) not given to job j: 1 of 2 pods are there"}
    assert two_nodes.filter("a").nodes


def test_a_pod_without_gpus_starts_no_job(two_nodes):
    """kube-scheduler binds a launcher by itself."""
    two_nodes.create("launcher", replicas=3, on="n1")
    two_nodes.create("a", whole=1, replicas=3)
    assert set(two_nodes.filter("a").unresolvable.values()) == {"node(s) not given to job j: 2 of 3 pods are there"}
    two_nodes.create("b", whole=1, replicas=3)
    two_nodes.run("a", "b")


def test_a_plan_beside_a_running_pod_is_over_when_that_pod_ends(two_nodes):
    for name in ("a", "b", "c"):
        two_nodes.create(name, whole=1, replicas=3)
    two_nodes.run("a", "b", "c")
    for name in ("a", "b"):
        two_nodes.scheduling.pod_gone(name, two_nodes.now)
        two_nodes.create(f"{name}2", whole=1, replicas=3)
    assert two_nodes.reserved() == 1
    two_nodes.scheduling.pod_gone("c", two_nodes.now)
    assert two_nodes.reserved() == 0
    assert set(two_nodes.filter("a2").unresolvable.values()) == {"node(s) not given to job j: 2 of 3 pods are there"}


def test_a_job_is_planned_again_when_gpus_of_the_plan_are_not_usable_any_more(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=3)
    on = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b")}
    two_nodes.bind("a", on["a"])
    two_nodes.scheduling.node_seen(whole_node(on["a"], gpus=2))
    assert isinstance(two_nodes.bind("b", on["b"]), BindRefused)
    assert two_nodes.reserved() == 0
    assert not [action for action in two_nodes.done if isinstance(action, CommitJob)]


def test_a_plan_that_breaks_in_bind_is_made_again_soon():
    cluster = JobUnderTest(whole_node("n1"), whole_node("n2"))
    for name in ("a", "b"):
        cluster.create(name, whole=3)
    on = {name: cluster.filter(name).nodes[0] for name in ("a", "b")}
    cluster.bind("a", on["a"])
    cluster.scheduling.node_seen(whole_node(on["a"], gpus=2))
    cluster.bind("b", on["b"])
    assert cluster.reserved() == 0
    cluster.now = RETRY_FIRST_S
    cluster.scheduling.tick(cluster.now)
    assert cluster.reserved() == 2


def test_a_pod_of_a_written_plan_gets_other_gpus_when_its_own_are_not_usable_any_more():
    cluster = JobUnderTest(*[whole_node(f"n{n}", gpus=4) for n in range(3)])
    for name in ("a", "b"):
        cluster.create(name, whole=4)
    on = {name: cluster.filter(name).nodes[0] for name in ("a", "b")}
    for name, node in on.items():
        cluster.bind(name, node)
    cluster.write("a", cluster.bind("a", on["a"]))
    cluster.scheduling.node_seen(whole_node(on["b"], gpus=2))
    assert isinstance(cluster.bind("b", on["b"]), BindRefused)
    cluster.scheduling.tick(cluster.now)
    assert cluster.run("b")["b"].node not in on.values()


def test_gpus_of_a_pod_that_may_be_bound_stay_reserved_when_the_plan_is_over(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    on = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b")}
    for name, node in on.items():
        two_nodes.bind(name, node)
    two_nodes.now = COMMITTED_S - 1
    write = two_nodes.bind("a", on["a"])
    two_nodes.scheduling.bound("a", BindOutcome.UNKNOWN)
    two_nodes.now = COMMITTED_S
    two_nodes.scheduling.tick(two_nodes.now)
    two_nodes.create("thief", job=None, whole=4)
    assert two_nodes.filter("thief", [on["a"]]).failed
    two_nodes.now += RETRY_FIRST_S
    two_nodes.scheduling.tick(two_nodes.now)
    assert two_nodes.reserved() == 1
    two_nodes.write("a", write)
    while not two_nodes.reserved():
        two_nodes.now = max(two_nodes.now, two_nodes.scheduling.next_due(two_nodes.now))
        two_nodes.scheduling.tick(two_nodes.now)
    two_nodes.run("b")


def test_after_a_crash_amid_the_bindings_the_rest_is_bound_where_it_was_planned(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    on = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b")}
    for name, node in on.items():
        two_nodes.bind(name, node)
    two_nodes.write("a", two_nodes.bind("a", on["a"]))
    two_nodes.start()
    two_nodes.create("thief", job=None, whole=4)
    assert not two_nodes.filter("thief").nodes
    assert two_nodes.filter("b").nodes == (on["b"],)
    two_nodes.write("b", two_nodes.bind("b", on["b"]))


def test_after_a_crash_the_rest_of_a_job_reserves_no_more_than_its_node_has_by_now():
    """A GPU became smaller, as by another mode of the node, after the plan was written."""
    cluster = JobUnderTest(shared_node(gpus=1, memory=10))
    for name in ("a", "b", "c"):
        cluster.create(name, mem=3, replicas=3)
    for name in ("a", "b", "c"):
        cluster.bind(name, cluster.filter(name).nodes[0])
    cluster.write("a", cluster.bind("a", "n1"))
    cluster.nodes = [shared_node(gpus=1, memory=8)]
    cluster.start()
    assert cluster.reserved() == 1
    assert cluster.scheduling.usage.nodes["n1"].free == [Amounts(2)]
    cluster.write("b", cluster.bind("b", "n1"))


def test_another_leader_binds_the_rest_of_a_job_where_it_was_planned(two_nodes):
    """It read all pods long before, and followed what the former leader did."""
    standby = JobUnderTest(*two_nodes.nodes)
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    on = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b")}
    for name in ("a", "b"):
        two_nodes.bind(name, on[name])
    two_nodes.write("a", two_nodes.bind("a", on["a"]))
    standby.pods = two_nodes.pods
    for made in two_nodes.pods.values():
        standby.scheduling.pod_seen(pod_facts(made), 0.0)
    standby.scheduling.caught_up(0.0)
    assert standby.reserved() == 1
    standby.create("other", job=None, whole=1)
    assert not standby.filter("other").nodes
    assert standby.filter("b").nodes == (on["b"],)
    standby.write("b", standby.bind("b", on["b"]))


@pytest.mark.parametrize("crash", [False, True])
def test_a_pod_is_bound_also_when_the_others_have_ended_before(two_nodes, crash):
    names = ("a", "b", "c")
    for name in names:
        two_nodes.create(name, whole=2, replicas=3)
    on = {name: two_nodes.filter(name).nodes[0] for name in names}
    for name, node in on.items():
        two_nodes.bind(name, node)
    for name in ("a", "c"):
        two_nodes.write(name, two_nodes.bind(name, on[name]))
        two_nodes.pods[name]["status"]["phase"] = "Succeeded"
        two_nodes.scheduling.pod_seen(pod_facts(two_nodes.pods[name]), two_nodes.now)
    if crash:
        two_nodes.start()
    two_nodes.create("d", whole=2, replicas=3)  # it waits for another
    assert two_nodes.filter("d").unresolvable["n1"] == "node(s) not given to job j: 2 of 3 pods are there"
    assert two_nodes.filter("b").nodes == (on["b"],)
    two_nodes.write("b", two_nodes.bind("b", on["b"]))


def test_a_written_plan_of_which_no_pod_was_bound_starts_no_job_in_part(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    on = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b")}
    for name, node in on.items():
        two_nodes.bind(name, node)
    del two_nodes.pods["a"]
    two_nodes.start()
    assert not two_nodes.filter("b").nodes


def test_a_job_whose_written_plan_ended_without_a_bound_pod_waits_for_all_of_its_pods_again(two_nodes):
    """For example, a GPU fails right after the plan was written, and a pod is deleted before the GPU is repaired."""
    for name in ("a", "b", "c"):
        two_nodes.create(name, whole=2, replicas=3)
    on = {name: two_nodes.filter(name).nodes[0] for name in ("a", "b", "c")}
    for name, node in on.items():
        two_nodes.bind(name, node)
    two_nodes.scheduling.pod_gone("a", two_nodes.now)
    assert two_nodes.filter("b").nodes == (on["b"],), "a Binding may be on its way"
    two_nodes.now = COMMITTED_S
    two_nodes.scheduling.tick(two_nodes.now)
    two_nodes.now += RETRY_FIRST_S
    two_nodes.scheduling.tick(two_nodes.now)
    for name in ("b", "c"):
        assert "2 of 3 pods are there" in str(two_nodes.filter(name).unresolvable)
    assert two_nodes.reserved() == 0
    two_nodes.create("d", whole=2, replicas=3)
    two_nodes.run("b", "c", "d")


def test_a_plan_that_a_tenant_wrote_reserves_nothing_that_is_in_use(two_nodes):
    text = '{"b":["n1",{"used":[[0,-1,-1],[9,-1,-1]],"containers":{}}],"c":[1],"d":7}'
    two_nodes.create("a", whole=2, replicas=3, on="n1", annotations={COMMIT_ANNOTATION: text, GROUP_ANNOTATION: "0,1"})
    two_nodes.create("b", whole=2, replicas=3)
    two_nodes.start()
    assert two_nodes.reserved() == 0


def test_a_pod_that_replaces_another_is_placed_near_the_living(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=1)
    writes = two_nodes.run("a", "b")
    two_nodes.scheduling.pod_gone("b", two_nodes.now)
    del two_nodes.pods["b"]
    two_nodes.create("b2", whole=1)
    assert two_nodes.run("b2")["b2"].node == writes["a"].node


def test_a_job_that_is_created_again_waits_for_its_pods_although_the_former_ones_are_not_gone(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=1)
    two_nodes.run("a", "b")
    for name in ("a", "b"):
        two_nodes.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        two_nodes.scheduling.pod_seen(pod_facts(two_nodes.pods[name]), 1.0)
    two_nodes.create("c", whole=1)
    assert set(two_nodes.filter("c").unresolvable.values()) == {"node(s) not given to job j: 1 of 2 pods are there"}
    assert two_nodes.reserved() == 0
    two_nodes.create("d", whole=1)
    two_nodes.run("c", "d")


def test_a_job_that_is_created_again_starts_whole_although_its_first_pod_seemed_to_replace_another(two_nodes):
    """The watch shows pods in any order: the first new one beside the former ones, which run, the second after them."""
    for name in ("a", "b"):
        two_nodes.create(name, whole=1)
    two_nodes.run("a", "b")
    two_nodes.create("c", whole=1)
    assert two_nodes.filter("c").nodes
    two_nodes.create("d", whole=1)
    for name in ("a", "b"):
        two_nodes.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        two_nodes.scheduling.pod_seen(pod_facts(two_nodes.pods[name]), two_nodes.now)
    assert two_nodes.reserved() == 0
    two_nodes.now += RETRY_FIRST_S
    two_nodes.scheduling.tick(two_nodes.now)
    assert two_nodes.reserved() == 2


def test_a_call_about_a_pod_that_is_gone_holds_up_a_job_once(two_nodes):
    two_nodes.create("a", whole=1)
    two_nodes.scheduling.pod_gone("a", two_nodes.now)
    two_nodes.filter("a")
    two_nodes.create("b", whole=1)
    two_nodes.now = BARRIER_S
    two_nodes.scheduling.tick(two_nodes.now)
    assert set(two_nodes.filter("b").unresolvable.values()) == {"node(s) not given to job j: 1 of 2 pods are there"}
    assert two_nodes.reserved() == 0


def test_a_call_about_a_pod_of_a_former_job_of_the_name_holds_up_nothing(two_nodes):
    two_nodes.scheduling.filter(pod("gone", whole=4, labels={JOB_LABEL: "j", REPLICAS_LABEL: "3"}), ["n1"], 0.0)
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    two_nodes.run("a", "b")


def test_gates_are_removed_when_the_job_is_complete(two_nodes):
    for name in ("a", "b"):
        made = pod_object(name, uid=name, labels={JOB_LABEL: "j", REPLICAS_LABEL: "2"}, whole=1)
        made["spec"]["schedulingGates"] = [{"name": "gpuagent.io/job"}]
        two_nodes.pods[name] = made
        two_nodes.scheduling.pod_seen(pod_facts(made), 0.0)
        two_nodes.act()
    assert [action.pod.name for action in two_nodes.done if isinstance(action, Ungate)] == ["a", "b"]


@pytest.mark.parametrize("nodes", [2, 101])
def test_a_pod_behind_another_controllers_gate_is_not_there_yet(nodes):
    cluster = JobUnderTest(*(whole_node(f"n{n}", gpus=4) for n in range(nodes)))
    queue = ["queue.example/admission"]
    cluster.create("a", whole=4)
    cluster.create("b", whole=4, gates=queue)
    assert cluster.reserved() == 0
    assert not [action for action in cluster.done if isinstance(action, Nominate)]
    expected = "node(s) not given to job j: 1 of 2 pods are there, and 1 have scheduling gate queue.example/admission"
    assert set(cluster.filter("a").unresolvable.values()) == {expected}
    cluster.pods["b"]["spec"]["schedulingGates"] = []
    cluster.scheduling.pod_seen(pod_facts(cluster.pods["b"]), cluster.now)
    cluster.act()
    assert cluster.reserved() == 0, "kube-scheduler has not come to it yet"
    cluster.filter("b")
    assert len(cluster.run("a", "b")) == 2


def test_our_gate_stays_until_the_other_controller_admits_all_pods(two_nodes):
    both = ["gpuagent.io/job", "queue.example/admission"]
    two_nodes.create("a", whole=4, gates=both)
    two_nodes.create("b", whole=4, gates=both)
    ungated = []
    for name in ("a", "b"):
        ungated += [action for action in two_nodes.done if isinstance(action, Ungate)]
        two_nodes.pods[name]["spec"]["schedulingGates"] = [{"name": "gpuagent.io/job"}]
        two_nodes.scheduling.pod_seen(pod_facts(two_nodes.pods[name]), two_nodes.now)
        two_nodes.act()
    assert not ungated
    assert [action.pod.name for action in two_nodes.done if isinstance(action, Ungate)] == ["a", "b"]


def test_in_a_large_cluster_the_planned_node_is_nominated_and_asked_alone():
    cluster = JobUnderTest(*[whole_node(f"n{n:03}", gpus=4) for n in range(150)])
    for name in ("a", "b"):
        cluster.create(name, whole=4)
    nominated = {action.pod.name: action.node for action in cluster.done if isinstance(action, Nominate)}
    assert nominated.keys() == {"a"}, "the other is answered in its call"
    planned = nominated | {"b": cluster.filter("b").nodes[0]}
    facts = pod_facts(cluster.pods["a"])
    others = [node.name for node in cluster.nodes if node.name not in planned.values()]
    assert "kube-scheduler tries next" in cluster.scheduling.filter(facts, others, 0.0).unresolvable[others[0]]
    assert cluster.scheduling.filter(facts, [planned["a"]], 0.0).nodes == (planned["a"],)


def test_a_plan_keeps_to_the_nodes_that_kube_scheduler_names():
    """Such as those that the pods' node selector admits."""
    cluster = JobUnderTest(*[whole_node(f"n{n}", gpus=4) for n in range(8)])
    for name in ("a", "b"):
        cluster.create(name, whole=4)
    assert cluster.filter("a", ["n6", "n7"]).nodes
    on = {name: cluster.filter(name, ["n6", "n7"]).nodes[0] for name in ("a", "b")}
    assert set(on.values()) == {"n6", "n7"}
    for name in ("a", "b"):
        cluster.bind(name, on[name])
    for name in ("a", "b"):
        cluster.write(name, cluster.bind(name, on[name]))


def test_pods_of_a_job_may_keep_to_different_nodes():
    cluster = JobUnderTest(*[whole_node(f"n{n}", gpus=4) for n in range(8)])
    for name in ("a", "b"):
        cluster.create(name, whole=4)
    names = {"a": ["n6"], "b": ["n3"]}
    for now in (0.0, RETRY_FIRST_S):
        cluster.now = now
        on = {name: cluster.filter(name, names[name]).nodes for name in ("a", "b")}
    assert on == {"a": ("n6",), "b": ("n3",)}


def test_a_job_that_does_not_fit_on_the_named_nodes_holds_nothing_and_has_kube_scheduler_ask_again(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    other = next(name for name in ("a", "b") if two_nodes.filter(name).nodes == ("n2",))
    pod_text = "(a: node(s) had at most 4 unused GPUs, 4 wanted)"
    where = "on the nodes that kube-scheduler names"
    text = f"node(s) not given to job j: its 2 pods do not fit together, at most 1 of them do now {where} {pod_text}"
    first = "b" if other == "a" else "a"
    assert two_nodes.filter(other, ["n1"]).nodes == ("n1",), "they change places"
    assert two_nodes.filter(first, ["n1"]).unresolvable == {"n1": text}
    assert two_nodes.reserved() == 0
    two_nodes.done.clear()
    for two_nodes.now in (RETRY_FIRST_S, RETRY_FIRST_S + UNSUITABLE_S):
        two_nodes.scheduling.tick(two_nodes.now)
        two_nodes.act()
    assert [type(action) for action in two_nodes.done] == [Nudge]
    assert two_nodes.reserved() == 0
    two_nodes.run("a", "b")


def test_a_job_whose_plan_broke_is_due_also_when_its_delay_is_over(two_nodes):
    """The process wakes a little later than it wanted to."""
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    other = next(name for name in ("a", "b") if two_nodes.filter(name).nodes == ("n2",))
    assert two_nodes.filter(other, ["n1"]).nodes == ("n1",)
    first = "b" if other == "a" else "a"
    assert not two_nodes.filter(first, ["n1"]).nodes
    two_nodes.scheduling.tick(two_nodes.now)
    two_nodes.filter(other, ["n1", "n2"])
    assert two_nodes.scheduling.next_due(two_nodes.now) == RETRY_FIRST_S
    two_nodes.now = RETRY_FIRST_S + 0.1
    assert two_nodes.scheduling.next_due(two_nodes.now) <= two_nodes.now
    two_nodes.scheduling.tick(two_nodes.now)
    assert two_nodes.reserved() == 2


def test_in_a_large_cluster_a_job_keeps_to_nodes_that_were_named():
    """kube-scheduler names a hundred nodes or more of those that it accepts, and does not accept the nominated one."""
    cluster = JobUnderTest(*[whole_node(f"n{n:03}", gpus=4) for n in range(400)])
    for name in ("a", "b"):
        cluster.create(name, whole=4)
    planned = next(action.node for action in cluster.done if isinstance(action, Nominate))
    cluster.pods["a"]["status"]["nominatedNodeName"] = planned
    other = cluster.filter("b").nodes
    names = [f"n{n:03}" for n in range(250, 370) if f"n{n:03}" != planned]
    assert cluster.filter("a", names).nodes[0] in names
    assert cluster.filter("b").nodes == other, "the place of the other pod stays"


@pytest.mark.parametrize("named", [99, 100])
def test_a_hundred_named_nodes_may_be_where_kube_scheduler_stopped(named):
    """With fewer it has looked at all nodes, and does not accept the others."""
    cluster = JobUnderTest(*[whole_node(f"n{n:03}", gpus=4) for n in range(150)])
    for name in ("a", "b"):
        cluster.create(name, whole=4)
    planned = next(action.node for action in cluster.done if isinstance(action, Nominate))
    others = [node.name for node in cluster.nodes if node.name != planned][:named]
    chosen = cluster.filter("a", others).nodes
    assert bool(chosen) is (named < 100), "the planned node is asked about next"


@pytest.mark.parametrize(
    ("replicas", "words"),
    [(("2", "3"), "disagree on label gpu-topology-replica (2 and 3)"), (("x", "x"), "is no number of pods")],
)
def test_a_job_whose_labels_make_no_sense_says_so(two_nodes, replicas, words):
    for name, number in zip("ab", replicas, strict=True):
        two_nodes.create(name, whole=1, replicas=number)
    assert words in two_nodes.filter("a").unresolvable["n1"]
    assert two_nodes.reserved() == 0


@pytest.mark.parametrize(
    ("minimums", "words"),
    [
        (("2", "3"), "disagree on label pod-group.scheduling.sigs.k8s.io/min-available (2 and 3)"),
        (("x", "x"), "label pod-group.scheduling.sigs.k8s.io/min-available is no number of pods"),
        (("3", "3"), "pod group train: 2 of 3 pods are there"),
    ],
)
def test_a_pod_group_by_labels_that_cannot_start_says_why(two_nodes, minimums, words):
    for name, minimum in zip("ab", minimums, strict=True):
        two_nodes.create(name, job=None, whole=1, labels={NAME: "train", MINIMUM: minimum})
    assert words in two_nodes.filter("a").unresolvable["n1"]
    assert two_nodes.reserved() == 0


def test_jobs_that_wait_are_planned_one_after_the_other(two_nodes):
    two_nodes.create("other", job=None, whole=1)
    two_nodes.write("other", two_nodes.bind("other", two_nodes.filter("other").nodes[0]))
    for job, gpus in (("j", 4), ("k", 3), ("l", 1)):
        for name in "ab":
            two_nodes.create(f"{job}-{name}", job=job, whole=gpus)
    assert two_nodes.reserved() == 2  # of job k
    two_nodes.scheduling.pod_gone("other", two_nodes.now)
    del two_nodes.pods["other"]
    for _ in ("j", "l"):
        assert two_nodes.scheduling.next_due(two_nodes.now) == two_nodes.now
        two_nodes.scheduling.tick(two_nodes.now)
    assert two_nodes.scheduling.next_due(two_nodes.now) > two_nodes.now
    assert two_nodes.reserved() == 4


def test_as_many_pods_of_a_job_are_planned_on_a_node_as_fit_one_by_one():
    rng = random.Random(1)
    for _ in range(200):
        core = rng.choice([0, 100])
        rules = {"most_pods": rng.randint(1, 5), "core_step": rng.choice([1, 5])}
        node = NodeUsage(shared_node(gpus=rng.randint(1, 4), memory=rng.randint(1, 20), core=core, **rules))
        for n in range(rng.randint(0, 4)):
            there = pod(mem=rng.randint(1, 8), **({"core": 5 * rng.randint(1, 10)} if core else {}))
            if choice := fit(there.request, node):
                node.use(f"there-{n}", choice.used)
        asked = [rng.randint(1, 8), rng.choice([0, 0, 5, 7, 30])]
        pods = [pod(mem=asked[0], core=asked[1]) if asked[1] else pod(mem=asked[0]) for _ in range(10)]
        places, one_by_one = plan(pods, {"n1": node}, Links()), 0
        while one_by_one < len(pods) and (choice := fit(pods[0].request, node)):
            node.use(str(one_by_one), choice.used)
            one_by_one += 1
        assert len(places) == one_by_one


def test_jobs_of_shares_are_whole_or_wait_too():
    cluster = JobUnderTest(shared_node("n1", gpus=2, memory=10), shared_node("n2", gpus=1, memory=10))
    for name in ("a", "b", "c"):
        cluster.create(name, mem=7, replicas=3)
    assert sorted(write.node for write in cluster.run("a", "b", "c").values()) == ["n1", "n1", "n2"]
    for name in ("d", "e"):
        cluster.create(name, job="k", mem=3)
    assert {write.node for write in cluster.run("d", "e").values()} == {"n1"}


def test_no_pod_is_planned_on_a_gpu_that_others_use_beyond_what_it_has():
    """As after a switch from mode core_mem to share: pods with compute still run, and the GPU has none to give."""
    node = NodeUsage(shared_node("n1", gpus=1))
    node.use("old", ((0, Amounts(1, 45)),))
    assert plan([pod(mem=1)], {"n1": node}, Links()) == {}


def test_a_job_whose_pods_are_being_deleted_makes_no_work(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=4)
    other = next(name for name in ("a", "b") if two_nodes.filter(name).nodes == ("n2",))
    assert two_nodes.filter(other, ["n1"]).nodes == ("n1",)
    first = "b" if other == "a" else "a"
    assert not two_nodes.filter(first, ["n1"]).nodes
    for made in two_nodes.pods.values():
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        two_nodes.scheduling.pod_seen(pod_facts(made), two_nodes.now)
    two_nodes.now = RETRY_FIRST_S + UNSUITABLE_S
    for _ in range(3):
        two_nodes.scheduling.tick(two_nodes.now)
    assert two_nodes.scheduling.next_due(two_nodes.now) is None


def test_a_call_about_a_pod_that_is_being_deleted_gets_an_error(two_nodes):
    two_nodes.create("a", whole=4)["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    assert "has changed" in two_nodes.filter("a").error


def test_the_second_job_of_a_name_waits_until_the_first_has_ended(two_nodes):
    """Each has its own controller. A mix of both would be no job."""
    for name in ("a0", "b0", "a1", "b1"):  # the first two seem to be a whole job
        two_nodes.create(name, whole=1, owner=f"controller-{name[0]}")
    two_nodes.now = RETRY_FIRST_S
    two_nodes.scheduling.tick(two_nodes.now)
    two_nodes.run("a0", "a1")
    why = "node(s) not given to job j: all of its 2 pods are there; a second job in the namespace needs its own name"
    for name in ("b0", "b1"):
        assert set(two_nodes.filter(name).unresolvable.values()) == {why}
    for name in ("a0", "a1"):
        del two_nodes.pods[name]
        two_nodes.scheduling.pod_gone(name, two_nodes.now)
    two_nodes.act()
    two_nodes.run("b0", "b1")


def test_a_controller_may_add_pods_to_a_job_that_runs(two_nodes):
    for name in ("a", "b"):
        two_nodes.create(name, whole=1, owner="controller")
    two_nodes.run("a", "b")
    two_nodes.create("c", whole=1, owner="controller")
    assert two_nodes.filter("c").nodes


def test_several_controllers_create_the_pods_of_a_job(two_nodes):
    for name in ("a", "b", "c"):
        two_nodes.create(name, replicas=3, whole=1, owner=f"controller-{name}")
    two_nodes.run("a", "b", "c")


def test_a_job_whose_pods_fit_on_no_node_says_why():
    cluster = JobUnderTest(*(whole_node(f"n{n}", gpus=4) for n in range(4)))
    for name in ("a", "b"):
        cluster.create(name, whole=5)
    text = "node(s) not given to job j: its 2 pods do not fit together, at most 0 of them do now (a: node(s) had fewer than 5 GPUs)"
    assert set(cluster.filter("a").unresolvable.values()) == {text}


def test_jobs_are_counted_by_state(two_nodes):
    states = two_nodes.scheduling.jobs.states
    two_nodes.create("a", whole=1)
    two_nodes.create("odd", job="invalid", replicas="x", whole=1)
    assert states() == {JobState.FORMING: 1, JobState.INVALID: 1}
    two_nodes.create("b", whole=1)
    assert states()[JobState.PLANNED] == 1
    two_nodes.run("a", "b")
    assert states()[JobState.RUNNING] == 1
    for name in ("c", "d"):
        two_nodes.create(name, job="large", whole=4)
    assert states()[JobState.WAITING] == 1
