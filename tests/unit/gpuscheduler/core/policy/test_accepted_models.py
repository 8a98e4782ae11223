"""Pods that ask for a model of GPU raise its price for all others, in whichever form they ask."""

import pytest

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.policy.accepted_models import MODEL_LABELS, accepts, model_labels, model_terms
from gpuscheduler.core.policy.mix import CHECK_PODS, Mix
from gpuscheduler.core.policy.strand import Strand
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import OF_NODES, pod, pod_object
from tests.unit.gpuscheduler.core.work import calls_of

NAME, PRODUCT, *_ = MODEL_LABELS
MOST_CALLS = 1000
"""Function calls that read a spec: it takes about 100, and each entry of its lists would take more than one."""


def selector(**labels):
    return {"nodeSelector": labels}


def affinity(*terms):
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        }
    }


def term(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


RARE = {
    "node selector": {"nodeSelector": {NAME: "RARE"}},
    "label of GPU feature discovery": {"nodeSelector": {PRODUCT: "RARE"}},
    "instance type": {"nodeSelector": {"node.kubernetes.io/instance-type": "rare.8xlarge"}},
    "affinity": affinity(term(NAME, "In", "RARE", "GONE")),
    "all but": affinity(term(NAME, "NotIn", "COMMON")),
    "alternatives": affinity(term(NAME, "In", "RARE"), term(PRODUCT, "In", "RARE")),
    "both": {"nodeSelector": {NAME: "RARE"}, **affinity(term("zone", "In", "a"))},
}
ANY = {
    "nothing": {},
    "all models": affinity(term(NAME, "In", "RARE", "COMMON")),
    "any labeled": affinity(term(NAME, "Exists")),
    "one alternative": affinity(term(NAME, "In", "RARE"), term("zone", "In", "a")),
    "a preference": {
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": term(NAME, "In", "RARE")}
                ]
            }
        }
    },
}


def labeled_node(name, model, instance_type):
    gpus = NodeGpus(tuple(NodeGpu(n, whole=True) for n in range(8)))
    metadata = {
        "name": name,
        "annotations": {NODE_GPUS_ANNOTATION: node_gpus_text(gpus)},
        "labels": {NAME: model, PRODUCT: model, "node.kubernetes.io/instance-type": instance_type},
    }
    return node_facts({"metadata": metadata, "status": {"allocatable": {"cpu": "96", **OF_NODES}}})


def chosen_after(spec):
    """The nodes of pods that accept any model, after many pods with `spec` came that did not fit any more."""
    mix = Mix()
    scheduling = Scheduling(Strand(mix), mix)
    scheduling.node_seen(labeled_node("c1", "COMMON", "common.8xlarge"))
    scheduling.node_seen(labeled_node("c2", "COMMON", "common.8xlarge"))
    scheduling.node_seen(labeled_node("r1", "RARE", "rare.8xlarge"))
    scheduling.synced(0.0)
    for _ in range(4 * CHECK_PODS):
        one = pod_object(whole=1)
        one["spec"] |= spec
        scheduling.pod_seen(pod_facts(one), 0.0)
    chosen = []
    for _ in range(16):
        one = pod(whole=1)
        (name,) = scheduling.filter(one, ["c1", "c2", "r1"], 0.0).nodes
        chosen.append(name)
    return chosen


@pytest.mark.parametrize("form", RARE)
def test_a_model_that_pods_ask_for_is_left_to_them(form):
    assert "r1" not in chosen_after(RARE[form])


@pytest.mark.parametrize("form", ANY)
def test_a_pod_that_accepts_any_model_changes_no_price(form):
    chosen = chosen_after(ANY[form])
    assert chosen == chosen_after({})
    assert "r1" in chosen


def test_the_pods_of_a_model_are_parts_of_its_gpus():
    """40 units are half of an A100 with 80, although most nodes have GPUs with 40."""
    mix = Mix()
    scheduling = Scheduling(Strand(mix), mix)
    for number, (model, memory) in enumerate((("small", 40), ("small", 40), ("large", 80))):
        gpus = NodeGpus(tuple(NodeGpu(n, memory) for n in range(4)))
        metadata = {
            "name": f"n{number}",
            "annotations": {NODE_GPUS_ANNOTATION: node_gpus_text(gpus)},
            "labels": {NAME: model},
        }
        scheduling.node_seen(node_facts({"metadata": metadata, "status": {}}))
    scheduling.synced(0.0)
    for _ in range(4 * CHECK_PODS):
        one = pod_object(mem=40)
        one["spec"] |= {"nodeSelector": {NAME: "large"}}
        scheduling.pod_seen(pod_facts(one), 0.0)
    (fraction,) = {demand.fraction for demand in mix.shares if demand.models is not None}
    assert fraction == 0.5


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": [NAME]},
        {"nodeSelector": {NAME: {"RARE": 1}}},
        {"nodeSelector": {NAME: None}},
        {"affinity": [1]},
        affinity(None, 3, {"matchExpressions": {NAME: 1}}),
        affinity(term(NAME, "In", ["RARE"], {"a": 1})),
        affinity({"matchExpressions": [{"key": [NAME], "operator": {}, "values": "RARE"}]}),
        affinity({"matchExpressions": [{"key": NAME, "operator": "In", "values": "RARE"}]}),
        affinity(*[term(NAME, "In", "RARE")] * 10_000),
        affinity({"matchExpressions": term(NAME, "In", "RARE")["matchExpressions"] * 10_000}),
        affinity(term(NAME, "In", *map(str, range(10_000)))),
    ],
)
def test_nothing_that_an_author_writes_raises_or_takes_long(spec):
    def read():
        terms = model_terms(spec)
        hash(terms)
        return accepts(terms, model_labels({NAME: "RARE"}))

    calls, _ = calls_of(read)
    assert calls < MOST_CALLS
