"""Rules of pods about nodes and other pods, and what kube-scheduler makes of them."""

from tests.unit.gpuscheduler.core.constraints import kube_filters
from tests.unit.gpuscheduler.core.constraints.kube_filters import REQUIRED

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
ZONES = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
RULED = {"app": "ruled"}
"""The label of all pods that have a rule, by which the rules choose pods."""
_SELECTOR = {"labelSelector": {"matchLabels": RULED}}


def _node_affinity(**expression):
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}


AFFINITIES = {
    "one zone only": _node_affinity(key=ZONE, operator="In", values=["b"]),
    "not on one node": _node_affinity(key=HOST, operator="NotIn", values=["n4"]),
    "apart by node": {"podAntiAffinity": {REQUIRED: [{**_SELECTOR, "topologyKey": HOST}]}},
    "in one zone": {"podAffinity": {REQUIRED: [{**_SELECTOR, "topologyKey": ZONE}]}},
}
SPREADS = {
    "even by zone": [{**_SELECTOR, "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}],
}
RULES = (*AFFINITIES, *SPREADS)


def put_rule(made, rule):
    """Have a pod's object state one of the rules."""
    made["metadata"]["labels"].update(RULED)
    if rule in AFFINITIES:
        made["spec"]["affinity"] = made["spec"].get("affinity", {}) | AFFINITIES[rule]
    else:
        made["spec"]["topologySpreadConstraints"] = SPREADS[rule]


def node_labels(name):
    return {HOST: name, ZONE: ZONES[name]}


def accepted(made, names, placed):
    """The nodes among `names`, which are all that there are, that kube-scheduler accepts by its own filters.

    `placed` has the objects of the other pods, with the node of each.
    """
    nodes = [
        {
            "metadata": {"name": name, "labels": node_labels(name)},
            "spec": {},
            "status": {"allocatable": {"cpu": "32", "pods": "110"}},
        }
        for name in names
    ]
    return {node["metadata"]["name"] for node in nodes if kube_filters.accepts(made, node, nodes, placed)}
