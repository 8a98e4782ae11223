"""What the watches show is read, whatever is in it."""

from types import SimpleNamespace

import pytest

from gpuscheduler.core.pod_facts import MOST_READ
from gpuscheduler.followers import UNHEALTHY, ConfigMapFollower, PodFollower
from tests.unit.gpuscheduler.core.api_objects import container, pod_object
from tests.unit.gpuscheduler.core.work import calls_of


class Nodes:
    """Keeps what it is told."""

    def __init__(self):
        self.minors = {}

    def unhealthy(self, name, minors):
        self.minors[name] = minors


@pytest.mark.parametrize(
    ("text", "minors"),
    [
        ("1, 2", {1, 2}),
        ("007", {7}),
        ("9" * 5000, set()),
        (f"3,{'9' * 5000},4", {3, 4}),
        ("\u0663,\u00b2,-1,+1,1_0,0x1,,x", set()),
        (None, set()),
        (7, set()),
        ([1], set()),
    ],
)
def test_numbers_of_unhealthy_gpus_that_are_none_are_passed_over(text, minors):
    nodes = Nodes()
    ConfigMapFollower(nodes).seen({"metadata": {"name": f"{UNHEALTHY}n1"}, "data": {"gpus": text}})
    assert nodes.minors == {"n1": minors}


@pytest.mark.parametrize("limits", [{"mem": 1}, {}], ids=["with GPUs", "without"])
def test_a_change_of_a_pod_on_a_node_with_thousands_of_containers_costs_little(limits):
    """A tenant may send one each few milliseconds."""
    read = []
    gone = []
    follower = PodFollower(SimpleNamespace(pod_seen=read.append, pod_gone=gone.append))
    pod = pod_object("big", *[container(f"c{n}", **limits) for n in range(3 * MOST_READ)], on="n1")
    first, _ = calls_of(lambda: follower.seen(pod))
    pod["metadata"]["annotations"] = {"x": "changed"}
    pod["metadata"]["resourceVersion"] = "99"
    later, _ = calls_of(lambda: follower.seen(pod))
    assert later < 1000 < first
    before, after = read
    assert after.version == "99"
    assert (after.request, after.requests, after.used) == (before.request, before.requests, before.used)
    follower.gone(after.uid)
    again, _ = calls_of(lambda: follower.seen(pod))
    assert again > 1000
