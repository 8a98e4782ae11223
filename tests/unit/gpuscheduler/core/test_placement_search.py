"""Places for pods that start together: for all, for as many as have to, or where decided pods give way."""

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.gpu_request import WHOLE
from gpuscheduler.core.jobs.job import Job, key_of
from gpuscheduler.core.jobs.planning.placement_search import PlacementSearch
from gpuscheduler.core.jobs.priority.precedence import Precedence
from gpuscheduler.core.jobs.start_plan import StartPlan
from gpuscheduler.core.jobs.work_shares import WorkShares
from gpuscheduler.core.links import Links
from tests.unit.gpuscheduler.core.api_objects import pod, whole_node


class Searched:
    """Nodes with a GPU each, and a job of three pods of which `wanted` start together."""

    def __init__(self, nodes, wanted=3):
        self.usage = ClusterUsage()
        for number in range(nodes):
            self.usage.node_seen(whole_node(f"n{number}", gpus=1))
        links, work = Links(), WorkShares()
        self.search = PlacementSearch(self.usage, links, {}, Precedence(self.usage, links, {}, 0.0, work), work)
        labels = {JOB_LABEL: "j", REPLICAS_LABEL: str(wanted)}
        self.pods = [
            pod(f"p{number}", uid=f"p{number}", labels=labels, whole=1, created=f"2026-01-01T00:00:0{number}Z")
            for number in range(3)
        ]
        self.job = Job(key_of(self.pods[0]))
        for member in self.pods:
            self.job.members.put(member)

    def take(self, node, uid="other"):
        self.usage.use(uid, node, ((0, WHOLE),))

    def to_start(self):
        return self.search.to_start(self.job, self.pods)


class Decided:
    """A pod that is decided for a node, and gives way."""

    def __init__(self, searched, node):
        self.usage = searched.usage
        self.node = node
        self.taken_back = []
        searched.take(node, uid="decided")

    def behind(self, _pod):
        yield self.node, ["decided"]

    def take_back(self, uids):
        self.taken_back += uids
        for uid in uids:
            self.usage.release(uid)


def nodes_of(placement):
    return {node for node, _ in placement.places.values()}


def test_all_pods_get_places_and_nothing_is_reserved():
    searched = Searched(nodes=3)
    placement = searched.to_start()
    assert nodes_of(placement) == {"n0", "n1", "n2"}
    assert (placement.fitting, placement.gave_up, placement.shortage) == (3, False, "")
    assert searched.job.plan is None
    assert searched.to_start() == placement


def test_too_few_places_say_how_many_pods_fit():
    placement = Searched(nodes=2).to_start()
    assert len(placement.places) == placement.fitting == 2


def test_as_many_as_have_to_start_together_get_places_the_first_ones():
    placement = Searched(nodes=2, wanted=2).to_start()
    assert placement.places.keys() == {"p0", "p1"}


def test_a_decided_pod_gives_way_only_if_that_helps():
    searched = Searched(nodes=3)
    searched.search.decisions = Decided(searched, "n2")
    assert len(searched.to_start().places) == 3
    assert searched.search.decisions.taken_back == ["decided"]

    too_few = Searched(nodes=3)
    too_few.take("n0")
    too_few.search.decisions = Decided(too_few, "n2")
    assert too_few.to_start().fitting == 1
    assert too_few.search.decisions.taken_back == []


def test_one_pod_is_moved_and_the_others_stay():
    searched = Searched(nodes=4)
    before = searched.to_start()
    searched.job.plan = StartPlan(before.places, until=15.0)
    node, _ = before.places["p1"]
    placement = searched.search.elsewhere(searched.job, searched.job.plan, "p1", frozenset([node]))
    moved = {uid for uid, place in placement.places.items() if place[0] != before.places[uid][0]}
    assert placement.places["p1"][0] != node
    assert len(placement.places) == 3
    assert len(moved) <= 2
