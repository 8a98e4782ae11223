"""What the watches show is read, whatever is in it."""

import json
from types import SimpleNamespace

import pytest

from gpuagent.domain.fleet.agent_pods import AgentPods
from gpuagent.domain.pods.pod import PodName
from gpuscheduler.core.claims.claim_nodes import ClaimNodes
from gpuscheduler.core.explain.claim_waits import ClaimWaits
from gpuscheduler.core.pod_facts import MOST_READ
from gpuscheduler.core.policy.binpack_spread import Binpack
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.followers import UNHEALTHY, ClaimFollower, ConfigMapFollower, PodFollower, SliceFollower
from tests.unit.gpuscheduler.core.api_objects import container, pod_object
from tests.unit.gpuscheduler.core.claims.dra_cluster import AgentNode, claim_object
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
    claim_waits = ClaimWaits(lambda _: True)
    follower = PodFollower(SimpleNamespace(pod_seen=read.append, pod_gone=gone.append), claim_waits, AgentPods(""))
    containers = [container(f"c{n}", **limits) for n in range(3 * MOST_READ)]
    pod = pod_object("big", *containers, on="n1")

    def show():
        follower.seen(json.dumps(pod).encode())

    first, _ = calls_of(show)
    pod["metadata"]["annotations"] = {"x": "changed"}
    pod["metadata"]["resourceVersion"] = "99"
    later, _ = calls_of(show)
    assert later < 1000 < first
    before, after = read
    assert after.version == "99"
    assert (after.request, after.requests, after.used) == (before.request, before.requests, before.used)
    follower.gone(after.uid)
    again, _ = calls_of(show)
    assert again > 1000


@pytest.fixture
def claims():
    return ClaimNodes(Binpack(), Mix())


@pytest.fixture
def slices(claims):
    """Two equal nodes."""
    follower = SliceFollower(claims)
    for name in ("n0", "n1"):
        for found in AgentNode(name).objects():
            follower.seen(found)
    return follower


def test_claims_are_followed_only_where_nodes_publish_our_devices(claims):
    follower = SliceFollower(claims)
    follower.seen({"metadata": {"name": "x"}, "spec": {"driver": "nic.example.com", "nodeName": "n0"}})
    assert not follower.found.is_set()
    for found in AgentNode("n0").objects():
        follower.seen(found)
    assert follower.found.is_set()


@pytest.mark.parametrize("ends", ["gone", "none_left"])
def test_slices_and_claims_that_are_gone_do_not_count(claims, slices, ends):
    pod_claim = PodName("ml", "new")
    follower = ClaimFollower(claims)
    follower.seen(claim_object("new", memory="8Gi"))
    before = claims.scores([pod_claim], ["n0", "n1"])
    (worse,) = [name for name, score in before.items() if score < 10]
    device = next(AgentNode(worse).objects())["spec"]["devices"][0]["name"]
    held = {"driver": "gpu.gpuagent.io", "pool": worse, "device": device, "consumedCapacity": {"memory": "8Gi"}}
    follower.seen(claim_object("old", [held], memory="8Gi"))
    assert claims.scores([pod_claim], ["n0", "n1"])[worse] == 10
    if ends == "gone":
        follower.gone("old")
        assert claims.scores([pod_claim], ["n0", "n1"]) == before
        slices.gone(f"{worse}-gpu.gpuagent.io")
    else:
        follower.none_left()
        slices.none_left()
    assert worse not in claims


def test_a_claim_whose_name_another_one_has_by_now_is_forgotten_alone(claims, slices):
    follower = ClaimFollower(claims)
    first = claim_object("a", memory="8Gi")
    second = claim_object("a", memory="8Gi")
    second["metadata"]["uid"] = "later"
    follower.seen(first)
    follower.seen(second)
    follower.gone("a")
    assert claims.scores([PodName("ml", "a")], ["n0", "cpu-only"]) == {"n0": 10, "cpu-only": 0}
