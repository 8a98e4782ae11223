"""kube-scheduler is led to evict pods for a job of which each pod fits alone: it tries one pod at a time."""

import pytest

from gpuagent.domain.pods.pod import PodName
from gpuscheduler.core.calls import Nominate, Nudge
from gpuscheduler.core.jobs.priority.evictions import AGAIN_S, ATTEMPT_S, BY_ITSELF_S, LOOK_AGAIN_S
from gpuscheduler.core.jobs.priority.joint_attempt import MOST_RENEWALS
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import MOST_FOR_A_MEMBER
from tests.unit.gpuscheduler.core.api_objects import whole_node
from tests.unit.gpuscheduler.core.test_precedence import Cluster
from tests.unit.gpuscheduler.core.work import calls_of

HIGH = 1000


class Nominated(Cluster):
    """The API server has the nominations, and the watch shows them."""

    def show(self, name, node):
        """The watch shows a nomination, or that there is none."""
        self.pods[name]["status"]["nominatedNodeName"] = node
        self.scheduling.pod_seen(pod_facts(self.pods[name]), self.now)
        self.act()

    def take(self, kind):
        """The actions of a kind since the last call of this."""
        actions = [action for action in self.done if isinstance(action, kind)]
        self.done = [action for action in self.done if not isinstance(action, kind)]
        return actions

    def written(self):
        """Nominations are written, and shown; pod to node."""
        written = {action.pod.name: action.node for action in self.take(Nominate)}
        for name, node in written.items():
            self.show(name, node)
        return written

    def woken(self):
        return [action.pod.name for action in self.take(Nudge)]

    def preempted(self, name, proposed):
        return self.scheduling.preempt(pod_facts(self.pods[name]), proposed, self.now)

    def run_low(self, name, node, whole=4, **given):
        self.create(name, job=None, asked=False, whole=whole, **given)
        assert self.filter(name, [node]).nodes
        self.write(name, self.bind(name, node))

    def job(self, *names, **given):
        """A job whose pods kube-scheduler has come to, long enough ago."""
        for name in names:
            self.create(name, replicas=len(names), asked=False, **{"priority": HIGH, **given})
        for name in names:
            assert not self.filter(name).nodes
        self.at(self.now)
        self.done.clear()
        self.at(self.now + BY_ITSELF_S)


@pytest.fixture
def half_free():
    """A node of 8 GPUs, of which a pod has 4."""
    cluster = Nominated(whole_node("n0", gpus=8))
    cluster.run_low("low", "n0")
    return cluster


def test_kube_scheduler_is_woken_when_all_nominations_stand(half_free):
    """Earlier, it would find room for the one pod that it tries."""
    half_free.job("a", "b", whole=4)
    assert {action.pod.name: action.node for action in half_free.take(Nominate)} == {"a": "n0", "b": "n0"}
    half_free.show("a", "n0")
    assert half_free.woken() == []
    half_free.show("b", "n0")
    assert half_free.woken() == ["a"]
    assert half_free.preempted("a", {"n0": ["low"]}) == {"n0": ["low"]}
    half_free.ends("low")
    half_free.at(half_free.now + 1)
    half_free.run("a", "b")


def test_a_nomination_that_kube_scheduler_has_cleared_is_written_again(half_free):
    """It tries a pod as soon as it is nominated, and clears that if the others were not nominated yet."""
    half_free.job("a", "b", whole=4)
    assert half_free.written() == {"a": "n0", "b": "n0"}
    half_free.woken()
    half_free.show("a", "")
    assert half_free.woken() == []
    assert half_free.written() == {"a": "n0"}
    assert half_free.woken() == ["a"]


def test_cleared_nominations_are_written_again_a_few_times_only(half_free):
    half_free.job("a", "b", whole=4)
    renewals = 0
    while half_free.written():
        renewals += 1
        half_free.show("a", "")
    assert renewals == 1 + 2 * MOST_RENEWALS


def test_the_nominations_are_taken_back_after_a_while(half_free):
    """For example, a budget may forbid that pods are evicted."""
    half_free.job("a", "b", whole=4)
    begun = half_free.now
    half_free.written()
    half_free.at(begun + ATTEMPT_S)
    assert half_free.written() == {"a": "", "b": ""}
    half_free.at(begun + AGAIN_S - 1)
    assert half_free.written() == {}
    half_free.at(begun + AGAIN_S)
    assert half_free.written() == {"a": "n0", "b": "n0"}


def test_the_nominations_are_taken_back_when_the_job_ends(half_free):
    half_free.job("a", "b", whole=4)
    half_free.written()
    half_free.ends("b")
    assert Nominate(PodName("default", "a"), "a", "") in half_free.done


def test_one_pod_is_woken_on_each_node_that_lacks_room():
    cluster = Nominated(*(whole_node(f"n{number}", gpus=8) for number in range(3)))
    cluster.run_low("full", "n0", whole=8, priority=2 * HIGH)
    for number in (1, 2):
        cluster.run_low(f"low{number}", f"n{number}")
    cluster.job("a", "b", "c", "d", whole=4)
    on = cluster.written()
    assert sorted(on.values()) == ["n1", "n1", "n2", "n2"]
    woken = cluster.woken()
    assert {on[name] for name in woken} == {"n1", "n2"}
    for name in woken:
        number = on[name][1]
        proposed = {f"n{number}": [f"low{number}"] for number in (1, 2)}
        assert cluster.preempted(name, proposed) == {f"n{number}": [f"low{number}"]}, "where it is nominated"


def test_the_pod_of_the_lowest_priority_is_woken(half_free):
    """kube-scheduler does not count nominated pods of a lower one."""
    half_free.create("a", whole=4, asked=False, priority=2 * HIGH)
    half_free.create("b", whole=4, asked=False, priority=HIGH)
    for name in ("a", "b"):
        half_free.filter(name)
    half_free.at(0.0)
    half_free.at(BY_ITSELF_S)
    half_free.done = half_free.take(Nominate)
    half_free.written()
    assert half_free.woken() == ["b"]


def test_nothing_is_nominated_while_pods_end_that_kube_scheduler_evicts_by_itself():
    """The one node has room for a pod of the job; on the other, kube-scheduler finds pods to evict by itself."""
    cluster = Nominated(*(whole_node(f"n{number}", gpus=8) for number in range(2)))
    cluster.run_low("low0", "n0")
    cluster.run_low("low1", "n1", whole=8)
    for name in ("a", "b"):
        cluster.create(name, whole=4, asked=False, priority=HIGH)
    for name in ("a", "b"):
        assert not cluster.filter(name, ["n0"]).nodes
    assert cluster.preempted("b", {"n1": ["low1"]}) == {"n1": ["low1"]}
    cluster.at(BY_ITSELF_S)
    assert cluster.written() == {}
    cluster.at(LOOK_AGAIN_S)
    assert cluster.written() == {"a": "n0", "b": "n0"}, "they have not ended"


def test_nothing_is_nominated_where_pods_end_anyway(half_free):
    """Otherwise kube-scheduler might evict others on the node."""
    half_free.pods["low"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    half_free.scheduling.pod_seen(pod_facts(half_free.pods["low"]), half_free.now)
    half_free.job("a", "b", whole=4)
    assert half_free.written() == {}
    half_free.ends("low")
    half_free.at(half_free.now + 1)
    half_free.run("a", "b")


def test_evictions_for_a_job_end_when_pods_end_that_make_room_enough(half_free):
    half_free.job("a", "b", whole=4)
    half_free.written()
    half_free.pods["low"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    half_free.scheduling.pod_seen(pod_facts(half_free.pods["low"]), half_free.now)
    assert half_free.preempted("a", {"n0": ["other"]}) == {}


@pytest.mark.parametrize("why", ["too low", "too large", "Never", "a native group", "budget of nodes"])
def test_nothing_is_nominated_where_evictions_do_not_help(half_free, why):
    given = {"priority": 0 if why == "too low" else HIGH}
    for name in ("a", "b"):
        made = half_free.create(name, whole=8 if why == "too large" else 4, asked=False, **given)
        if why == "Never":
            made["spec"]["preemptionPolicy"] = "Never"
        if why == "a native group":
            made["spec"]["schedulingGroup"] = {"podGroupName": "j"}
        half_free.scheduling.pod_seen(pod_facts(made), half_free.now)
    if why == "budget of nodes":
        half_free.ends("low")
        half_free.run_low("urgent", "n0", priority=2 * HIGH)
    for name in ("a", "b"):
        half_free.filter(name)
    half_free.at(0.0)
    half_free.at(BY_ITSELF_S)
    half_free.at(LOOK_AGAIN_S)
    assert half_free.written() == {}


def test_no_pod_is_evicted_where_the_job_would_not_start_any_more(half_free):
    half_free.job("a", "b", whole=4)
    half_free.written()
    half_free.scheduling.usage.release("low")
    half_free.run_low("urgent", "n0", priority=2 * HIGH)
    assert half_free.preempted("a", {"n0": ["urgent"]}) == {}


def test_a_new_leader_takes_back_the_nominations_of_the_former_one(half_free):
    half_free.job("a", "b", whole=4)
    half_free.written()
    half_free.scheduling.caught_up(half_free.now)
    half_free.act()
    assert half_free.written() == {"a": "", "b": ""}


def test_the_places_of_a_large_job_are_worked_out_once_for_all_of_its_pods():
    """kube-scheduler asks for each of them, and a call takes a part of the time of all other pods."""
    cluster = Nominated(*(whole_node(f"n{number}", gpus=8) for number in range(40)))
    for number in range(40):
        cluster.run_low(f"low{number}", f"n{number}")
    names = [f"p{number}" for number in range(32)]
    for name in names:
        cluster.create(name, replicas=len(names), whole=8, asked=False, priority=HIGH)
    proposed = {f"n{number}": [f"low{number}"] for number in range(40)}
    for name in names[:-1]:
        assert cluster.preempted(name, proposed) == {}
    first, victims = calls_of(lambda: cluster.preempted(names[-1], proposed))
    assert len(victims) == MOST_FOR_A_MEMBER
    second, victims = calls_of(lambda: cluster.preempted(names[0], proposed))
    assert len(victims) == MOST_FOR_A_MEMBER
    assert second < first / 2
