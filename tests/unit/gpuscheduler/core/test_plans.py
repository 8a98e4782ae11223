"""Plans of jobs: how many pods fit, in which order they are placed, and which keep their places."""

import pytest

from gpuscheduler.core.cluster_usage import MIN_FEASIBLE_NODES
from gpuscheduler.core.constraints.neighborhood import Neighborhood
from gpuscheduler.core.constraints.node_site import node_site
from gpuscheduler.core.constraints.resources import Resources
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.jobs.places.plan import plan
from gpuscheduler.core.jobs.places.shortage import shortage
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.random_jobs import Node, RandomJob, Role, node_object, pod_object


def placed(job, **given):
    """UID to node name."""
    places = plan(job.pods(), job.usage(), Links(), **given)
    return {uid: name for uid, (name, _) in places.items()}


def test_cores_that_fit_exactly_are_enough():
    """As floats, 4.0 // 0.1 is 39."""
    job = RandomJob([Node("n1", "z0", 16, 4, 99), Node("n2", "z0", 16, 2, 99)], [Role("r", 30, 1, 0, 0)])
    pods = []
    for number in range(30):
        made = pod_object(job.roles[0], number)
        made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "200m"}
        pods.append(pod_facts(made))
    assert len(plan(pods, job.usage(), Links())) == 26, "16 for want of GPUs, and 10 on two cores"


def test_roles_of_different_size_fit_where_the_largest_first_do_not():
    """A master of 8 cores and two workers of 24, on nodes with 34 and 26 free."""
    nodes = [Node("n1", "z0", 8, 34, 99), Node("n2", "z0", 8, 26, 99)]
    for gpus in (1, 2):
        job = RandomJob(nodes, [Role("master", 1, gpus, 8, 1), Role("worker", 2, 1, 24, 1)])
        assert len(placed(job)) == 3


@pytest.mark.parametrize("rule", ["apart by node", "even by zone", ""])
@pytest.mark.parametrize("pods", [8, 16])
@pytest.mark.parametrize("nodes", [16, 50, 200])
def test_a_gang_with_rules_fits_at_the_first_try(rule, pods, nodes):
    made = [Node(f"n{n}", f"z{n % 3}", 8, 96, 512) for n in range(nodes)]
    job = RandomJob(made, [Role("r", pods, 1, 4, 200, (rule,) if rule else ())])
    places = placed(job)
    assert len(places) == pods
    on_node = [list(places.values()).count(name) for name in set(places.values())]
    # In a cluster where pods are nominated, kube-scheduler would count two on one node against the spread.
    is_apart = rule == "apart by node" or (rule == "even by zone" and nodes > MIN_FEASIBLE_NODES)
    assert max(on_node) == (1 if is_apart else 2), "two have RAM on a node"


def test_ranks_are_placed_in_the_order_of_their_numbers():
    job = RandomJob([Node("n1", "z0", 6, 96, 512), Node("n2", "z0", 6, 96, 512)], [Role("r", 12, 1, 1, 1)])
    places = placed(job)
    assert [places[f"r-{n}"] for n in range(12)] == [places["r-0"]] * 6 + [places["r-6"]] * 6


NODES = [Node(f"n{n}", f"z{n % 2}", 2, 96, 512) for n in range(4)]


def test_pods_keep_their_places_if_they_can():
    job = RandomJob(NODES, [Role("r", 4, 1, 1, 1)])
    before = {"r-0": "n3", "r-1": "n1", "r-2": "n2", "r-3": "n0"}
    assert placed(job, prefer=before) == before
    moved = placed(job, prefer=before | {"r-3": "gone"})
    assert {uid: name for uid, name in moved.items() if uid != "r-3"} == {
        uid: name for uid, name in before.items() if uid != "r-3"
    }
    full = placed(job, prefer=dict.fromkeys(before, "n0"))
    assert sorted(full.values()).count("n0") == 2
    assert len(full) == 4


def test_a_pod_that_may_not_have_its_place_exchanges_it_with_the_last_one_that_is_alike():
    """kube-scheduler came to the second pod first: the zone of its place was not its turn."""
    job = RandomJob(NODES, [Role("r", 4, 1, 1, 1, ("even by zone",))])
    before = {"r-0": "n0", "r-1": "n2", "r-2": "n1", "r-3": "n3"}
    refused = {"r-1": frozenset({"n0", "n2"})}
    assert placed(job, prefer=before, without=refused) == before | {"r-1": "n3", "r-3": "n2"}


def test_pods_on_nodes_and_nodes_without_gpus_count():
    """A zone without GPUs is a domain, too, in which no pod of the job can be."""
    job = RandomJob(NODES, [Role("r", 4, 1, 1, 1, ("even by zone",))])
    bare = node_site(node_object(Node("bare", "z9", 0, 1, 1)))
    sites = [node_site(node_object(node)) for node in NODES]
    assert len(placed(job, beside=Neighborhood([*sites, bare]))) == 2, "at most one in each zone"
    running = pod_object(job.roles[0], 9)
    running["spec"]["nodeName"] = "n0"
    neighborhood = Neighborhood(sites)
    facts = pod_facts(running)
    neighborhood.put(facts.uid, (facts.occupant, (facts.node,)))
    places = placed(RandomJob(NODES, [Role("r", 1, 1, 1, 1, ("even by zone",))]), beside=neighborhood)
    assert set(places.values()) <= {"n1", "n3"}


def test_a_node_that_was_filled_by_pods_without_gpus_takes_none():
    node = NodeUsage(node_facts(node_object(Node("n1", "z0", 8, 8, 64))))
    made = pod_object(Role("other", 1, 0, 5, 1), 0)
    node.used += pod_facts(made).requests
    job = RandomJob([], [Role("r", 2, 1, 2, 1)])
    assert len(plan(job.pods(), {"n1": node}, Links())) == 1


def said(job, **given):
    """What would have to change, by the plan."""
    pods = job.pods()
    neighborhood = Neighborhood(node_site(node_object(node)) for node in job.nodes)
    places = plan(pods, job.usage(), Links(), **given)
    return shortage(pods, places, job.usage(), neighborhood, given.get("without", {}), Tries())


def test_what_is_short_is_said_with_the_numbers_of_nodes():
    nodes = [Node(f"n{n}", f"z{n % 2}", 8, 96 if n < 3 else 16, 512) for n in range(6)]
    one_more = "2 more like r-3 need 8 GPUs, 24 CPU and 10 GiB of memory each on one node"
    assert said(RandomJob(nodes, [Role("r", 5, 8, 24, 10)])) == (
        f"{one_more}: of 6 nodes, 3 had less than 24 CPU free, 3 had too little free of their GPUs"
    )
    assert said(RandomJob(nodes, [Role("r", 3, 8, 24, 10)])) == ""
    assert said(RandomJob(nodes, [Role("r", 7, 8, 1, 1)])) == "", "GPUs alone are short"


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (("apart by node",), "6 did not match its anti-affinity to pods"),
        (("apart by zone",), "6 did not match its anti-affinity to pods"),
        (("one zone only",), "3 did not match its node selector or node affinity, 3 had too little free of their GPUs"),
        (("one port",), "6 had not all of its host ports free"),
    ],
)
def test_the_rule_that_leaves_nodes_out_is_said(rules, why):
    nodes = [Node(f"n{n}", f"z{n % 2}", 1, 96, 512) for n in range(6)]
    assert said(RandomJob(nodes, [Role("r", 7, 1, 1, 1, rules)])).endswith(f"of 6 nodes, {why}")


@pytest.mark.parametrize(
    ("resource", "there", "wanted", "why"),
    [
        ("ephemeral-storage", "1Gi", "2Gi", "1 had less than 2 GiB of ephemeral-storage free"),
        ("hugepages-1Gi", "1Gi", "2Gi", "1 had less than 2 GiB of hugepages-1Gi free"),
        ("example.com/fpga", "1", "2", "1 had less than 2 of example.com/fpga free"),
        ("pods", "110", None, "1 had as many pods as they take"),
    ],
)
def test_other_resources_that_are_short_are_said_in_their_units(resource, there, wanted, why):
    job = RandomJob([Node("n1", "z0", 8, 96, 512)], [Role("r", 1, 1, 1, 1)])
    node = node_object(job.nodes[0])
    node["status"]["allocatable"][resource] = there
    made = pod_object(job.roles[0], 0)
    if wanted:
        made["spec"]["containers"][0]["resources"]["requests"][resource] = wanted
    usage = NodeUsage(node_facts(node))
    # Every pod takes one place.
    usage.used = Resources(pods=109 if wanted else 110)
    neighborhood = Neighborhood([node_site(node)])
    said_now = shortage([pod_facts(made)], {}, {"n1": usage}, neighborhood, {}, Tries())
    assert said_now.endswith(f"of 1 nodes, {why}")


def test_nodes_that_kube_scheduler_refuses_are_said():
    nodes = [Node(f"n{n}", "z0", 1, 96, 512) for n in range(3)]
    refused = {f"r-{n}": frozenset({"n0", "n1"}) for n in range(2)}
    why = "of 3 nodes, 2 were refused by kube-scheduler, 1 had less than 60 CPU free"
    assert said(RandomJob(nodes, [Role("r", 2, 1, 60, 1)]), without=refused).endswith(why)
    assert said(RandomJob(nodes, [Role("r", 2, 1, 1, 1)]), without=refused) == "", "of the others, GPUs alone are short"


def test_pods_keep_their_places_in_whatever_order_these_are_open():
    """In the order of their names, the second pod would break the spread."""
    job = RandomJob(NODES, [Role("r", 6, 1, 1, 1, ("even by zone",))])
    before = {"r-0": "n0", "r-1": "n0", "r-2": "n2", "r-3": "n1", "r-4": "n1", "r-5": "n3"}
    assert placed(job, prefer=before) == before
    refused = {"r-1": frozenset({"n0", "n2"})}
    assert placed(job, prefer=before, without=refused) == before | {"r-1": "n3", "r-5": "n0"}


def test_pods_of_another_size_join_those_that_keep_their_places():
    job = RandomJob(NODES, [Role("big", 2, 2, 8, 1), Role("r", 2, 1, 1, 1)])
    before = {"big-0": "n3", "big-1": "n2"}
    places = placed(job, prefer=before)
    assert {uid: places[uid] for uid in before} == before
    assert len(places) == 4
