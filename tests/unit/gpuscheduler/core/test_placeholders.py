"""Placeholders: of one unit more than any node has that seems to have room, and only where a new node helps."""

import pytest

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_MEM, JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import named
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.placeholders import AFTER_S, MOST, MOST_RATED, PLACEHOLDER_SCHEDULER
from tests.unit.gpuscheduler.core.api_objects import container, pod_object

WAITS = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
LATER = AFTER_S + 1


def node(name, gpus=4, units=22, labels=None):
    text = node_gpus_text(NodeGpus(tuple(NodeGpu(minor, units) for minor in range(gpus))))
    metadata = {"name": name, "labels": labels or {}, "annotations": {NODE_GPUS_ANNOTATION: text}}
    allocatable = {"cpu": "16", "memory": "64Gi", "pods": "100", GPU_MEM: str(gpus * units)}
    return node_facts({"metadata": metadata, "status": {"allocatable": allocatable}})


def share(units):
    """Its API server has filled in what it requests."""
    made = container(mem=units)
    made["resources"]["requests"] = dict(made["resources"]["limits"])
    return made


def on(name, minor, units):
    decision = {MEMORY_ANNOTATION: f'{{"0":{{"{minor}":{units}}}}}'}
    return pod_facts(pod_object(None, share(units), on=name, annotations=decision))


def waiting(units, selector=None, **given):
    made = pod_object(None, share(units), **given)
    made["status"]["conditions"] = [WAITS]
    made["spec"]["nodeSelector"] = selector or {}
    return pod_facts(made)


def cluster(*nodes, pods=()):
    mix = Mix()
    scheduling = Scheduling(named("binpack", mix), mix)
    for facts in nodes:
        scheduling.node_seen(facts)
    for pod in pods:
        scheduling.pod_seen(pod, 0.0)
    scheduling.synced(0.0)
    return scheduling


def scattered(name="old", used=12, **node_given):
    """A node whose GPUs are all used in part, and its pods."""
    return node(name, **node_given), [on(name, minor, used) for minor in range(4)]


def look(scheduling, at):
    """One look at the cluster, without anything else in between."""
    steps = scheduling.look_for_placeholders(at)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def wanted(scheduling, at=LATER):
    look(scheduling, 0.0)
    return look(scheduling, at)


def test_one_unit_more_than_the_node_has_in_all():
    facts, pods = scattered()
    scheduling = cluster(facts, pods=[*pods, waiting(20, uid="large")])
    assert [(placeholder.uid, placeholder.units) for placeholder in wanted(scheduling)] == [("large", 41)]


def test_not_before_the_pod_has_waited():
    facts, pods = scattered()
    scheduling = cluster(facts, pods=[*pods, waiting(20)])
    assert wanted(scheduling, AFTER_S - 1) == []


def test_more_than_the_fullest_node_has_that_seems_to_have_room():
    first, on_first = scattered("first", used=12)
    second, on_second = scattered("second", used=6)
    scheduling = cluster(first, second, pods=[*on_first, *on_second, waiting(20)])
    assert [placeholder.units for placeholder in wanted(scheduling)] == [65]


NO_HELP = {
    "it fits": ([], waiting(20)),
    "no node seems to have room": ([on("old", minor, 20) for minor in range(4)], waiting(20)),
    "it is larger than a GPU": ([on("old", minor, 12) for minor in range(4)], waiting(30)),
    "no node is of its selector": ([on("old", minor, 12) for minor in range(4)], waiting(20, {"model": "other"})),
    "it has a gate": ([on("old", minor, 12) for minor in range(4)], waiting(20, gates=["kueue"])),
    "its job is not there": (
        [on("old", minor, 12) for minor in range(4)],
        waiting(20, labels={JOB_LABEL: "job", REPLICAS_LABEL: "2"}),
    ),
    "it is a placeholder": ([on("old", minor, 12) for minor in range(4)], waiting(20, scheduler=PLACEHOLDER_SCHEDULER)),
}


@pytest.mark.parametrize(("pods", "pod"), NO_HELP.values(), ids=NO_HELP)
def test_none_where_a_new_node_is_no_help_or_comes_anyway(pods, pod):
    assert wanted(cluster(node("old"), pods=[*pods, pod])) == []


def test_none_where_no_new_node_would_have_as_much():
    """The large node has more free in small parts than a node has whose GPUs are large enough."""
    small = [on("small", minor, 1) for minor in range(16)]
    large = [on("large", minor, 12) for minor in range(2)]
    scheduling = cluster(
        node("small", gpus=16, units=10),
        node("large", gpus=2, units=22),
        pods=[*small, *large, waiting(12)],
    )
    assert wanted(scheduling) == []


def test_the_pod_needs_none_once_gpus_are_reserved_for_it():
    """The placeholder has to go before the Binding shows: an autoscaler would add a node for both."""
    facts, pods = scattered()
    pod = waiting(20, uid="large")
    scheduling = cluster(facts, pods=[*pods, pod])
    assert scheduling.needs_placeholder("large")
    scheduling.node_seen(node("new"))
    assert scheduling.filter(pod, ["new"], 1.0).nodes == ("new",)
    assert not scheduling.needs_placeholder("large")
    assert wanted(scheduling) == []


def test_one_that_is_larger_than_needed_stays():
    facts, pods = scattered()
    scheduling = cluster(facts, pods=[*pods, waiting(20, uid="large")])
    assert [placeholder.units for placeholder in wanted(scheduling)] == [41]
    scheduling.pod_seen(on("old", 0, 5), 1.0)
    assert [placeholder.units for placeholder in look(scheduling, LATER + 1)] == [41]


def test_their_number_is_bounded_and_the_first_are_those_of_high_priority():
    facts, pods = scattered()
    low = [waiting(20) for _ in range(2 * MOST)]
    scheduling = cluster(facts, pods=[*pods, *low, waiting(20, uid="high", priority=9)])
    placeholders = wanted(scheduling)
    assert len(placeholders) == MOST
    assert placeholders[0].uid == "high"


def test_there_is_one_however_many_nodes_are_too_full():
    """Each node is looked at: what one look may search is not spent on them."""
    scheduling = cluster(*[scattered(f"n{number}")[0] for number in range(1200)])
    for number in range(1200):
        for pod in scattered(f"n{number}")[1]:
            scheduling.pod_seen(pod, 0.0)
    scheduling.pod_seen(waiting(20, uid="large"), 0.0)
    assert [placeholder.units for placeholder in wanted(scheduling)] == [41]


def elsewhere(number):
    """A pod of a tenant that no node takes, each of another kind."""
    return waiting(20, {"no": f"node-{number}"}, namespace="theirs", created="2025-01-01T00:00:00Z")


def test_pods_that_no_node_takes_keep_no_other_from_having_one():
    facts, pods = scattered()
    useless = [elsewhere(number) for number in range(3 * MOST_RATED)]
    scheduling = cluster(facts, pods=[*pods, *useless, waiting(20, uid="large")])
    assert [placeholder.uid for placeholder in wanted(scheduling)] == ["large"]


def test_each_kind_of_the_pods_of_one_namespace_has_its_turn():
    facts, pods = scattered()
    useless = [elsewhere(number) for number in range(3 * MOST_RATED)]
    scheduling = cluster(facts, pods=[*pods, *useless, waiting(20, uid="large", namespace="theirs")])
    for _ in range(4):
        look(scheduling, 0.0)
    assert [placeholder.uid for placeholder in look(scheduling, LATER)] == ["large"]
    for _ in range(8):
        assert [placeholder.uid for placeholder in look(scheduling, LATER)] == ["large"]


def test_no_namespace_has_all_of_them():
    facts, pods = scattered()
    older = [waiting(20, namespace="theirs", created="2025-01-01T00:00:00Z") for _ in range(2 * MOST)]
    scheduling = cluster(facts, pods=[*pods, *older, waiting(20, uid="large")])
    uids = [placeholder.uid for placeholder in wanted(scheduling)]
    assert len(uids) == MOST
    assert "large" in uids
    assert [placeholder.uid for placeholder in look(scheduling, LATER)] == uids, "they stay the same"


def test_a_pod_that_goes_during_a_look_gets_none():
    facts, pods = scattered()
    scheduling = cluster(facts, pods=[*pods, waiting(20, uid="large"), waiting(20, uid="gone")])
    look(scheduling, 0.0)
    steps = scheduling.look_for_placeholders(LATER)
    next(steps)
    scheduling.pod_gone("gone", LATER)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert [placeholder.uid for placeholder in end.value.value] == ["large"]
