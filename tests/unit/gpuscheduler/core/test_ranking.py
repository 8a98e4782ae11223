"""The order of the nodes for a request: the same as if each node were rated by itself."""

import random
from zlib import crc32

import pytest

from gpuagent.domain.scheduling.node_gpus import NodeGpu, NodeGpus
from gpuscheduler.core import ranking as module
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.occupant import Occupant
from gpuscheduler.core.constraints.resources import Resources
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import NAMES, named
from gpuscheduler.core.ranking import Ranking
from tests.unit.gpuscheduler.core.api_objects import node, pod, shared_node, whole_node
from tests.unit.gpuscheduler.core.work import calls_of

REQUESTS = [
    {"mem": 3},
    {"mem": 8},
    {"mem": 2, "core": 25},
    {"whole": 1},
    {"whole": 4},
    {"mem": 6, "gpu_count": 2},
]


def some_node(rng, name):
    kind = rng.randrange(4)
    if kind == 0:
        return whole_node(name, gpus=rng.choice([4, 8, 18]))
    if kind == 1:
        return shared_node(name, gpus=rng.choice([2, 4]), memory=rng.choice([10, 24]), core=100, core_step=5)
    return shared_node(name, gpus=rng.choice([2, 18]), memory=10, cpu=rng.choice(["8", "64"]))


def facts_of(limits):
    if "gpu_count" in limits:
        return pod(mem=limits["mem"], gpu_count=limits["gpu_count"])
    return pod(**limits)


class Cluster:
    """A cluster that changes at random."""

    def __init__(self, rng):
        self.rng = rng
        self.usage = ClusterUsage()
        self.pods = 0
        for number in range(rng.randint(5, 60)):
            self.usage.node_seen(some_node(rng, f"n{number}"))

    def change(self):
        what = self.rng.randrange(5)
        name = f"n{self.rng.randrange(70)}"
        if what == 0:
            self.usage.node_gone(name)
        elif what == 1:
            self.usage.node_seen(some_node(self.rng, name))
        elif what == 2 and name in self.usage.nodes:
            self.pods += 1
            self.usage.occupy(f"u{self.pods}", name, Occupant(requests=Resources(cpu=self.rng.choice([1000, 2000]))))
        elif name in self.usage.nodes:
            self.pods += 1
            used = ((self.rng.randrange(2), facts_of({"mem": self.rng.randint(1, 5)}).request.need),)
            self.usage.use(f"u{self.pods}", name, used)


def one_by_one(cluster, policy, mix, request, cpu, among):
    """The reference: each node is rated by a ranking that knows no other request and no other call."""
    fresh = Ranking(cluster.usage, policy, mix)
    unread = set(cluster.usage.changed)
    cluster.usage.changed.update(cluster.usage.nodes)
    found = [entry for name in among for entry in fresh.nodes(request, cpu, [name])]
    # The ranking under test has not read these yet.
    cluster.usage.changed.update(unread)
    return sorted(found, key=lambda entry: (entry[2], crc32(entry[0].encode())))


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("seed", range(2))
def test_equal_states_are_rated_once_and_in_the_same_order(policy, seed):
    rng = random.Random(seed)
    mix = Mix()
    rates = named(policy, mix)
    cluster = Cluster(rng)
    ranking = Ranking(cluster.usage, rates, mix)
    for _ in range(6):
        for _ in range(rng.randrange(6)):
            cluster.change()
        asked = facts_of(rng.choice(REQUESTS))
        cpu = rng.choice([0.0, 4.0])
        present = list(cluster.usage.nodes)
        some = rng.sample(present, rng.randint(0, len(present)))
        for among in (some, present, cluster.usage.nodes, some[:1]):
            expected = one_by_one(cluster, rates, mix, asked.request, cpu, among)
            assert list(ranking.nodes(asked.request, cpu, among)) == expected


def test_nodes_with_as_many_free_units_on_other_gpus_are_rated_apart():
    usage = ClusterUsage()
    # Both have 10 and 20 units free: an unused GPU and a half-used one are not alike.
    usage.node_seen(node("unused", NodeGpus((NodeGpu(0, 10), NodeGpu(1, 20)))))
    usage.node_seen(node("half-used", NodeGpus((NodeGpu(0, 20), NodeGpu(1, 20)))))
    usage.use("u1", "half-used", ((0, Amounts(10)),))
    mix = Mix()
    ranking = Ranking(usage, named("binpack", mix), mix)
    order = [name for name, _, _ in ranking.nodes(pod(mem=5).request, 0.0, usage.nodes)]
    assert order == ["half-used", "unused"]


def test_a_state_beyond_those_that_one_call_rates_comes_last():
    usage = ClusterUsage()
    beyond = 5
    for number in range(module.MOST_RATED + beyond):
        usage.node_seen(shared_node(f"n{number}", memory=10 + number))
    mix = Mix()
    ranking = Ranking(usage, named("strand", mix), mix)
    asked = pod(mem=3)
    first = list(ranking.nodes(asked.request, 0.0, usage.nodes))
    assert {name for name, _, _ in first} == set(usage.nodes), "a node where it fits is never left out"
    costs = [cost for _, _, cost in first]
    assert costs == sorted(costs)
    assert costs.count(module.UNRATED) == beyond
    second = list(ranking.nodes(asked.request, 0.0, usage.nodes))
    assert module.UNRATED not in {cost for _, _, cost in second}, "the next call rates the rest"


class Counting:
    """A policy that counts the states that it rates."""

    def __init__(self, mix):
        self.policy = named("strand", mix)
        self.rated = 0

    def costs(self, fleet, rows, demand):
        self.rated += len(rows)
        return self.policy.costs(fleet, rows, demand)


def test_200_requests_in_turn_are_rated_again_only_where_nodes_changed():
    usage = ClusterUsage()
    for number in range(500):
        usage.node_seen(shared_node(f"n{number}", gpus=8, memory=80 + number))
    mix = Mix()
    policy = Counting(mix)
    ranking = Ranking(usage, policy, mix)
    asked = [pod(mem=1 + number).request for number in range(200)]
    for request in asked:
        next(ranking.nodes(request, 1.0, usage.nodes))
    policy.rated = 0
    for number, request in enumerate(asked):
        usage.occupy(f"u{number}", f"n{number}", Occupant(requests=Resources(cpu=1000)))
        next(ranking.nodes(request, 1.0, usage.nodes))
    since_last_call = sum(range(1, 201))
    assert 0 < policy.rated <= since_last_call, "a request rates the nodes that changed since its last call"


def test_the_memory_of_all_tables_is_bounded(monkeypatch):
    kept = 20
    monkeypatch.setattr(module, "TABLES_BYTES", kept * module.ROWS_A_STEP * module.BYTES_A_ROW)
    usage = ClusterUsage()
    usage.node_seen(shared_node("n"))
    mix = Mix()
    policy = Counting(mix)
    ranking = Ranking(usage, policy, mix)
    request = pod(mem=1).request

    def ratings(cpu):
        policy.rated = 0
        list(ranking.nodes(request, cpu, usage.nodes))
        return policy.rated

    numbers = [float(number) for number in range(100)]
    assert sum(map(ratings, numbers)) == len(numbers)
    assert sum(map(ratings, numbers[-kept:])) == 0, "the last ones are kept"
    assert ratings(numbers[0]) == 1


def test_named_nodes_cost_their_own_rows_only():
    usage = ClusterUsage()
    for number in range(2000):
        usage.node_seen(shared_node(f"n{number}", memory=10 + number))
    ranking = Ranking(usage, named("strand", Mix()), Mix())
    asked = pod(mem=3).request
    next(ranking.nodes(asked, 0.0, usage.nodes))
    calls, entries = calls_of(lambda: list(ranking.nodes(asked, 0.0, ["n7", "n9"])))
    assert len(entries) == 2
    assert calls < 300
