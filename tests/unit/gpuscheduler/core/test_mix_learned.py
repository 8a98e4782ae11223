"""The mix of pods, by which the default policy rates, is learned from the cluster's own pods."""

from gpuscheduler.core.policy.fleet import Demand
from gpuscheduler.core.policy.mix import CHECK_PODS, PRIOR_PODS, Mix
from gpuscheduler.core.policy.strand import Strand
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import pod, shared_node, whole_node

PODS = 10 * CHECK_PODS


def started(pods):
    """A scheduler that finds these pods at its start."""
    mix = Mix()
    scheduling = Scheduling(Strand(mix), mix)
    for n in range(4):
        scheduling.node_seen(shared_node(f"n{n}", gpus=4, memory=40))
    for one in pods:
        scheduling.pod_seen(one, 0.0)
    scheduling.synced(0.0)
    return scheduling, mix


def test_pods_count_once_and_as_parts_of_a_gpu():
    pods = [pod(mem=10) for _ in range(PODS)]
    scheduling, mix = started(pods)
    share = mix.shares[Demand(1, 0.25)]
    assert share > 0.5 * PODS / (PODS + PRIOR_PODS)
    for one in pods:
        scheduling.pod_seen(one, 1.0)
    assert mix.shares[Demand(1, 0.25)] == share


def test_a_restart_learns_the_same_mix():
    pods = [pod(mem=10 + n % 3, created=f"2026-01-01T00:{n // 60 % 60:02}:{n % 60:02}Z") for n in range(PODS)]
    assert started(pods)[1].shares == started(reversed(pods))[1].shares


def test_another_mix_rates_all_nodes_again():
    """Pods of three quarters of a GPU come: a pod of half a GPU leaves the GPUs with three quarters free to them."""
    scheduling, mix = started([])
    before = scheduling.filter(pod(mem=20), ["n0", "n1", "n2", "n3"], 0.0).nodes
    assert before
    version = mix.version
    for _ in range(PODS):
        scheduling.pod_seen(pod(mem=30), 0.0)
    assert mix.version > version
    scheduling.node_seen(shared_node("odd", gpus=1, memory=20))
    assert scheduling.filter(pod(mem=20), ["n0", "n1", "n2", "n3", "odd"], 0.0).nodes == ("odd",)


def test_requests_of_any_size_are_counted():
    scheduling, mix = started([])
    scheduling.node_seen(whole_node("whole"))
    for one in (pod(mem=10**9), pod(whole=500), pod(mem=7, gpu_count=3), pod(core=30)):
        for _ in range(CHECK_PODS):
            scheduling.pod_seen(one, 0.0)
            scheduling.pod_gone(one.uid, 0.0)
        assert scheduling.filter(pod(mem=10), ["n0"], 0.0).nodes == ("n0",)
    assert all(0 < one.fraction <= 1 and one.gpus <= 16 for one in mix.shares)
