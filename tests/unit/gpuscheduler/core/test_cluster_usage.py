"""What pods use of nodes, in whatever order nodes and pods are seen, and when something became free."""

import pytest

from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.resources import NO_RESOURCES, Resources
from gpuscheduler.core.gpu_request import WHOLE, Amounts
from gpuscheduler.core.node_usage import NodeUsage
from tests.unit.gpuscheduler.core.api_objects import pod, shared_node, whole_node


def units(minor, memory, core=0):
    return ((minor, Amounts(memory, core)),)


@pytest.fixture
def usage():
    made = ClusterUsage()
    for name in ("n1", "n2"):
        made.node_seen(shared_node(name))
    made.changed.clear()
    return made


def free(usage, name="n1"):
    return [amounts.memory for amounts in usage.nodes[name].free]


def test_a_use_counts_on_its_node_alone_until_it_is_released(usage):
    frees = usage.frees
    usage.use("a", "n1", units(0, 4))
    usage.use("a", "n2", units(1, 4))
    assert (free(usage), free(usage, "n2"), usage.frees) == ([6, 10], [10, 6], frees)
    assert list(usage.nodes_of("a")) == ["n1", "n2"]
    usage.changed.clear()
    usage.use("a", "n1", units(0, 4))
    assert not usage.changed, "the same use is no change"
    usage.use("a", "n1", units(0, 2))
    assert (free(usage), usage.frees, usage.changed) == ([8, 10], frees + 1, {"n1"})
    usage.release("a", "n1")
    assert (free(usage), free(usage, "n2"), usage.frees) == ([10, 10], [10, 6], frees + 2)
    usage.release("a", "n1")
    assert usage.frees == frees + 2
    usage.use("a", "n1", units(0, 4))
    usage.release("a")
    assert (free(usage), free(usage, "n2"), list(usage.nodes_of("a"))) == ([10, 10], [10, 10], [])


def test_what_is_used_on_a_node_counts_when_the_node_comes_and_comes_again(usage):
    usage.use("a", "n3", units(1, 4))
    usage.occupy("other", "n3", Occupant(requests=Resources(cpu=3000, pods=1)))
    for _ in range(2):
        usage.node_seen(shared_node("n3"))
        assert (free(usage, "n3"), usage.nodes["n3"].used) == ([10, 6], Resources(cpu=3000, pods=1))
        usage.node_gone("n3")
    usage.release("a")
    usage.node_seen(shared_node("n3"))
    assert free(usage, "n3") == [10, 10]


def test_resources_that_come_back_are_news_and_those_that_go_are_none(usage):
    """Of any kind: a job may wait for memory, or for a place among the pods of a node."""
    frees = usage.frees
    requests = Resources(cpu=100, memory=7, pods=1, others=(("ephemeral-storage", 3),))
    usage.occupy("a", "n1", Occupant(requests=requests))
    usage.occupy("b", "n1", Occupant(requests=requests))
    assert (usage.nodes["n1"].used, usage.frees) == (requests + requests, frees)
    usage.occupy("a", "n1", Occupant(requests=requests))
    assert usage.nodes["n1"].used == requests + requests, "the same pod counts once"
    usage.release("a")
    assert (usage.nodes["n1"].used, usage.frees) == (requests, frees + 1)
    usage.release("b", "n1")
    usage.release("b", "n1")
    assert (usage.nodes["n1"].used, usage.frees) == (NO_RESOURCES, frees + 2)


def test_the_units_in_all_follow_the_nodes(usage):
    assert usage.in_all() == (Amounts(40, 0), 0)
    usage.node_seen(whole_node("n3", 8))
    assert usage.in_all() == (Amounts(40, 0), 8)
    usage.node_seen(shared_node("n1", gpus=1, memory=7, core=100))
    assert usage.in_all() == (Amounts(27, 100), 8)
    usage.node_gone("n3")
    assert usage.in_all() == (Amounts(27, 100), 0)


@pytest.mark.parametrize("name", ["n1", "without-gpus"])
def test_a_node_that_goes_is_news_once_whether_it_has_gpus_or_not(usage, name):
    """Pods are spread over both, so that a job may fit without the zone of a node."""
    usage.site_seen(NodeSite("without-gpus"))
    frees = usage.frees
    usage.node_gone(name)
    usage.node_gone(name)
    assert usage.frees == frees + 1


def test_a_node_that_is_as_it_was_frees_nothing(usage):
    frees = usage.frees
    usage.node_seen(shared_node("n1"))
    assert (usage.frees, usage.changed) == (frees, set())


def test_what_has_room_and_what_still_has_its_units():
    node = NodeUsage(shared_node("n1", memory=10, core=100))
    node.use("a", units(0, 6, 50))
    assert node.has_room(units(0, 4, 50))
    assert not node.has_room(units(0, 5, 50))
    assert not node.has_room(units(0, 4, 51))
    assert not node.has_room(((0, WHOLE),))
    assert not node.has_room(units(2, 1))
    assert node.has_room((*units(0, 4, 50), *units(1, 10, 100)))
    assert not node.has_room((*units(1, 10, 100), *units(0, 5, 50)))
    node.use("b", units(0, 4, 50))
    assert node.still_has(units(0, 4, 50))
    assert not node.still_has(units(2, 1))
    node.use("c", units(0, 0, 1))
    assert not node.still_has(units(0, 4, 50))
    assert node.still_has(units(1, 10, 100))


def test_a_whole_gpu_has_room_for_one_pod():
    node = NodeUsage(whole_node("n1", 2))
    assert node.has_room(((0, WHOLE), (1, WHOLE)))
    node.use("a", ((0, WHOLE),))
    assert not node.has_room(((0, WHOLE),))
    assert not node.has_room(units(1, 1))
    assert (node.unused(), [node.is_unused(n) for n in (0, 1)]) == ([1], [False, True])
    assert node.still_has(((0, WHOLE),))
    node.use("b", ((0, WHOLE),))
    assert not node.still_has(((0, WHOLE),))


def test_a_use_of_a_gpu_that_the_node_lacks_counts_on_all():
    node = NodeUsage(shared_node("n1", memory=10))
    node.use("a", (*units(0, 3), *units(7, 4)))
    assert [amounts.memory for amounts in node.free] == [6, 6]
    node.use("b", pod(mem=2).request)
    assert [amounts.memory for amounts in node.free] == [4, 4]
    copy = node.copy()
    copy.release("a")
    assert [amounts.memory for amounts in copy.free] == [8, 8]
    assert [amounts.memory for amounts in node.free] == [4, 4]
