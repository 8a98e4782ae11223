"""What the nodes that kube-scheduler names for a pod say about the others."""

import pytest

from gpuscheduler.core.cluster_usage import MIN_FEASIBLE_NODES
from gpuscheduler.core.jobs.places.plan import OtherThan
from gpuscheduler.core.jobs.planning.named_nodes import NamedNodes, left_out, passed_with
from gpuscheduler.core.jobs.rejected_nodes import LeftOut
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import pod, pod_object, whole_node

SMALL = {f"n{number}": NodeUsage(whole_node(f"n{number}")) for number in range(3)}
LARGE = dict.fromkeys([f"n{number}" for number in range(MIN_FEASIBLE_NODES + 1)], SMALL["n0"])
ENOUGH = [f"n{number}" for number in range(MIN_FEASIBLE_NODES)]


def nominated_for(node):
    made = pod_object(whole=1)
    made["status"]["nominatedNodeName"] = node
    return pod_facts(made)


@pytest.mark.parametrize(
    ("names", "nodes", "are_all"),
    [
        (["n0"], SMALL, True),
        ([], SMALL, True),
        # kube-scheduler came to the end, as it stops at a hundred and not before.
        (ENOUGH[:-1], LARGE, True),
        (ENOUGH, LARGE, False),
    ],
)
def test_nodes_that_are_not_named_are_rejected_if_kube_scheduler_has_seen_all(names, nodes, are_all):
    named = NamedNodes(pod(whole=1), names, nodes)
    assert named.are_all is are_all
    other = f"n{len(nodes) - 1}"
    assert named.rejects(other) is are_all
    assert not any(named.rejects(name) for name in names)


def test_the_nominated_node_is_tried_first_and_may_be_the_only_one_that_was():
    only = NamedNodes(nominated_for("n0"), ["n0"], SMALL)
    assert not only.are_all
    assert not only.rejects("n1")
    among_many = NamedNodes(nominated_for(f"n{MIN_FEASIBLE_NODES}"), ENOUGH, LARGE)
    assert not among_many.are_all
    assert among_many.rejects(f"n{MIN_FEASIBLE_NODES}")


def test_the_others_of_a_large_cluster_are_not_listed():
    assert NamedNodes(pod(whole=1), ["n0"], SMALL).others() == {"n1", "n2"}
    assert NamedNodes(pod(whole=1), ["n0"], LARGE).others() == OtherThan(frozenset(["n0"]))


def test_nodes_that_are_passed_over_are_added_up():
    more = frozenset(["n1"])
    assert passed_with(None, more) == more
    assert passed_with(frozenset(["n0"]), more) == {"n0", "n1"}
    assert passed_with(OtherThan(frozenset(["n0", "n1"])), more) == OtherThan(frozenset(["n0"]))


def test_nodes_with_room_are_told_from_those_without():
    """Not other pods keep this one off a node with room, but for example a volume."""
    nodes = {**SMALL, "small": NodeUsage(whole_node("small", gpus=1))}
    passed = frozenset(["n1", "small", "gone"])
    assert left_out(pod(whole=2), passed, nodes) == LeftOut(passed, frozenset(["n1"]))
    assert left_out(pod(whole=2), OtherThan(frozenset(["n0"])), nodes) == LeftOut(OtherThan(frozenset(["n0"])))


def test_a_resource_that_a_named_node_lacks_is_not_checked():
    made = pod_object(whole=1)
    made["spec"]["containers"][0]["resources"]["requests"] = {"example.com/nic": "1"}
    asked = pod_facts(made)
    assert NamedNodes(asked, ["n0", "gone"], SMALL).unchecked() == {"example.com/nic"}
    assert NamedNodes(asked, ["gone"], SMALL).unchecked() == set()
