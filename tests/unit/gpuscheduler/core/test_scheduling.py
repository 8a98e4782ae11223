"""Filter, bind and preempt for single pods: the right node and GPUs, exact reservations, and reasons."""

import json
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import pytest

from gpuagent.domain.pods.annotations import CORE_ANNOTATION, DECIDED_ANNOTATION, MEMORY_ANNOTATION, V1_GPU
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.scheduling.decision import Decision, read
from gpuagent.domain.scheduling.held_gpus import HeldGpu
from gpuagent.domain.scheduling.node_gpus import NodeGpu, NodeGpus
from gpuagent.domain.sharing.mode import (
    GPU_CORE,
    GPU_MEM,
    GROUP_ANNOTATION,
    JOB_LABEL,
    REPLICAS_LABEL,
    VISIBLE_ANNOTATION,
    Kind,
)
from gpuscheduler.core.bindings import CONFIRMED_S
from gpuscheduler.core.calls import BindOutcome, BindRefused, BindWrite, Nominate, Nudge, Report
from gpuscheduler.core.cluster_usage import MIN_FEASIBLE_NODES
from gpuscheduler.core.constraints.resources import Resources
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.preemption import EVICTED_S
from gpuscheduler.core.single_pods.single_pods import RESERVED_S
from gpuscheduler.core.waiting.cool_downs import FIRST_COOL_DOWN_S
from gpuscheduler.core.waiting.wake_ups import FIRST_S
from tests.unit.gpuscheduler.core.api_objects import LeastFree, container, pod, pod_object, shared_node, whole_node

WALL_NS = 1_800_000_000 * 10**9


@pytest.fixture
def scheduling():
    return cluster(shared_node("n1"), shared_node("n2"))


def cluster(*nodes):
    made = Scheduling(LeastFree())
    for node in nodes:
        made.node_seen(node)
    made.synced(0.0)
    return made


def place(scheduling, asked, now=0.0, names=("n1", "n2")):
    """Filter and bind a pod, and show it bound; its node and annotations."""
    answer = scheduling.filter(pod_facts(asked), names, now)
    assert len(answer.nodes) == 1, answer
    write = scheduling.bind(asked["metadata"]["uid"], answer.nodes[0], now, WALL_NS)
    assert isinstance(write, BindWrite), write
    show(scheduling, asked, write, now)
    return write.node, write.annotations


def show(scheduling, asked, write, now=0.0):
    """Show the pod as the API server has it after the Binding."""
    asked["metadata"]["annotations"].update(write.annotations)
    asked["spec"]["nodeName"] = write.node
    scheduling.bound(write.uid, BindOutcome.BOUND)
    scheduling.pod_seen(pod_facts(asked), now)


def free(scheduling, name):
    return [amounts.memory for amounts in scheduling.usage.nodes[name].free]


def test_pods_fill_one_gpu_before_the_next(scheduling):
    placed = [place(scheduling, pod_object(mem=5)) for _ in range(4)]
    assert [node for node, _ in placed] == [placed[0][0]] * 4
    assert [json.loads(texts[MEMORY_ANNOTATION]) for _, texts in placed] == [
        {"0": {"0": 5}},
        {"0": {"0": 5}},
        {"0": {"1": 5}},
        {"0": {"1": 5}},
    ]


def test_a_decision_carries_the_uid_of_its_pod_and_both_families(scheduling):
    asked = pod_object(mem=5, uid="u1")
    _, texts = place(scheduling, asked)
    assert (texts[DECIDED_ANNOTATION], texts[V1_GPU]) == ("u1", "0")


@pytest.mark.parametrize(
    "asked",
    [
        pod_object(mem=3),
        pod_object(None, container("a", mem=8), container("b", mem=7)),
        pod_object(mem=6, gpu_count=2),
        pod_object(None, container("a", mem=2), container("b"), container("c", mem=3)),
    ],
)
def test_the_agent_reads_the_decision_that_was_written(scheduling, asked):
    asked = deepcopy(asked)  # binding writes into it, and mutmut runs the tests again in the same process
    _, texts = place(scheduling, asked)
    minors = {"GPU-0": 0, "GPU-1": 1}
    found = read(parse_pod(asked), {GPU_MEM: Kind.MEMORY_SHARE}, minors, {GPU_MEM: dict.fromkeys(minors, 10)})
    assert isinstance(found, Decision), found
    assert not found.unmet
    assert texts[MEMORY_ANNOTATION]


def test_memory_and_compute_are_on_one_gpu():
    scheduling = cluster(shared_node("n1", core=100, core_step=5))
    asked = pod_object(mem=3, core=30)
    _, texts = place(scheduling, asked, names=("n1",))
    assert (json.loads(texts[MEMORY_ANNOTATION]), json.loads(texts[CORE_ANNOTATION])) == (
        {"0": {"0": 3}},
        {"0": {"0": 30}},
    )
    minors = {"GPU-0": 0, "GPU-1": 1}
    resource_kinds = {GPU_MEM: Kind.MEMORY_CORE_MEM, GPU_CORE: Kind.CORE_CORE_MEM}
    amounts = {GPU_MEM: dict.fromkeys(minors, 10), GPU_CORE: dict.fromkeys(minors, 100)}
    assert isinstance(read(parse_pod(asked), resource_kinds, minors, amounts), Decision)


def test_memory_alone_and_odd_steps_wait_with_a_reason():
    scheduling = cluster(shared_node("n1", core=100, core_step=5))
    together = "node(s) share memory and compute of GPUs only together: their mode is core_mem"
    steps = "node(s) share compute of GPUs in steps of 5 %"
    for given, why in (({"mem": 3}, together), ({"mem": 3, "core": 7}, steps)):
        answer = scheduling.filter(pod(**given), ["n1"], 0.0)
        assert answer.unresolvable == {"n1": why}


def test_whole_gpus_are_named_and_shown():
    scheduling = cluster(whole_node("n1"))
    _, texts = place(scheduling, pod_object(whole=3), names=("n1",))
    assert (texts[GROUP_ANNOTATION], texts[VISIBLE_ANNOTATION]) == ("0,1,2", "0,1,2")
    answer = scheduling.filter(pod(whole=6), ["n1"], 0.0)
    assert answer.failed == {"n1": "node(s) had at most 5 unused GPUs, 6 wanted"}


def test_a_reservation_holds_until_it_lapses(scheduling):
    first = pod(mem=10)
    (node,) = scheduling.filter(first, ["n1"], 0.0).nodes
    scheduling.filter(pod(mem=10), ["n1"], 0.0)
    assert scheduling.filter(pod(mem=1), ["n1"], 0.0).failed
    scheduling.tick(0.0)
    assert scheduling.next_due(0.0) == RESERVED_S
    scheduling.tick(RESERVED_S)
    assert free(scheduling, node) == [10, 10]


def test_a_second_filter_call_replaces_the_first(scheduling):
    asked = pod(mem=10)
    for _ in range(5):
        assert scheduling.filter(asked, ["n1"], 0.0).nodes == ("n1",)
    assert sorted(free(scheduling, "n1")) == [0, 10]


def test_a_refused_binding_gives_the_units_back_and_a_lost_answer_keeps_them(scheduling):
    asked = pod(mem=10)
    scheduling.filter(asked, ["n1"], 0.0)
    scheduling.bind(asked.uid, "n1", 0.0, WALL_NS)
    scheduling.bound(asked.uid, BindOutcome.UNKNOWN)
    scheduling.tick(RESERVED_S)
    assert sorted(free(scheduling, "n1")) == [0, 10]
    scheduling.tick(CONFIRMED_S)
    assert free(scheduling, "n1") == [10, 10]
    scheduling.filter(asked, ["n1"], 0.0)
    scheduling.bind(asked.uid, "n1", 0.0, WALL_NS)
    scheduling.bound(asked.uid, BindOutcome.REFUSED)
    assert free(scheduling, "n1") == [10, 10]


def test_bind_chooses_again_when_a_former_leader_gave_the_reserved_gpu_away(scheduling):
    asked, other = pod_object(mem=8), pod_object(mem=8)
    node = scheduling.filter(pod_facts(asked), ["n1"], 0.0).nodes[0]
    former = cluster(shared_node("n1"))
    assert place(former, other, names=[node])[1][V1_GPU] == "0"
    scheduling.pod_seen(pod_facts(other), 0.0)
    assert free(scheduling, node) == [-6, 10]
    show(scheduling, asked, scheduling.bind(asked["metadata"]["uid"], node, 0.0, WALL_NS))
    assert free(scheduling, node) == [2, 2]


def test_bind_without_a_reservation_chooses_on_that_node_or_refuses(scheduling):
    asked = pod(mem=10)
    assert isinstance(scheduling.bind(asked.uid, "n1", 0.0, WALL_NS), BindRefused)
    scheduling.pod_seen(asked, 0.0)
    assert isinstance(scheduling.bind(asked.uid, "n1", 0.0, WALL_NS), BindWrite)
    other = pod(mem=10)
    for taken in (pod(mem=10), other):
        scheduling.pod_seen(taken, 0.0)
    assert isinstance(scheduling.bind(other.uid, "n1", 0.0, WALL_NS), BindWrite)
    late = pod(mem=10)
    scheduling.pod_seen(late, 0.0)
    assert isinstance(scheduling.bind(late.uid, "n1", 0.0, WALL_NS), BindRefused)


def test_a_pod_of_several_gpus_counts_with_its_sidecar_once_it_is_bound(scheduling):
    asked = pod_object(None, container("a", mem=6), container("b", mem=7))
    asked["spec"]["initContainers"] = [container("s", mem=2) | {"restartPolicy": "Always"}]
    scheduling.filter(pod_facts(asked), ["n1"], 0.0)
    write = scheduling.bind(asked["metadata"]["uid"], "n1", 0.0, WALL_NS)
    reserved = free(scheduling, "n1")
    show(scheduling, asked, write)
    assert (free(scheduling, "n1"), sorted(reserved)) == (reserved, [2, 3])


def test_a_pod_that_is_bound_keeps_its_gpus_whatever_a_late_kube_scheduler_asks(scheduling):
    asked = pod_object(mem=4)
    before = pod_facts(asked)
    node, _ = place(scheduling, asked)
    used = {name: free(scheduling, name) for name in ("n1", "n2")}
    assert "has changed" in scheduling.filter(before, ["n1", "n2"], 0.0).error
    assert scheduling.bind(before.uid, node, 0.0, WALL_NS) == BindWrite(before.name, before.uid, node, {})
    assert {name: free(scheduling, name) for name in ("n1", "n2")} == used


def test_a_binding_has_other_gpus_when_those_that_were_reserved_are_not_usable_any_more(scheduling):
    asked = pod(mem=4)
    scheduling.pod_seen(asked, 0.0)
    scheduling.filter(asked, ["n1"], 0.0)
    scheduling.node_seen(replace(shared_node("n1"), gpus=NodeGpus((NodeGpu(0, 10, usable=False), NodeGpu(1, 10)))))
    assert scheduling.bind(asked.uid, "n1", 0.0, WALL_NS).annotations[MEMORY_ANNOTATION] == '{"0":{"1":4}}'
    scheduling.node_seen(whole_node("n1"))
    scheduling.bound(asked.uid, BindOutcome.REFUSED)
    assert isinstance(scheduling.bind(asked.uid, "n1", 0.0, WALL_NS), BindRefused)


@pytest.mark.parametrize("asked", [{"mem": "much"}, {"mem": 3, "whole": 1}, {}])
def test_pods_whose_amounts_make_no_sense_do_no_harm(scheduling, asked):
    """Another scheduler may bind them."""
    assert scheduling.preempt(pod(**asked), {"n1": []}, 0.0) in ({}, {"n1": []})
    scheduling.pod_seen(pod(on="n1", **asked), 0.0)
    waits = pod(**asked)
    scheduling.pod_seen(waits, 0.0)
    assert isinstance(scheduling.bind(waits.uid, "n2", 0.0, WALL_NS), BindRefused)


def test_compute_of_a_copied_annotation_does_not_count_for_a_pod_that_asks_for_none(scheduling):
    asked = pod_object(mem=4, annotations={CORE_ANNOTATION: '{"0":{"0":45}}', DECIDED_ANNOTATION: "another"})
    node, _ = place(scheduling, asked)
    assert scheduling.usage.nodes[node].free[0] == Amounts(6, 0)


def test_a_job_is_planned_when_a_reservation_ends_that_was_in_its_way():
    scheduling = cluster(shared_node("n1", gpus=1))
    assert scheduling.filter(pod(mem=8), ["n1"], 0.0).nodes
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    members = [pod(mem=4, labels=labels) for _ in range(2)]
    for one in members:
        scheduling.pod_seen(one, 0.0)
    scheduling.tick(1.0)
    for member in members:
        assert not scheduling.filter(member, ["n1"], 1.0).nodes
    scheduling.tick(RESERVED_S)
    assert len(scheduling.reservations) == 2


def test_amounts_that_no_node_has_do_no_harm(scheduling):
    """Bound past the scheduler to a node whose kubelet is away, such a pod counts for minutes."""
    most = 2**63 - 1
    for asked in (pod_object(None, container("a", mem=most), container("b", mem=most)), pod_object(whole=most)):
        assert "more than any node has" in str(scheduling.filter(pod_facts(asked), ["n1"], 0.0))
        asked["spec"]["nodeName"] = "n1"
        scheduling.pod_seen(pod_facts(asked), 0.0)
        place(scheduling, pod_object(mem=4), names=["n2"])


def test_the_agents_correction_moves_what_is_used(scheduling):
    asked = pod_object(mem=5, uid="u")
    node, _ = place(scheduling, asked)
    scheduling.node_seen(shared_node(node, held={"u": (HeldGpu(1, memory=5),)}))
    assert free(scheduling, node) == [10, 5]
    scheduling.node_seen(shared_node(node, held={}))
    assert free(scheduling, node) == [10, 5]
    scheduling.pod_gone("u", 1.0)
    assert free(scheduling, node) == [10, 10]


def test_a_pod_of_another_scheduler_counts_on_every_gpu_until_its_gpu_is_known(scheduling):
    asked = pod_object(mem=4, on="n1")
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert free(scheduling, "n1") == [6, 6]
    asked["metadata"]["annotations"][MEMORY_ANNOTATION] = '{"0":{"1":4}}'
    scheduling.pod_seen(pod_facts(asked), 0.0)
    assert free(scheduling, "n1") == [10, 6]


def test_a_pod_counts_until_it_is_gone_not_until_it_is_deleted(scheduling):
    asked = pod_object(mem=5)
    node, _ = place(scheduling, asked)
    asked["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    scheduling.pod_seen(pod_facts(asked), 1.0)
    assert sum(free(scheduling, node)) == 15
    scheduling.pod_gone(asked["metadata"]["uid"], 2.0)
    assert sum(free(scheduling, node)) == 20


@pytest.mark.parametrize("is_sent", [False, True])
def test_nothing_is_kept_for_a_pod_that_is_deleted_before_its_binding(scheduling, is_sent):
    """It stays for as long as a finalizer does, for example that of Kueue or of Jobs."""
    asked = pod_object(mem=10)
    scheduling.pod_seen(pod_facts(asked), 0.0)
    (node,) = scheduling.filter(pod_facts(asked), ["n1"], 0.0).nodes
    if is_sent:
        assert isinstance(scheduling.bind(asked["metadata"]["uid"], node, 0.0, WALL_NS), BindWrite)
    asked["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    scheduling.pod_seen(pod_facts(asked), 1.0)
    assert sum(free(scheduling, node)) == (10 if is_sent else 20)


def test_pods_that_were_bound_before_their_node_is_seen_count():
    scheduling = Scheduling(LeastFree())
    scheduling.pod_seen(pod(mem=4, on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"1":4}}'}), 0.0)
    scheduling.node_seen(shared_node("n1"))
    assert free(scheduling, "n1") == [10, 6]


def test_a_pod_that_may_be_bound_keeps_its_gpu_and_gets_no_other(scheduling):
    names = ["n1", "n2"]
    asked, other = pod(mem=10), pod(mem=10)
    scheduling.pod_seen(asked, 0.0)
    node = scheduling.filter(asked, names, 0.0).nodes[0]
    write = scheduling.bind(asked.uid, node, 0.0, WALL_NS)
    scheduling.bound(asked.uid, BindOutcome.UNKNOWN)
    elsewhere = next(name for name in names if name != node)
    assert scheduling.filter(asked, names, 1.0).nodes == (node,)
    assert f"may have bound the pod to node {node}" in scheduling.filter(asked, [elsewhere], 1.0).error
    assert f"may have bound the pod to node {node}" in scheduling.bind(asked.uid, elsewhere, 1.0, WALL_NS).reason
    assert scheduling.bind(asked.uid, node, 1.0, WALL_NS) == write
    scheduling.pod_seen(other, 1.0)
    scheduling.filter(other, [node], 1.0)
    annotations = scheduling.bind(other.uid, node, 1.0, WALL_NS).annotations
    assert annotations[MEMORY_ANNOTATION] != write.annotations[MEMORY_ANNOTATION]


def test_a_node_that_refused_a_pod_is_passed_over_for_its_owner_and_then_tried_again(scheduling):
    asked = pod_object(mem=4, owner="o1")
    node, _ = place(scheduling, asked)
    asked["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
    scheduling.pod_seen(pod_facts(asked), 1.0)
    assert scheduling.refusals == {node: 1}
    text = f"Node {node} refused the pod. Pods of its owner avoid the node for 30 s."
    assert scheduling.actions() == [Report(pod_facts(asked).name, asked["metadata"]["uid"], "NodeAvoided", text)]
    again = pod(mem=4, owner="o1")
    scheduling.pod_seen(again, 1.0)
    assert scheduling.filter(again, [node], 1.0).failed == {
        node: "node(s) refused a pod of the same owner a moment ago"
    }
    assert scheduling.filter(pod(mem=4, owner="o2"), [node], 1.0).nodes == (node,)
    for late, actions in ((1.0, [Nudge(again.name, again.uid)]), (2.0, [])):
        scheduling.tick(late + FIRST_COOL_DOWN_S)
        assert scheduling.actions() == actions
    assert scheduling.filter(again, [node], 2.0 + FIRST_COOL_DOWN_S).nodes == (node,)


def test_a_pod_that_states_preferences_gets_the_nodes_that_are_as_good():
    scheduling = cluster(*[shared_node(f"n{n}") for n in range(8)])
    asked = pod_object(mem=4)
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    asked["spec"]["affinity"] = {"nodeAffinity": preferred}
    names = [f"n{n}" for n in range(8)]
    answer = scheduling.filter(pod_facts(asked), names, 0.0)
    assert len(answer.nodes) == 5
    scheduling.bind(asked["metadata"]["uid"], answer.nodes[2], 0.0, WALL_NS)
    assert [sum(free(scheduling, name)) for name in names].count(20) == 7


@pytest.mark.parametrize(
    "claims",
    [
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "never-made"}}]},
        {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]},
        {"resourceClaims": [{"name": "r", "resourceClaimName": "r"}]},
    ],
)
def test_a_pod_that_waits_for_its_volume_holds_one_node_only(claims):
    scheduling = cluster(*[shared_node(f"n{n}") for n in range(8)])
    asked = pod_object(mem=4)
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    asked["spec"] |= {"affinity": {"nodeAffinity": preferred}} | claims
    answer = scheduling.filter(pod_facts(asked), [f"n{n}" for n in range(8)], 0.0)
    assert len(answer.nodes) == 1


def test_why_a_pod_waits():
    large = [shared_node(name, gpus=1, memory=40) for name in ("n1", "n2", "n3")]
    scheduling = cluster(*large, shared_node("small", memory=24))
    for name, units in (("n1", 4), ("n2", 20), ("n3", 30)):
        scheduling.pod_seen(pod(mem=units, on=name), 0.0)
    answer = scheduling.filter(pod(mem=40), ["n1", "n2", "n3", "small", "other"], 0.0)
    text = "node(s) had at most 36 GiB free on one GPU, 40 GiB wanted"
    assert answer.failed == dict.fromkeys(["n1", "n2", "n3"], text)
    assert answer.unresolvable == {
        "small": "node(s) had no GPU with 40 GiB",
        "other": "node(s) had no GPUs of this scheduler",
    }


def test_a_request_that_no_node_can_serve_is_never_retried_by_preemption(scheduling):
    answer = scheduling.filter(pod(mem=7, gpu_count=2), ["n1"], 0.0)
    assert "which 2 GPUs cannot share evenly" in answer.unresolvable["n1"]


def test_victims_are_of_one_gpu_and_of_lower_priority(scheduling):
    low = [pod(mem=5, on="n1", annotations={MEMORY_ANNOTATION: f'{{"0":{{"{gpu}":5}}}}'}) for gpu in (0, 0, 1)]
    high = pod(mem=5, on="n1", priority=9, annotations={MEMORY_ANNOTATION: '{"0":{"1":5}}'})
    for one in (*low, high):
        scheduling.pod_seen(one, 0.0)
    asked = pod(mem=10, priority=5)
    assert scheduling.preempt(asked, {"n1": [low[2].uid]}, 0.0) == {"n1": sorted([low[0].uid, low[1].uid])}
    assert scheduling.preempt(pod(mem=5, priority=5), {"n1": []}, 0.0)["n1"] in [[one.uid] for one in low]
    assert scheduling.preempt(pod(mem=10, priority=0), {"n1": []}, 0.0) == {}
    other = pod(mem=10, priority=5)
    assert scheduling.preempt(other, {"n1": ["for-cpu", low[2].uid]}, 0.0)["n1"][0] == "for-cpu"


def test_no_more_pods_are_evicted_while_the_victims_end():
    """The watch shows that they are gone later than kube-scheduler sees it."""
    scheduling = cluster(shared_node("n1"))
    low = [pod(mem=5, on="n1", annotations={MEMORY_ANNOTATION: f'{{"0":{{"{gpu}":5}}}}'}) for gpu in (0, 0, 1, 1)]
    for one in low:
        scheduling.pod_seen(one, 0.0)
    asked = pod(mem=10, priority=5)
    first = scheduling.preempt(asked, {"n1": [low[0].uid]}, 0.0)["n1"]
    assert len(first) == 2
    asked = replace(asked, nominated="n1")
    scheduling.pod_gone(first[0], 1.0)
    assert scheduling.preempt(asked, {"n1": [low[2].uid]}, 1.0) == {}
    scheduling.pod_gone(first[1], 1.0)
    assert scheduling.preempt(asked, {"n1": [low[2].uid]}, 1.0) == {}


def test_what_victims_freed_is_kept_for_the_pod_that_they_went_for():
    """kube-scheduler may try a pod of lower priority first."""
    scheduling = cluster(shared_node("n1", gpus=1))
    low = pod(mem=10, on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"0":10}}'})
    asked = pod(mem=10, priority=5)
    for one in (low, asked):
        scheduling.pod_seen(one, 0.0)
    assert scheduling.preempt(asked, {"n1": [low.uid]}, 0.0) == {"n1": [low.uid]}
    asked = replace(asked, nominated="n1")
    scheduling.pod_seen(asked, 0.0)
    scheduling.pod_gone(low.uid, 1.0)
    assert scheduling.filter(pod(mem=10), ["n1"], 1.0).failed
    assert scheduling.filter(asked, ["n1"], 1.0).nodes == ("n1",)


def test_a_victim_that_goes_for_cpu_goes_also_where_it_frees_no_gpu():
    scheduling = cluster(shared_node("n1", gpus=3, cpu="4"))
    given = ((0, 5, 9), (0, 5, 0), (1, 10, 1), (2, 5, 9), (2, 5, 0))  # GPU, units, priority
    users = [
        pod(mem=units, on="n1", priority=priority, annotations={MEMORY_ANNOTATION: f'{{"0":{{"{gpu}":{units}}}}}'})
        for gpu, units, priority in given
    ]
    users[1] = replace(users[1], requests=Resources(cpu=3000))
    for one in users:
        scheduling.pod_seen(one, 0.0)
    proposed = {"n1": [users[1].uid, users[4].uid]}
    asked = pod(mem=10, priority=5)
    assert scheduling.preempt(asked, proposed, 0.0) == {"n1": [users[2].uid]}
    assert {users[1].uid, users[2].uid} <= {
        *scheduling.preempt(replace(asked, requests=Resources(cpu=3000)), proposed, 0.0)["n1"]
    }


def test_a_pod_without_which_a_job_cannot_go_on_counts_as_the_whole_job():
    scheduling = cluster(shared_node("n1", gpus=3))
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    low = [
        pod(mem=10, on="n1", annotations={MEMORY_ANNOTATION: f'{{"0":{{"{gpu}":10}}}}'}, labels=given, created=created)
        for gpu, given, created in (
            (0, labels, "2026-01-01T00:00:09Z"),
            (1, labels, "2026-01-01T00:00:09Z"),
            (2, {}, "2026-01-01T00:00:00Z"),
        )
    ]
    for one in low:
        scheduling.pod_seen(one, 0.0)
    assert scheduling.preempt(pod(mem=10, priority=5), {"n1": []}, 0.0) == {"n1": [low[2].uid]}


def test_a_pod_that_is_not_bound_is_no_victim():
    scheduling = cluster(shared_node("n1", gpus=1))
    reserved = pod(mem=10)
    scheduling.pod_seen(reserved, 0.0)
    scheduling.filter(reserved, ["n1"], 0.0)
    assert scheduling.preempt(pod(mem=10, priority=5), {"n1": []}, 0.0) == {}


def test_victims_are_chosen_again_when_the_first_ones_stay():
    scheduling = cluster(shared_node("n1"))
    low = pod(mem=10, on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"0":10}}'})
    other = pod(mem=10, on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"1":10}}'})
    for one in (low, other):
        scheduling.pod_seen(one, 0.0)
    asked = pod(mem=10, priority=5)
    assert scheduling.preempt(asked, {"n1": [low.uid]}, 0.0) == {"n1": [low.uid]}
    asked = replace(asked, nominated="n1")
    assert scheduling.preempt(asked, {"n1": [other.uid]}, EVICTED_S) == {"n1": [other.uid]}


def test_no_call_is_answered_before_everything_was_seen():
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(shared_node("n1"))
    asked = pod(mem=1)
    scheduling.pod_seen(asked, 0.0)
    assert scheduling.filter(asked, ["n1"], 0.0).error
    assert isinstance(scheduling.bind(asked.uid, "n1", 0.0, WALL_NS), BindRefused)


def test_a_pod_that_was_refused_is_woken_when_it_fits():
    """kube-scheduler saw the other pod go before the scheduler did, so it does not ask again by itself."""
    scheduling = cluster(shared_node("n1", gpus=1))
    other = pod_object(mem=10)
    place(scheduling, other, names=("n1",))
    waits = pod(mem=10)
    scheduling.pod_seen(waits, 0.0)
    assert scheduling.filter(waits, ["n1"], 0.0).failed
    assert woken(scheduling, 0.0) == {}
    assert scheduling.next_due(0.0) is None
    scheduling.pod_gone(other["metadata"]["uid"], 1.0)
    assert woken(scheduling, 1.0) == {}
    assert woken(scheduling, due(scheduling)) == {waits.uid: Nudge(waits.name, waits.uid)}
    assert scheduling.filter(waits, ["n1"], 5.0).nodes == ("n1",)
    assert woken(scheduling, 10.0) == {}


def test_a_pod_is_woken_when_a_reservation_ends_that_was_in_its_way():
    scheduling = cluster(shared_node("n1", gpus=1))
    first, waits = pod(mem=10), pod(mem=10)
    for one in (first, waits):
        scheduling.pod_seen(one, 0.0)
        scheduling.filter(one, ["n1"], 0.0)
    scheduling.bound(first.uid, BindOutcome.REFUSED)
    assert woken(scheduling, FIRST_S) == {waits.uid: Nudge(waits.name, waits.uid)}


def test_a_pod_that_the_watch_shows_late_is_woken():
    """kube-scheduler asked about it before, and the room that is made is seen first."""
    scheduling = cluster(shared_node("n1", gpus=1))
    other = pod_object(mem=10)
    place(scheduling, other, names=("n1",))
    waits = pod(mem=10)
    scheduling.filter(waits, ["n1"], 0.0)
    scheduling.pod_gone(other["metadata"]["uid"], 0.0)
    assert woken(scheduling, FIRST_S) == {}
    scheduling.pod_seen(waits, FIRST_S)
    assert woken(scheduling, due(scheduling)) == {waits.uid: Nudge(waits.name, waits.uid)}


def test_a_pod_that_a_former_run_refused_is_woken():
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(shared_node("n1"))
    waits = pod(mem=10)
    scheduling.pod_seen(waits, 0.0)
    scheduling.synced(0.0)
    scheduling.tick(0.0)
    assert woken(scheduling, due(scheduling)) == {waits.uid: Nudge(waits.name, waits.uid)}


def test_a_pod_that_is_woken_without_success_is_woken_less_often():
    """kube-scheduler does not name the node where it fits."""
    scheduling = cluster(shared_node("n1", gpus=1, memory=4), shared_node("n2"))
    waits = pod(mem=10)
    scheduling.pod_seen(waits, 0.0)
    scheduling.filter(waits, ["n1"], 0.0)
    scheduling.node_seen(shared_node("n3"))
    times = []
    for _ in range(5):
        while not woken(scheduling, now := due(scheduling)):
            pass
        times.append(now)
        scheduling.filter(waits, ["n1"], now)
    assert [later - before for before, later in pairwise(times)] == [4.0, 8.0, 16.0, 32.0]


def test_in_a_large_cluster_pods_are_nominated_for_nodes_that_kube_scheduler_did_not_name():
    names = [f"n{n:03}" for n in range(MIN_FEASIBLE_NODES + 1)]
    scheduling = cluster(*[shared_node(name, gpus=1, memory=10 if name < "n002" else 4) for name in names])
    waiting = [pod(mem=10, priority=n) for n in range(3)]
    for one in waiting:
        scheduling.pod_seen(one, 0.0)
        assert not scheduling.filter(one, names[2:], 0.0).nodes
    found = woken(scheduling, FIRST_S)
    assert found.keys() == {waiting[1].uid, waiting[2].uid}
    assert {action.node for action in found.values()} == {"n000", "n001"}
    rejected = waiting[2]
    scheduling.filter(rejected, names[2:], 3.0)
    again = woken(scheduling, 8.0)[rejected.uid]
    assert again == Nominate(rejected.name, rejected.uid, ({"n000", "n001"} - {found[rejected.uid].node}).pop())


def woken(scheduling, now):
    scheduling.tick(now)
    return {action.uid: action for action in scheduling.actions()}


def due(scheduling):
    return scheduling.next_due(0.0)


def test_a_pod_that_names_a_gpu_that_the_node_lacks_counts_on_every_gpu():
    """Its author may have rewritten the annotation: which GPU it uses is not known."""
    scheduling = cluster(shared_node("n1"), whole_node("n2", gpus=2))
    shared = pod(mem=6, on="n1", annotations={MEMORY_ANNOTATION: '{"0":{"7":6}}'})
    whole = pod(whole=1, on="n2", annotations={GROUP_ANNOTATION: "9"})
    for one in (shared, whole):
        scheduling.pod_seen(one, 0.0)
    text = "node(s) had at most 4 GiB free on one GPU, 6 GiB wanted"
    assert scheduling.filter(pod(mem=6), ["n1"], 0.0).failed == {"n1": text}
    assert scheduling.filter(pod(whole=1), ["n2"], 0.0).failed
    for one in (shared, whole):
        scheduling.pod_gone(one.uid, 1.0)
    assert scheduling.filter(pod(mem=10), ["n1"], 2.0).nodes
    assert scheduling.filter(pod(whole=2), ["n2"], 2.0).nodes


def test_a_node_with_more_gpus_than_the_policies_rate():
    scheduling = cluster(shared_node("n1", gpus=18))
    for gpu in range(17):
        decided = {MEMORY_ANNOTATION: f'{{"0":{{"{gpu}":10}}}}'}
        scheduling.pod_seen(pod(mem=10, on="n1", annotations=decided), 0.0)
    assert scheduling.filter(pod(mem=10), ["n1"], 0.0).nodes == ("n1",)
    assert scheduling.filter(pod(mem=10), ["n1"], 0.0).failed, "the 18th GPU is reserved"
