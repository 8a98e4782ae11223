"""What a tenant writes on a pod that is bound changes nothing for others: what was decided stands."""

import json
import random

import pytest

from gpuagent.domain.pods.annotations import (
    CORE_ANNOTATION,
    DECIDED_ANNOTATION,
    KEYS,
    MEMORY_ANNOTATION,
    V1_ASSIGNED,
    V1_ASSUMED,
    V1_GPU,
    V1_UNITS,
)
from gpuagent.domain.scheduling.held_gpus import HeldGpu
from gpuagent.domain.sharing.mode import (
    GPU_COUNT_LABEL,
    GROUP_ANNOTATION,
    JOB_LABEL,
    REPLICAS_LABEL,
    VISIBLE_ANNOTATION,
)
from gpuscheduler.core.calls import BindOutcome, BindWrite
from gpuscheduler.core.choose_gpus import Choice, serves
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import LeastFree, container, pod_object, shared_node, whole_node

NAMES = ("n1", "n2", "n3")


def cluster():
    made = Scheduling(LeastFree())
    made.node_seen(shared_node("n1", gpus=4))
    made.node_seen(shared_node("n2", gpus=3, core=100, core_step=5))
    made.node_seen(whole_node("n3"))
    made.synced(0.0)
    return made


def usage(scheduling):
    return {name: (list(of.free), list(of.pods_left)) for name, of in scheduling.usage.nodes.items()}


def new_pod(chance, number):
    """A pod of one of two namespaces, which both use the same names."""
    given = chance.choice(
        [
            {"mem": chance.randint(1, 10)},
            {"mem": chance.randint(1, 5), "core": 5 * chance.randint(1, 10)},
            {"whole": chance.choice([1, 2, 4])},
            {"mem": 2 * chance.randint(1, 8), "gpu_count": 2},
        ]
    )
    made = pod_object(f"p{number % 4}", uid=f"uid-{number}", **given)
    if chance.random() < 0.3:
        made["spec"]["containers"] = [container("a", mem=chance.randint(1, 5)), container("b", mem=3)]
        made["metadata"]["labels"] = {}
    made["metadata"]["namespace"] = chance.choice(["one", "two"])
    return made


def edit(chance, asked):
    """A tenant's patch: forged, malformed, copied and removed decisions, and labels."""
    annotations, labels = asked["metadata"]["annotations"], asked["metadata"]["labels"]
    gpu = chance.randint(0, 8)
    everything = json.dumps({"0": {str(n): 10 for n in range(8)}})
    forged = {
        MEMORY_ANNOTATION: [everything, json.dumps({"0": {str(gpu): 1}}), "no JSON", '{"7":{"0":10}}'],
        CORE_ANNOTATION: [json.dumps({"0": {str(gpu): 100}}), everything],
        V1_GPU: [str(gpu)],
        V1_UNITS: ["1", "10", "2147483647"],
        V1_ASSUMED: ["1800000000000000000"],
        V1_ASSIGNED: ["true", "false"],
        GROUP_ANNOTATION: [str(gpu), "0,1,2,3,4,5,6,7", "x"],
        VISIBLE_ANNOTATION: ["0,1,2,3,4,5,6,7"],
        DECIDED_ANNOTATION: [asked["metadata"]["uid"], "uid-0", ""],
    }
    for _ in range(chance.randint(1, 4)):
        if chance.random() < 0.3:
            annotations.pop(chance.choice(KEYS), None)
        else:
            key = chance.choice(list(forged))
            annotations[key] = chance.choice(forged[key])
    if memory := annotations.get(MEMORY_ANNOTATION):  # moved to another GPU, with the right amounts
        annotations[MEMORY_ANNOTATION] = memory.replace('{"0":', f'{{"{gpu}":') if chance.random() < 0.5 else memory
    if chance.random() < 0.3:
        labels[GPU_COUNT_LABEL] = chance.choice(["1", "2", "8", "x"])
    if chance.random() < 0.3:
        labels |= {JOB_LABEL: "j", REPLICAS_LABEL: chance.choice(["1", "3", "x"])}


@pytest.mark.parametrize("seed", range(30))
def test_random_edits_of_bound_pods_change_nothing_for_others(seed):
    chance = random.Random(seed)
    calm, attacked = cluster(), cluster()
    bound = {}
    for number in range(60):
        asked = new_pod(chance, number)
        answers = [one.filter(pod_facts(asked), NAMES, 0.0) for one in (calm, attacked)]
        assert answers[0] == answers[1]
        if answers[0].nodes:
            writes = [one.bind(asked["metadata"]["uid"], answers[0].nodes[0], 0.0, 1) for one in (calm, attacked)]
            assert isinstance(writes[0], BindWrite)
            assert writes[0] == writes[1]
            asked["metadata"]["annotations"] |= writes[0].annotations
            asked["spec"]["nodeName"] = writes[0].node
            for one in (calm, attacked):
                one.bound(writes[0].uid, BindOutcome.BOUND)
            calm.pod_seen(pod_facts(asked), 0.0)
            if chance.random() < 0.3:  # the watch was broken, and a list shows the pod after its edit
                edit(chance, asked)
            attacked.pod_seen(pod_facts(asked), 0.0)
            bound[writes[0].uid] = asked
        for victim in chance.sample(list(bound), min(3, len(bound))):
            edit(chance, bound[victim])
            attacked.pod_seen(pod_facts(bound[victim]), 0.0)
        if bound and chance.random() < 0.2:
            gone = chance.choice(list(bound))
            del bound[gone]
            for one in (calm, attacked):
                one.pod_gone(gone, 0.0)
        assert usage(attacked) == usage(calm)
    for one in (calm, attacked):
        for uid in bound:
            one.pod_gone(uid, 0.0)
        one.tick(1000.0)
    assert usage(attacked) == usage(calm) == usage(cluster())


@pytest.mark.parametrize(
    ("given", "annotations"),
    [
        ({"mem": 1}, {MEMORY_ANNOTATION: '{"0":{"0":10,"1":10}}'}),
        ({"mem": 2}, {MEMORY_ANNOTATION: '{"0":{"0":1}}'}),
        ({"mem": 1}, {MEMORY_ANNOTATION: '{"0":{"0":1},"1":{"1":9}}'}),
        ({"mem": 2}, {MEMORY_ANNOTATION: '{"0":{"0":1,"1":1}}'}),
        ({"mem": 1}, {V1_GPU: "0", V1_UNITS: "10", V1_ASSUMED: "1800000000000000000", V1_ASSIGNED: "false"}),
        ({"mem": 1}, {CORE_ANNOTATION: '{"0":{"0":100}}'}),
        ({"mem": 1, "core": 5}, {CORE_ANNOTATION: '{"0":{"0":100}}'}),
        ({"mem": 1}, {GROUP_ANNOTATION: "0"}),
        ({"whole": 1}, {GROUP_ANNOTATION: "0,1,2,3"}),
        ({"whole": 2}, {GROUP_ANNOTATION: "0"}),
        ({"whole": 2}, {GROUP_ANNOTATION: "0,00"}),
        ({"whole": 1}, {MEMORY_ANNOTATION: '{"0":{"0":1}}'}),
    ],
)
def test_an_annotation_that_gives_something_else_than_the_limits_is_no_decision(given, annotations):
    assert pod_facts(pod_object(on="n1", annotations=annotations, **given)).used is None


def test_another_schedulers_decision_counts_from_the_first_sight_of_the_bound_pod():
    scheduling = cluster()
    asked = pod_object(mem=6, on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"2":6}}'})
    scheduling.pod_seen(pod_facts(asked), 0.0)
    before = usage(scheduling)
    asked["metadata"]["annotations"] = {MEMORY_ANNOTATION: '{"0":{"3":6}}'}
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert usage(scheduling) == before
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [10, 10, 4, 10]


def test_the_agents_word_on_the_node_wins_over_what_a_restarted_scheduler_reads_on_the_pods():
    one, two = [pod_object(f"p{n}", uid=f"u{n}", on="n1", mem=6) for n in (1, 2)]
    one["metadata"]["annotations"] = {MEMORY_ANNOTATION: '{"0":{"3":6}}'}  # forged: it runs on GPU 0
    held = {"u1": (HeldGpu(0, memory=6),), "u2": (HeldGpu(1, memory=6),), "elsewhere": (HeldGpu(2, memory=6),)}
    for nodes_first in (True, False):
        scheduling = Scheduling(LeastFree())
        steps = [
            lambda made=scheduling: made.node_seen(shared_node("n1", gpus=4, held=held)),
            lambda made=scheduling: [made.pod_seen(pod_facts(seen), 0.0) for seen in (one, two)],
        ]
        for step in steps if nodes_first else reversed(steps):
            step()
        scheduling.synced(0.0)
        assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [4, 4, 10, 10]


def test_the_agents_word_stands_when_the_node_no_longer_says_it():
    """The agent drops a pod that has ended. The watch may show the Node before the pod."""
    scheduling = cluster()
    asked = pod_object(mem=6, uid="u", on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"2":6}}'})
    scheduling.pod_seen(pod_facts(asked), 0.0)
    for held in ({"u": (HeldGpu(0, memory=6),)}, {}):
        scheduling.node_seen(shared_node("n1", gpus=4, held=held))
        scheduling.pod_seen(pod_facts(asked), 0.0)
        assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [4, 10, 10, 10]


def test_an_agent_speaks_for_pods_of_its_own_node_only():
    scheduling = cluster()
    asked = pod_object(mem=6, uid="u", on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"2":6}}'})
    scheduling.pod_seen(pod_facts(asked), 0.0)
    scheduling.node_seen(shared_node("n2", gpus=3, core=100, core_step=5, held={"u": (HeldGpu(0, memory=1),)}))
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [10, 10, 4, 10]
    assert [free.memory for free in scheduling.usage.nodes["n2"].free] == [10, 10, 10]


@pytest.mark.parametrize(("held", "expected"), [(None, [10, 4]), ({}, [4, 4])])
def test_gpus_that_are_named_after_the_binding_count_only_where_no_agent_publishes_what_pods_hold(held, expected):
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(shared_node("n1", held=held))
    asked = pod_object(mem=6, on="n1")
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [4, 4]  # it may be on each GPU
    asked["metadata"]["annotations"] = {MEMORY_ANNOTATION: '{"0":{"1":6}}'}
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == expected


def binding_sent():
    """A scheduler that has sent a Binding to GPU 0 of n1, and the pod."""
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(shared_node("n1"))
    scheduling.synced(0.0)
    asked = pod_object(mem=6, uid="u")
    scheduling.pod_seen(pod_facts(asked), 0.0)
    scheduling.filter(pod_facts(asked), ["n1"], 0.0)
    assert isinstance(scheduling.bind("u", "n1", 0.0, 1), BindWrite)
    return scheduling, asked


def see_on_gpu_1(scheduling, asked):
    asked["metadata"]["annotations"] = {MEMORY_ANNOTATION: '{"0":{"1":6}}'}
    asked["spec"]["nodeName"] = "n1"
    scheduling.pod_seen(pod_facts(asked), 0.0)


@pytest.mark.parametrize("answer_first", [True, False])
@pytest.mark.parametrize("outcome", [BindOutcome.REFUSED, BindOutcome.UNKNOWN])
def test_another_schedulers_decision_counts_although_a_binding_to_the_same_node_was_sent(outcome, answer_first):
    """Of several Bindings the first counts, such as the late one of a former leader. The agent follows it."""
    scheduling, asked = binding_sent()
    if answer_first:
        scheduling.bound("u", outcome)
    see_on_gpu_1(scheduling, asked)
    if not answer_first:
        scheduling.bound("u", outcome)
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [10, 4]


@pytest.mark.parametrize("answer_first", [True, False])
def test_what_the_api_server_has_bound_stands_whatever_is_first_seen_on_the_pod(answer_first):
    scheduling, asked = binding_sent()
    if answer_first:
        scheduling.bound("u", BindOutcome.BOUND)
    see_on_gpu_1(scheduling, asked)
    if not answer_first:
        scheduling.bound("u", BindOutcome.BOUND)
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [4, 10]


def test_the_agents_word_comes_before_a_binding_whose_answer_is_late():
    scheduling, asked = binding_sent()
    scheduling.node_seen(shared_node("n1", held={"u": (HeldGpu(1, memory=6),)}))
    see_on_gpu_1(scheduling, asked)
    scheduling.bound("u", BindOutcome.BOUND)
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [10, 4]


def test_a_written_plan_that_takes_more_than_its_pods_ask_for_is_none():
    request = pod_facts(pod_object(mem=2)).request
    containers = {0: {0: Amounts(2)}}
    assert serves(request, Choice(((0, Amounts(2)),), containers))
    assert not serves(request, Choice(((0, Amounts(10)),), containers))
    assert not serves(request, Choice(((0, Amounts(2)), (1, Amounts(2))), containers))
    assert not serves(request, Choice(((0, Amounts(2)), (1, Amounts())), containers))


def test_a_new_pod_with_the_name_of_a_former_one_is_counted_by_its_own_decision():
    scheduling = cluster()
    former = pod_object("p", mem=6, on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"2":6}}'})
    scheduling.pod_seen(pod_facts(former), 0.0)
    scheduling.pod_gone(former["metadata"]["uid"], 0.0)
    scheduling.pod_seen(
        pod_facts(pod_object("p", mem=3, on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"1":3}}'})), 0.0
    )
    assert [free.memory for free in scheduling.usage.nodes["n1"].free] == [10, 7, 10, 10]


def test_a_refusal_by_a_node_counts_for_pods_of_the_same_namespace_only():
    """Owner references are the tenant's to write: one may name the controller of another tenant."""
    scheduling = cluster()
    refused = pod_object(mem=1, on="n1", owner="theirs")
    scheduling.pod_seen(pod_facts(refused), 0.0)
    refused["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
    scheduling.pod_seen(pod_facts(refused), 0.0)
    theirs = pod_object(mem=1, owner="theirs")
    theirs["metadata"]["namespace"] = "other"
    assert scheduling.filter(pod_facts(theirs), ["n1"], 0.0).nodes == ("n1",)
    assert not scheduling.filter(pod_facts(pod_object(mem=1, owner="theirs")), ["n1"], 0.0).nodes


@pytest.mark.parametrize("labels", [{}, {JOB_LABEL: "j", REPLICAS_LABEL: "2"}])
def test_a_pod_whose_label_asks_for_other_gpus_after_they_were_reserved_is_placed_again(labels):
    """The agent reads the decision with the label that the pod has when it is bound."""
    scheduling = cluster()
    asked = pod_object(mem=4, labels=dict(labels), owner="r")
    if labels:
        other = pod_facts(pod_object(mem=4, labels=labels, owner="r"))
        scheduling.pod_seen(other, 0.0)
        scheduling.filter(other, NAMES, 0.0)
    scheduling.pod_seen(pod_facts(asked), 0.0)
    before = pod_facts(asked)
    assert scheduling.filter(before, NAMES, 0.0).nodes
    asked["metadata"]["labels"][GPU_COUNT_LABEL] = "2"
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert scheduling.filter(before, NAMES, 0.0).error  # kube-scheduler has not seen it yet
    assert scheduling.reservations.get(before.uid) is None
