"""Which nodes suit pods with claims: they fill nodes, and leave whole ones."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.domain.pods.pod import PodName
from gpuscheduler.core.claims.claim_nodes import LEARNED_PARTS, MOST_RATED, SMALL, ClaimNodes
from gpuscheduler.core.claims.gpu_claims import ClaimDemand, GpuClaim, HeldDevice, pod_claims, read_claim
from gpuscheduler.core.claims.gpu_devices import GpuDevice, SliceFacts, read_slice
from gpuscheduler.core.policy.binpack_spread import Binpack
from gpuscheduler.core.policy.fleet import MOST_GPUS
from gpuscheduler.core.policy.mix import PRIOR, Mix
from gpuscheduler.core.policy.named import NAMES, named
from gpuscheduler.core.single_pods.scores import HIGHEST
from tests.unit.gpuscheduler.core.claims.dra_cluster import AgentNode, Cluster, claim_object

PACKING = [name for name in NAMES if name != "spread"]


def view(policy="strand"):
    mix = Mix()
    return ClaimNodes(named(policy, mix), mix)


def cluster(policy="strand", nodes=4, lag=0, **node):
    return Cluster(view(policy), [AgentNode(f"n{n}", **node) for n in range(nodes)], lag)


@pytest.mark.parametrize("lag", [0, 5])
@pytest.mark.parametrize("policy", ["strand", "binpack"])
def test_shares_that_fit_one_node_go_to_one_and_eight_whole_gpus_still_fit_another(policy, lag):
    """32 shares of 20 GiB are all of 8 GPUs. kube-scheduler's next decisions may come before the watch."""
    made = cluster(policy, lag=lag)
    nodes = Counter(made.run(20) for _ in range(32))
    assert len(nodes) == 1
    (full,) = nodes
    empty = [node for node in made.nodes.values() if not node.prepared]
    assert len(empty) == 3
    others = Counter(made.run() for _ in range(8))
    assert len(others) == 1
    assert full not in others


@pytest.mark.parametrize("policy", PACKING)
def test_shares_of_all_sizes_leave_whole_nodes(policy):
    made = cluster(policy, nodes=6)
    sizes = [30, 10, 8, 40, 4, 20, 60, 2] * 5
    for size in sizes:
        assert made.run(size)
    total = sum(sizes) / 80
    used = sum(bool(node.prepared) for node in made.nodes.values())
    assert used <= -(-total // 8) + 1


def test_policy_spread_takes_the_emptiest_node():
    made = cluster("spread", nodes=4)
    assert Counter(Counter(made.run(20) for _ in range(32)).values()) == {8: 4}


def test_a_claim_for_all_of_a_gpu_goes_where_it_breaks_least():
    made = cluster("binpack", nodes=2)
    first = made.run(20)
    assert [made.run() for _ in range(7)] == [first] * 7
    assert made.run() != first


def test_tainted_gpus_and_those_in_sets_are_not_free():
    scored = view("binpack")
    names = [f"gpu-{n}" for n in range(4)]
    gpus = tuple(GpuDevice(name, 81920) for name in names)
    pair = GpuDevice("set", members=("gpu-0", "gpu-1"))
    scored.slice_seen(SliceFacts("a", "pairs", (*gpus, pair)))
    tainted = tuple(GpuDevice(name, 81920, usable=False) for name in names[:3])
    scored.slice_seen(SliceFacts("b", "tainted", (*tainted, gpus[3])))
    scored.claim_seen(GpuClaim("s", PodName("ml", "s"), (ClaimDemand(2),), (HeldDevice("pairs", "set"),)))
    two = PodName("ml", "two")
    scored.claim_seen(GpuClaim("two", two, (ClaimDemand(2),)))
    assert scored.scores([two], ["pairs", "tainted"]) == {"pairs": HIGHEST, "tainted": 0}


def test_other_pods_are_not_scored():
    scored = cluster().view
    foreign = claim_object("nic", device_class="nic.example.com")
    assert read_claim(foreign) is None
    assert scored.scores([], ["n0"]) == {}
    assert scored.scores([PodName("ml", "nic")], ["n0", "cpu-only"]) == {}


def test_a_claim_that_the_watch_has_not_shown_is_packed_all_the_same():
    """kube-scheduler may be faster. That it accepts no other nodes tells that the claim is for our devices."""
    made = cluster("binpack")
    first = made.run(20)
    assert made.view.scores([PodName("ml", "unseen")], [*made.nodes])[first] == HIGHEST


def test_a_monitor_needs_no_room():
    watches = claim_object("m", device_class="gpu.gpuagent.io")
    watches["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    assert read_claim(watches) is None


def alternatives(uid, *wanted):
    """A claim with one request, and these alternatives for it."""
    made = claim_object(uid)
    named = [{"name": f"a{n}", **each} for n, each in enumerate(wanted)]
    made["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": named}]
    return made


def test_alternatives_and_the_size_of_a_set_are_read_in_order():
    selector = {"cel": {"expression": 'device.attributes["gpu.gpuagent.io"].gpus == 4'}}
    best = {"deviceClassName": "gpu-set.gpuagent.io", "selectors": [selector]}
    of_others = {"deviceClassName": "nic.example.com"}
    last = {"deviceClassName": "gpu.gpuagent.io", "count": 8}
    read = read_claim(alternatives("x", best, of_others, last))
    assert read.demands == (ClaimDemand(4, fallback=ClaimDemand(8)),)
    assert read_claim(alternatives("x", of_others, last)).demands == (ClaimDemand(8),)


def test_a_later_alternative_is_packed_where_the_first_fits_nowhere():
    """Otherwise the second alternative of each pod would go to any node, and break GPUs everywhere."""
    scored = view("binpack")
    for name in ("used", "empty"):
        scored.slice_seen(SliceFacts(name, name, (GpuDevice("gpu-0", 40960), GpuDevice("gpu-1", 40960))))
    scored.claim_seen(GpuClaim("u", PodName("ml", "u"), (), (HeldDevice("used", "gpu-0", memory_mib=10240),)))
    share = {"deviceClassName": "gpu-share.gpuagent.io", "capacity": {"requests": {"memory": "8Gi"}}}
    four = {"deviceClassName": "gpu.gpuagent.io", "count": 4}
    two = {"deviceClassName": "gpu.gpuagent.io", "count": 2}
    for wanted, best in (((four, share), "used"), ((two, share), "empty")):
        claim = read_claim(alternatives(best, *wanted))
        scored.claim_seen(claim)
        scores = scored.scores([claim.name], ["used", "empty"])
        assert max(scores, key=scores.__getitem__) == best
        assert scores[best] == HIGHEST


def test_the_claims_of_a_pod_are_those_of_templates_and_those_by_name():
    pod = {
        "metadata": {"namespace": "ml"},
        "spec": {
            "resourceClaims": [
                {"name": "a", "resourceClaimTemplateName": "t"},
                {"name": "b", "resourceClaimName": "shared"},
                {"name": "not-made", "resourceClaimTemplateName": "t"},
            ]
        },
        "status": {"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "p-a-x1"}]},
    }
    assert pod_claims(pod) == (PodName("ml", "p-a-x1"), PodName("ml", "shared"))


devices = st.builds(
    GpuDevice,
    name=st.sampled_from(["gpu-0", "gpu-1", "gpu-2"]),
    memory_mib=st.sampled_from([0, 16384, 81920]),
    members=st.sampled_from([(), (), ("gpu-0", "gpu-1")]),
    usable=st.booleans(),
)
slices = st.builds(
    SliceFacts,
    name=st.sampled_from("abc"),
    node=st.sampled_from(["n0", "n1"]),
    devices=st.lists(devices, max_size=20).map(tuple),
)
demands = st.builds(
    ClaimDemand,
    gpus=st.integers(1, 20),
    memory_mib=st.sampled_from([0, 1, 4096, 10**9]),
    cores=st.integers(0, 100),
)
claims = st.builds(
    GpuClaim,
    uid=st.sampled_from("xyz"),
    name=st.sampled_from([PodName("ml", "p"), PodName("ml", "q")]),
    demands=st.lists(demands, min_size=1, max_size=3).map(tuple),
    held=st.lists(
        st.builds(
            HeldDevice,
            node=st.sampled_from(["n0", "n1"]),
            device=st.sampled_from(["gpu-0", "gpu-1", "set"]),
            memory_mib=st.sampled_from([0, 4096]),
            cores=st.integers(0, 100),
        ),
        max_size=3,
    ).map(tuple),
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("slice_seen"), slices),
        st.tuples(st.just("slice_gone"), st.sampled_from("abc")),
        st.tuples(st.just("claim_seen"), claims),
        st.tuples(st.just("claim_gone"), claims),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(st.sampled_from(NAMES), events)
def test_scores_follow_from_what_is_there_and_one_node_is_the_best(policy, happens):
    """Whatever came and went before: a view that sees the same slices and claims anew says the same."""
    scored, anew = view(policy), view(policy)
    there = dict[str, SliceFacts](), dict[PodName, GpuClaim]()
    for kind, value in happens:
        getattr(scored, kind)(value)
        match kind:
            case "slice_seen":
                there[0][value.name] = value
            case "slice_gone":
                there[0].pop(value, None)
            case "claim_seen":
                there[1][value.name] = value
            case "claim_gone" if there[1].get(value.name, value).uid == value.uid:
                there[1].pop(value.name, None)
    for found in there[0].values():
        anew.slice_seen(found)
    for claim in there[1].values():
        anew.claim_seen(claim)
    nodes = ["n0", "n1", "n2"]
    for name in (PodName("ml", "p"), PodName("ml", "q")):
        scores = scored.scores([name], nodes)
        assert scores == anew.scores([name], nodes)
        assert all(0 <= score <= HIGHEST for score in scores.values())
        assert [*scores.values()].count(HIGHEST) <= 1
        assert scores.keys() <= set(nodes)


KEYS = (
    *("name", "namespace", "uid", "devices", "requests", "exactly", "firstAvailable", "deviceClassName", "count"),
    *("capacity", "memory", "cores", "value", "selectors", "cel", "expression", "allocation", "results", "driver"),
    *("pool", "device", "consumedCapacity", "nodeName", "attributes", "type", "string", "taints", "effect"),
    *("consumesCounters", "counters", "resourceClaims", "resourceClaimName", "resourceClaimStatuses"),
)
words = st.sampled_from(["gpu.gpuagent.io", "gpu-set.gpuagent.io", "gpu-set", "-1", "1e999", "9" * 5000, ".gpus == 0"])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | words
json_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=30,
)


@given(json_values)
def test_no_object_raises(found):
    for value in (found, {"metadata": found, "spec": found, "status": found}):
        if isinstance(value, dict):
            read_claim(value)
            read_slice(value)
            pod_claims(value)


class Counting(Binpack):
    """Counts the states that are rated."""

    def __init__(self):
        self.rated = 0

    def costs(self, fleet, rows, demand):
        self.rated += len(rows)
        return super().costs(fleet, rows, demand)


def test_no_pod_has_more_rated_than_there_is_time_for_in_a_call():
    """Any author of pods may name many claims with many requests. The largest requests decide."""
    policy = Counting()
    scored = ClaimNodes(policy, Mix())
    nodes = [f"n{n}" for n in range(600)]
    for n, node in enumerate(nodes):
        scored.slice_seen(SliceFacts(node, node, (GpuDevice("gpu-0", 81920), GpuDevice("gpu-1", 81920))))
        scored.claim_seen(GpuClaim(node, PodName("ml", node), (SMALL,), (HeldDevice(node, "gpu-0", 100 + n),)))
    small = [PodName("ml", f"small-{n}") for n in range(5)]
    for n, claim in enumerate(small):
        demands = tuple(ClaimDemand(1, 1 + 32 * n + k) for k in range(32))
        scored.claim_seen(GpuClaim(claim.name, claim, demands))
    policy.rated = 0
    scores = scored.scores(small, nodes)
    assert policy.rated <= MOST_RATED
    assert max(scores.values()) == HIGHEST
    whole = PodName("ml", "whole")
    scored.claim_seen(GpuClaim("whole", whole, (ClaimDemand(2),)))
    assert scored.scores([*small, whole], nodes) == dict.fromkeys(nodes, 0), "no node has two GPUs free"


def test_claims_of_many_sizes_are_learned_as_few():
    """A rating compares with every size that was learned."""
    mix = Mix()
    scored = ClaimNodes(Binpack(), mix)
    scored.slice_seen(SliceFacts("a", "a", (GpuDevice("gpu-0", 81920),)))
    for n in range(2000):
        demands = tuple(ClaimDemand(1 + k, 1 + 40 * n + k) for k in range(16))
        scored.claim_seen(GpuClaim(f"c{n}", PodName("ml", f"c{n}"), demands))
    learned = mix.shares.keys() - PRIOR.keys()
    assert len(learned) <= LEARNED_PARTS + MOST_GPUS
