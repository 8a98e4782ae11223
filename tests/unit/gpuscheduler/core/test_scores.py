"""Scores for pods without GPUs: they leave CPU where GPU pods need it, and no call costs much."""

import pytest

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import NAMES, named
from gpuscheduler.core.ranking import MOST_RATED
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import pod, shared_node
from tests.unit.gpuscheduler.core.work import calls_of


def cluster(*nodes, policy="strand"):
    mix = Mix()
    scheduling = Scheduling(named(policy, mix), mix)
    for node in nodes:
        scheduling.node_seen(node)
    scheduling.synced(0.0)
    return scheduling


def cpu_pod(cores):
    return pod(None, {"name": "main", "resources": {"requests": {"cpu": str(cores)}}})


def test_a_node_without_gpus_comes_first():
    scores = cluster(shared_node("gpus")).scores(cpu_pod(2), ["gpus", "other"])
    assert scores["other"] == 10
    assert scores["gpus"] <= 5


def test_a_node_with_devices_of_claims_is_a_gpu_node():
    """It has no amounts of GPUs, and pods with claims need its CPU."""
    names = ["gpus", "claims", "other"]
    scores = cluster(shared_node("gpus")).scores(cpu_pod(2), names, {"claims"})
    assert scores["other"] == 10
    assert max(scores["gpus"], scores["claims"]) <= 5
    assert cluster().scores(cpu_pod(2), ["claims"], {"claims"}) == {"claims": 10}


def test_a_node_whose_gpus_are_in_use_comes_before_one_whose_gpus_need_its_cores():
    scheduling = cluster(shared_node("free", cpu="16"), shared_node("full", cpu="16"))
    for minor in range(2):
        decision = {MEMORY_ANNOTATION: f'{{"0":{{"{minor}":10}}}}'}
        scheduling.pod_seen(pod(on="full", mem=10, annotations=decision), 0.0)
    assert scheduling.scores(cpu_pod(8), ["free", "full"]) == {"free": 0, "full": 10}


@pytest.mark.parametrize("policy", NAMES)
def test_every_policy_scores_every_node(policy):
    names = ["a", "b", "other"]
    scores = cluster(shared_node("a"), shared_node("b"), policy=policy).scores(cpu_pod(2), names)
    assert scores.keys() == set(names)
    assert all(0 <= score <= 10 for score in scores.values())


def test_equal_nodes_have_equal_scores():
    scores = cluster(shared_node("a"), shared_node("b")).scores(cpu_pod(2), ["a", "b"])
    assert scores == {"a": 10, "b": 10}


def test_a_pod_with_gpus_gets_none():
    """`filter` has chosen among the nodes already."""
    assert cluster(shared_node("a")).scores(pod(mem=8), ["a"]) == {}


def test_no_nodes_get_no_scores():
    assert cluster().scores(cpu_pod(2), []) == {}


def test_states_beyond_those_that_one_call_rates_are_as_bad_as_the_worst(monkeypatch):
    monkeypatch.setattr("gpuscheduler.core.ranking.MOST_RATED", 2)
    nodes = [shared_node(f"n{number}", cpu=str(number + 1)) for number in range(5)]
    scores = cluster(*nodes).scores(cpu_pod(1), [f"n{number}" for number in range(5)])
    assert len(scores) == 5


def test_thousands_of_nodes_take_few_steps():
    count = 2 * MOST_RATED
    scheduling = cluster(*[shared_node(f"n{number}", cpu=str(number + 1)) for number in range(count)])
    names = [f"n{number}" for number in range(count)]
    scheduling.scores(cpu_pod(1), names)
    calls, scores = calls_of(lambda: scheduling.scores(cpu_pod(1), names))
    assert len(scores) == count
    assert calls < 5 * count
