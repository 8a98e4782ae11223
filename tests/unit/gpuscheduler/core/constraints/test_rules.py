"""Each rule of a pod, as kube-scheduler applies it: which nodes it leaves."""

import copy

import pytest

from gpuscheduler.core.constraints.neighborhood import Neighborhood
from gpuscheduler.core.constraints.node_site import node_site
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.constraints import kube_filters

REQUIRED = kube_filters.REQUIRED
HOST, ZONE = "kubernetes.io/hostname", "zone"


def node(name, zone=None, taints=(), *, cordoned=False, **labels):
    taints = [dict(zip(("key", "value", "effect"), taint, strict=True)) for taint in taints]
    spec = {"taints": taints} | ({"unschedulable": True} if cordoned else {})
    named = {HOST: name} | ({ZONE: zone} if zone else {}) | labels
    allocatable = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    return {"metadata": {"name": name, "labels": named}, "spec": spec, "status": {"allocatable": allocatable}}


def pod(app="a", on=None, namespace="default", deleting=False, **spec):  # noqa: FBT002
    metadata = {"name": f"{app}-{on}", "uid": f"{app}-{on}", "namespace": namespace, "labels": {"app": app}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    made = {"metadata": metadata, "spec": {"containers": [{"name": "c"}], **spec}, "status": {}}
    if on:
        made["spec"]["nodeName"] = on
    return made


def needs(*terms):
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def expression(key, operator, *values):
    made = {"key": key, "operator": operator}
    return made | ({"values": list(values)} if values else {})


def labeled(*expressions):
    return {"matchExpressions": list(expressions)}


def app(*values):
    return {"matchExpressions": [expression("app", "In", *values)]}


def near(key, *apps, kind="podAffinity", **more):
    return {kind: {REQUIRED: [{"topologyKey": key, "labelSelector": app(*apps), **more}]}}


def apart(key, *apps, **more):
    return near(key, *apps, kind="podAntiAffinity", **more)


def spread(key, skew=1, **more):
    constraint = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": app("a")}
    return [constraint | more]


def port(number, **more):
    return [{"name": "c", "ports": [{"hostPort": number, **more}]}]


NODES = [
    node("n1", "x", gpu="a100", age="3"),
    node("n2", "x", gpu="h100", age="9"),
    node("n3", "y", gpu="h100", age="old"),
    node("n4", "y", taints=[("team", "red", "NoSchedule"), ("soft", "", "PreferNoSchedule")]),
    node("n5", cordoned=True),
]
ALL = {"n1", "n2", "n3"}
EVERY = [{"operator": "Exists"}]
RED = {"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
TABLE = {
    "nothing": (pod(), [], ALL),
    # -- nodes
    "selector": (pod(nodeSelector={"gpu": "h100"}), [], {"n2", "n3"}),
    "selector of two": (pod(nodeSelector={"gpu": "h100", ZONE: "y"}), [], {"n3"}),
    "selector of a label that no node has": (pod(nodeSelector={"x": ""}), [], set()),
    "in": (pod(affinity=needs(labeled(expression("gpu", "In", "a100", "t4")))), [], {"n1"}),
    "not in": (pod(affinity=needs(labeled(expression("gpu", "NotIn", "a100")))), [], {"n2", "n3"}),
    "not in, absent": (pod(affinity=needs(labeled(expression("other", "NotIn", "v")))), [], ALL),
    "exists": (pod(affinity=needs(labeled(expression("gpu", "Exists")))), [], ALL),
    "does not exist": (
        pod(tolerations=EVERY, affinity=needs(labeled(expression("gpu", "DoesNotExist")))),
        [],
        {"n4", "n5"},
    ),
    "greater": (pod(affinity=needs(labeled(expression("age", "Gt", "5")))), [], {"n2"}),
    "less": (pod(affinity=needs(labeled(expression("age", "Lt", "5")))), [], {"n1"}),
    "two terms are alternatives": (
        pod(affinity=needs(labeled(expression("gpu", "In", "a100")), labeled(expression(ZONE, "In", "y")))),
        [],
        {"n1", "n3"},
    ),
    "two expressions are both needed": (
        pod(affinity=needs(labeled(expression("gpu", "In", "h100"), expression(ZONE, "In", "x")))),
        [],
        {"n2"},
    ),
    "by name": (pod(affinity=needs({"matchFields": [expression("metadata.name", "In", "n2")]})), [], {"n2"}),
    "not by name": (
        pod(affinity=needs({"matchFields": [expression("metadata.name", "NotIn", "n2")]})),
        [],
        {"n1", "n3"},
    ),
    "an empty term selects no node": (pod(affinity=needs({})), [], set()),
    "no terms": (pod(affinity=needs()), [], set()),
    "a term with an unknown operator is passed over": (
        pod(affinity=needs(labeled(expression("gpu", "Near", "a")), labeled(expression("gpu", "Exists")))),
        [],
        ALL,
    ),
    "all taints are tolerated": (pod(tolerations=EVERY), [], {"n1", "n2", "n3", "n4", "n5"}),
    "one taint is tolerated": (pod(tolerations=[RED]), [], ALL | {"n4"}),
    "another value": (pod(tolerations=[RED | {"value": "blue"}]), [], ALL),
    "another effect": (pod(tolerations=[RED | {"effect": "NoExecute"}]), [], ALL),
    "any value": (pod(tolerations=[{"key": "team", "operator": "Exists"}]), [], ALL | {"n4"}),
    "a cordoned node": (pod(tolerations=[CORDON]), [], ALL | {"n5"}),
    # -- other pods
    "apart": (pod(affinity=apart(HOST, "b")), [pod("b", "n1")], {"n2", "n3"}),
    "apart by zone": (pod(affinity=apart(ZONE, "b")), [pod("b", "n1")], {"n3"}),
    "apart from another namespace": (pod(affinity=apart(HOST, "b")), [pod("b", "n1", "other")], ALL),
    "apart from a named namespace": (
        pod(affinity=apart(HOST, "b", namespaces=["other"])),
        [pod("b", "n1", "other"), pod("b", "n2")],
        {"n2", "n3"},
    ),
    "apart from all namespaces": (
        pod(affinity=apart(HOST, "b", namespaceSelector={})),
        [pod("b", "n1", "other"), pod("b", "n2")],
        {"n3"},
    ),
    "apart from a selected namespace": (
        pod(affinity=apart(HOST, "b", namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "other"}})),
        [pod("b", "n1", "other"), pod("b", "n2")],
        {"n2", "n3"},
    ),
    "a pod that ends still keeps off": (pod(affinity=apart(HOST, "b")), [pod("b", "n1", deleting=True)], {"n2", "n3"}),
    "apart by a label that no node has": (pod(affinity=apart("rack", "b")), [pod("b", "n1")], ALL),
    "kept off by another pod": (pod(), [pod("b", "n1", affinity=apart(ZONE, "a"))], {"n3"}),
    "not kept off by a pod for others": (pod(), [pod("b", "n1", affinity=apart(ZONE, "c"))], ALL),
    "kept off by a pod of another namespace": (
        pod(),
        [pod("b", "n1", "other", affinity=apart(HOST, "a", namespaces=["default"]))],
        {"n2", "n3"},
    ),
    "near": (pod(affinity=near(ZONE, "b")), [pod("b", "n1")], {"n1", "n2"}),
    "near none": (pod(affinity=near(ZONE, "b")), [], set()),
    "near its own kind, of which it is the first": (pod(affinity=near(ZONE, "a")), [], ALL),
    "near its own kind, of which there is one": (pod(affinity=near(ZONE, "a")), [pod("a", "n3")], {"n3"}),
    "near by a label that no node has": (pod(affinity=near("rack", "a")), [], set()),
    # -- spread
    "spread": (pod(topologySpreadConstraints=spread(ZONE)), [pod("a", "n1")], {"n3"}),
    "spread with more skew": (pod(topologySpreadConstraints=spread(ZONE, 2)), [pod("a", "n1")], ALL),
    "spread over nodes": (
        pod(topologySpreadConstraints=spread(HOST), tolerations=EVERY),
        [pod("a", "n1"), pod("a", "n2")],
        {"n3", "n4", "n5"},
    ),
    "nodes that it does not tolerate count": (
        pod(topologySpreadConstraints=spread(HOST)),
        [pod("a", name) for name in ("n1", "n2", "n3")],
        set(),
    ),
    "unless taints are honored": (
        pod(topologySpreadConstraints=spread(HOST, nodeTaintsPolicy="Honor"), nodeSelector={"gpu": "h100"}),
        [pod("a", "n2")],
        {"n3"},
    ),
    "nodes that it does not select do not count": (
        pod(topologySpreadConstraints=spread(HOST), nodeSelector={"gpu": "h100"}),
        [pod("a", "n2")],
        {"n3"},
    ),
    "unless affinity is ignored": (
        pod(topologySpreadConstraints=spread(HOST, nodeAffinityPolicy="Ignore"), nodeSelector={"gpu": "h100"}),
        [pod("a", "n2"), pod("a", "n3")],
        set(),
    ),
    "fewer domains than wanted": (pod(topologySpreadConstraints=spread(ZONE, minDomains=3)), [pod("a", "n1")], {"n3"}),
    "fewer domains than wanted, and one pod in each": (
        pod(topologySpreadConstraints=spread(ZONE, minDomains=3)),
        [pod("a", "n1"), pod("a", "n3")],
        set(),
    ),
    "a pod that ends does not count": (
        pod(topologySpreadConstraints=spread(ZONE)),
        [pod("a", "n1", deleting=True)],
        ALL,
    ),
    "pods of other namespaces do not count": (
        pod(topologySpreadConstraints=spread(ZONE)),
        [pod("a", "n1", "other")],
        ALL,
    ),
    "it may not count itself": (pod("b", topologySpreadConstraints=spread(ZONE)), [pod("a", "n1")], ALL),
    "an empty selector counts none": (
        pod(topologySpreadConstraints=spread(ZONE, labelSelector={})),
        [pod("a", "n1")],
        ALL,
    ),
    "without a selector none counts": (
        pod(topologySpreadConstraints=spread(ZONE, labelSelector=None)),
        [pod("a", "n1")],
        ALL,
    ),
    "pods with the same value of a label": (
        pod("a", topologySpreadConstraints=spread(ZONE, labelSelector={}, matchLabelKeys=["app", "none"])),
        [pod("a", "n1"), pod("b", "n3")],
        {"n3"},
    ),
    "what is only wished for does not keep off": (
        pod(topologySpreadConstraints=spread(ZONE, whenUnsatisfiable="ScheduleAnyway")),
        [pod("a", "n1")],
        ALL,
    ),
    # -- ports
    "port": (pod(containers=port(80)), [pod("b", "n1", containers=port(80))], {"n2", "n3"}),
    "another port": (pod(containers=port(80)), [pod("b", "n1", containers=port(81))], ALL),
    "another protocol": (pod(containers=port(80)), [pod("b", "n1", containers=port(80, protocol="UDP"))], ALL),
    "other addresses": (
        pod(containers=port(80, hostIP="10.0.0.1")),
        [pod("b", "n1", containers=port(80, hostIP="10.0.0.2"))],
        ALL,
    ),
    "one of all addresses": (
        pod(containers=port(80, hostIP="10.0.0.1")),
        [pod("b", "n1", containers=port(80))],
        {"n2", "n3"},
    ),
}


def accepted(asked, pods, nodes=NODES):
    """Names of the nodes that the product leaves to a pod."""
    neighborhood = Neighborhood(map(node_site, nodes))
    for number, other in enumerate(pods):
        facts = pod_facts(other)
        neighborhood.put(f"{number}", (facts.occupant, (facts.node,)))
    facts = pod_facts(asked)
    admission = neighborhood.admission(neighborhood.kinds([(facts.occupant, facts.rules)]))
    names = {made["metadata"]["name"] for made in nodes} - admission.refuses(0)
    return {name for name in names if admission.accepts(0, name)}


@pytest.mark.parametrize(("asked", "pods", "left"), TABLE.values(), ids=TABLE.keys())
def test_a_rule_leaves_the_nodes_that_kube_scheduler_accepts(asked, pods, left):
    assert accepted(asked, pods) == left
    if "Near" in str(asked) or "Gt" in str(asked) or "Lt" in str(asked):
        return  # not in the plain filters
    assert {node["metadata"]["name"] for node in NODES if kube_filters.accepts(asked, node, NODES, pods)} == left


BROKEN = {
    "affinity": [{}, [], 3, "x", {"nodeAffinity": 1}, {"podAffinity": {REQUIRED: 3}}, near(3, "a"), near(ZONE, 3)],
    "nodeSelector": [[], 3, {"gpu": 3}],
    "tolerations": [{}, 3, [3, {"key": 3, "operator": []}]],
    "topologySpreadConstraints": [{}, 3, [3], spread(3, "x"), spread(ZONE, minDomains="x", labelSelector=3)],
    "containers": [3, [{"ports": 3}], [{"ports": [3, {"hostPort": "x"}, {"hostPort": True}]}]],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BROKEN.items() for value in values])
def test_rules_of_another_shape_raise_nothing(key, value):
    accepted(pod(**{key: value}), [pod("b", "n1", **{key: value})])


@pytest.mark.parametrize(
    "affinity",
    [apart(ZONE, labelSelector=labeled(expression("app", "Near", "a"))), near(ZONE, labelSelector=labeled({}))],
    ids=["anti-affinity", "affinity"],
)
def test_a_rule_that_kube_scheduler_cannot_read_leaves_no_node(affinity):
    assert accepted(pod(affinity=affinity), []) == set()
    assert accepted(pod(), [pod("b", "n1", affinity=affinity)]) == ALL


MANY = 3000
LARGE = {
    "terms": pod(affinity=needs(*[labeled(expression("gpu", "In", "none"))] * MANY)),
    "expressions": pod(affinity=needs(labeled(*[expression("gpu", "In", "none")] * MANY))),
    "values": pod(affinity=needs(labeled(expression("gpu", "In", *map(str, range(MANY)))))),
    "selectors": pod(nodeSelector={f"k{n}": "v" for n in range(MANY)}),
    "anti-affinity": pod(
        affinity={"podAntiAffinity": {REQUIRED: apart(HOST, "b")["podAntiAffinity"][REQUIRED] * MANY}}
    ),
    "constraints": pod(topologySpreadConstraints=spread(ZONE) * MANY),
    "label keys": pod(topologySpreadConstraints=spread(ZONE, matchLabelKeys=["app"] * MANY)),
    "tolerations": pod(tolerations=[RED | {"value": str(n)} for n in range(MANY)]),
}


@pytest.mark.parametrize("asked", LARGE.values(), ids=LARGE.keys())
def test_rules_that_are_too_large_are_left_to_kube_scheduler(asked):
    """Any author of pods may write them, and each call about a pod would read them."""
    assert accepted(asked, [pod("b", "n1"), pod("a", "n2")]) >= ALL


def test_all_labels_of_a_node_count():
    """Node feature discovery and the GPU operator write 100 to 200 of them."""
    many = {f"feature.node.kubernetes.io/cpu-{n}": "true" for n in range(300)}
    nodes = [node("n1", "z1", **many), node("n2", "z2", **many)]
    assert accepted(pod(nodeSelector={ZONE: "z2"}), [], nodes) == {"n2"}
    assert accepted(pod(affinity=apart(ZONE, "b")), [pod("b", "n1")], nodes) == {"n2"}


def test_what_is_placed_counts_for_what_is_placed_later():
    neighborhood = Neighborhood(map(node_site, NODES))
    facts = pod_facts(pod(affinity=apart(HOST, "a"), topologySpreadConstraints=spread(ZONE)))
    admission = neighborhood.admission(neighborhood.kinds([(facts.occupant, facts.rules)]))
    steps = []
    for name in ("n1", "n3", "n2"):
        steps.append({name for name in ALL if admission.accepts(0, name)})
        admission.place(0, name)
    assert steps == [ALL, {"n3"}, {"n2"}]
    admission.place(0, "n2", -1)
    assert {name for name in ALL if admission.accepts(0, name)} == {"n2"}


def test_equal_rules_are_one_value():
    rules = pod(affinity=apart(HOST, "a"), tolerations=[RED])
    assert pod_facts(rules).rules is pod_facts(copy.deepcopy(rules)).rules


def test_pods_of_a_template_on_nodes_share_a_value():
    """A cluster has tens of thousands of pods, each with labels of its own if a StatefulSet has made it."""
    occupants = set()
    for number in range(3):
        made = pod("a", "n1")
        made["metadata"]["labels"] |= {
            "statefulset.kubernetes.io/pod-name": f"a-{number}",
            "apps.kubernetes.io/pod-index": str(number),
        }
        occupants.add(id(pod_facts(made).occupant))
        del made["spec"]["nodeName"]
        assert pod_facts(made).labels.get("apps.kubernetes.io/pod-index") == str(number), "its own rules may look at it"
    assert len(occupants) == 1


OF_ONE_POD = "statefulset.kubernetes.io/pod-name"


def one_pod(kind, operator, *values):
    """A pod that has to be near one pod of a StatefulSet, or away from it."""
    selector = labeled(expression("app", "In", "b"), expression(OF_ONE_POD, operator, *values))
    return pod(affinity={kind: {REQUIRED: [{"topologyKey": HOST, "labelSelector": selector}]}})


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        (one_pod("podAffinity", "In", "b-0"), {"n1", "n2"}),
        (one_pod("podAffinity", "NotIn", "b-0"), {"n1", "n2"}),
        (one_pod("podAffinity", "Exists"), {"n1", "n2"}),
        (one_pod("podAffinity", "DoesNotExist"), set()),
        (one_pod("podAntiAffinity", "In", "b-0"), ALL),
        (one_pod("podAntiAffinity", "NotIn", "b-0"), ALL),
        (one_pod("podAntiAffinity", "Exists"), {"n3"}),
        (one_pod("podAntiAffinity", "DoesNotExist"), ALL),
    ],
)
def test_a_label_whose_value_is_not_kept_is_left_to_kube_scheduler(asked, left):
    """Which pod of the StatefulSet runs on which node is not known here. A node that may be right is not passed over."""
    running = [pod("b", "n1"), pod("b", "n2"), pod("c", "n3")]
    for number, made in enumerate(running):
        made["metadata"]["labels"][OF_ONE_POD] = f"b-{number}"
    assert accepted(asked, running) == left
