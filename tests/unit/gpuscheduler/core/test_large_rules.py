"""Any author of pods may write large rules. They cost bounded work, and their own pods are refused with a reason."""

import pytest

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.jobs.places.plan import PLAN_TRIES
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.single_pods.ahead import AheadLimits
from tests.unit.gpuscheduler.core.api_objects import OF_NODES, LeastFree, pod_object
from tests.unit.gpuscheduler.core.work import calls_of

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOST = "kubernetes.io/hostname"
INDEX = "batch.kubernetes.io/job-completion-index"
NODES = [f"n{n}" for n in range(60)]
MOST_CALLS = 200 * PLAN_TRIES
"""Functions that one call of kube-scheduler may call, which takes about 0.2 s."""


def node(name):
    labels = {HOST: name, "zone": f"z{int(name[1:]) % 3}"}
    gpus = NodeGpus(tuple(NodeGpu(n, whole=True) for n in range(8)))
    metadata = {"name": name, "labels": labels, "annotations": {NODE_GPUS_ANNOTATION: node_gpus_text(gpus)}}
    return node_facts({"metadata": metadata, "status": {"allocatable": {"cpu": "96", **OF_NODES}}})


def cluster():
    scheduling = Scheduling(LeastFree())
    for name in NODES:
        scheduling.node_seen(node(name))
    return scheduling


def near(kind, terms):
    return {"affinity": {kind: {REQUIRED: terms}}}


def selects(expression, **term):
    return {"topologyKey": HOST, "labelSelector": {"matchExpressions": [expression]}, **term}


def gang(count, rules, namespace="evil"):
    pods = []
    for n in range(count):
        labels = {JOB_LABEL: "j", REPLICAS_LABEL: str(count), INDEX: str(n), "app": namespace}
        made = pod_object(f"{namespace}-{n}", uid=f"{namespace}-{n}", namespace=namespace, labels=labels, whole=1)
        made["spec"] |= rules(n)
        pods.append(pod_facts(made))
    return pods


def work(scheduling, pods):
    """Functions called for the most expensive call or tick, and the last answer."""
    most = 0
    for pod in pods:
        calls, _ = calls_of(lambda pod=pod: scheduling.pod_seen(pod, 1.0))
        most = max(most, calls)
        calls, answer = calls_of(lambda pod=pod: scheduling.filter(pod, NODES, 1.0))
        most = max(most, calls)
    for _ in range(3):
        calls, _ = calls_of(lambda: scheduling.tick(2.0))
        most = max(most, calls)
    return most, answer


def own_keys(n):
    terms = [selects({"key": f"x{k}", "operator": "Exists"}, topologyKey=f"k{n}-{k}") for k in range(32)]
    return near("podAntiAffinity", terms)


def own_hosts(n):
    terms = [selects({"key": f"x{n}-{k}", "operator": "DoesNotExist"}, namespaceSelector={}) for k in range(32)]
    return near("podAntiAffinity", terms)


def near_all(n):
    terms = [selects({"key": f"x{n}-{k}", "operator": "DoesNotExist"}, namespaceSelector={}) for k in range(32)]
    return near("podAffinity", terms)


def node_terms(n):
    nowhere = {"key": "zone", "operator": "In", "values": ["nowhere"]}
    others = [{"key": f"k{k}", "operator": "DoesNotExist"} for k in range(62)]
    own = {"key": f"own-{n}", "operator": "DoesNotExist"}
    terms = [{"matchExpressions": [*others, own, nowhere]}] * 64
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def own_spread(n):
    constraints = []
    for k in range(16):
        constraint = {"maxSkew": 1 + k, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        constraints.append(constraint | {"labelSelector": {"matchLabels": {f"x{k}": f"{n}"}}})
    return {"topologySpreadConstraints": constraints}


def own_tolerations(n):
    return {"tolerations": [{"key": f"k{n}-{k}", "operator": "Exists"} for k in range(64)]}


def own_ports(n):
    ports = [{"containerPort": 1, "hostPort": 1 + 128 * n + k} for k in range(128)]
    limits = {"aliyun.com/gpu": "1"}
    return {"containers": [{"name": "c", "ports": ports, "resources": {"limits": limits}}]}


def own_resources(n):
    limits = {f"example.com/r{n % 16}-{k}": "1" for k in range(60)} | {"aliyun.com/gpu": "1"}
    return {"containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}]}


RULES = [own_keys, own_hosts, near_all, node_terms, own_spread, own_tolerations, own_ports, own_resources]


@pytest.mark.parametrize("rules", RULES)
def test_a_gang_with_large_rules_stops_nobody(rules):
    """Whether it fits or not: each of its calls does bounded work, and another tenant's gang starts beside it."""
    scheduling = cluster()
    scheduling.synced(0.0)
    calls, _ = work(scheduling, gang(64, rules))
    assert calls < MOST_CALLS
    _, answer = work(scheduling, gang(2, lambda n: {}, "honest"))
    assert answer.nodes


def test_a_gang_whose_rules_take_too_long_says_so():
    scheduling = cluster()
    scheduling.synced(0.0)
    _, answer = work(scheduling, gang(64, own_keys))
    pods = "its 64 pods have 1 different requests and 4160 requirements about nodes and other pods"
    said = f"node(s) not given to job j: {pods}, for which no plan was found in {PLAN_TRIES} tries"
    assert answer.unresolvable["n0"] == said


def test_a_gang_that_takes_too_long_is_not_planned_each_time_a_pod_ends():
    scheduling = cluster()
    for n in range(40):
        scheduling.pod_seen(pod_facts(pod_object(f"r{n}", uid=f"r{n}", on="n0", whole=0)), 0.0)
    scheduling.synced(0.0)
    work(scheduling, gang(64, own_keys))

    def pods_end():
        for n in range(40):
            now = 2.0 + n / 20
            scheduling.pod_gone(f"r{n}", now)
            scheduling.tick(now)

    calls, _ = calls_of(pods_end)
    assert calls < 2 * MOST_CALLS, "one plan, or two"


AIMS = {
    "its own namespace": {},
    "another tenant's": {"namespaces": ["honest"]},
    "all namespaces": {"namespaceSelector": {}},
}
EXPRESSIONS = {
    "never": lambda n: {"key": f"x{n}", "operator": "Exists"},
    "by the index": lambda n: {"key": INDEX, "operator": "In", "values": [f"{n + 1000}"]},
    "by what it is not": lambda n: {"key": INDEX, "operator": "NotIn", "values": [*map(str, range(80)), f"v{n}"]},
    "nearly": lambda n: {"key": "app", "operator": "NotIn", "values": ["honest", f"{n}"]},
}


def apart(n):
    return near("podAntiAffinity", [selects({"key": "app", "operator": "In", "values": ["honest"]})])


@pytest.mark.parametrize("aim", AIMS.values(), ids=AIMS)
@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
@pytest.mark.parametrize("key", [HOST, "zone", "no label of any node"])
def test_pods_on_nodes_with_large_rules_cost_the_gangs_of_others_little(aim, expression, key):
    """They are CPU-only pods of any scheduler. A pod of a third tenant keeps the gang off its node as before."""
    scheduling = cluster()
    for n in range(100):
        terms = [selects(expression(32 * n + k), topologyKey=key, **aim) for k in range(32)]
        on_node(scheduling, f"r{n}", "evil", NODES[n % 60], near("podAntiAffinity", terms))
    keeps_off = [selects({"key": "app", "operator": "Exists"}, namespaces=["honest"])]
    on_node(scheduling, "third", "third", "n7", near("podAntiAffinity", keeps_off))
    scheduling.synced(0.0)
    calls, _ = work(scheduling, gang(59, apart, "honest"))
    assert calls < MOST_CALLS
    nodes = [answered(scheduling, pod) for pod in gang(59, apart, "honest")]
    assert sorted(nodes) == sorted({*NODES} - {"n7"})


def on_node(scheduling, name, namespace, on, rules):
    made = pod_object(name, {"name": "c"}, uid=name, namespace=namespace, scheduler="other", on=on)
    made["spec"] |= rules
    scheduling.pod_seen(pod_facts(made), 0.0)


def answered(scheduling, pod):
    """The node of a pod."""
    (node,) = scheduling.filter(pod, NODES, 3.0).nodes
    return node


NODE_TERM = {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": [f"{n}" for n in range(20)]}] * 64}
TOO_LARGE = {
    "2048 parts in its rules about nodes and other pods": {
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODE_TERM] * 64}}}
    },
    "64 terms of node affinity": {
        "affinity": {
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [{"key": "k", "operator": "In"}]}] * 65}}
        }
    },
    "64 labels in its node selector": {"nodeSelector": {f"k{n}": "v" for n in range(65)}},
    "32 terms of affinity to pods": near("podAffinity", [selects({"key": "k", "operator": "Exists"})] * 33),
    "16 topology spread constraints": {
        "topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}] * 17
    },
    "64 tolerations": {"tolerations": [{"operator": "Exists"}] * 65},
    "128 host ports": {
        "containers": [
            {
                "name": "c",
                "ports": [{"hostPort": 1 + n} for n in range(10_000)],
                "resources": {"limits": {"aliyun.com/gpu": "1"}},
            }
        ]
    },
}


@pytest.mark.parametrize(("most", "rules"), TOO_LARGE.items(), ids=TOO_LARGE)
def test_a_pod_of_a_job_with_too_large_rules_is_refused_and_a_single_pod_is_left_to_kube_scheduler(most, rules):
    scheduling = cluster()
    scheduling.synced(0.0)
    _, answer = work(scheduling, gang(2, lambda n: rules))
    said = f"node(s) not given to job j: pod evil/evil-0 has more than {most}; a pod of a job may not"
    assert answer.unresolvable["n0"] == said
    made = pod_object("single", uid="single", whole=1)
    made["spec"] |= rules
    reading, facts = calls_of(lambda: pod_facts(made))
    assert reading < 60_000
    _, answer = work(scheduling, [facts])
    assert answer.nodes


def test_a_pod_of_a_job_with_more_labels_than_are_kept_is_refused():
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"} | {f"x{n}": "v" for n in range(200)}
    scheduling = cluster()
    scheduling.synced(0.0)
    _, answer = work(scheduling, [pod_facts(pod_object(f"p{n}", labels=labels, whole=1)) for n in range(2)])
    said = "node(s) not given to job j: pod default/p0 has more than 128 labels; a pod of a job may not"
    assert answer.unresolvable["n0"] == said


def test_pods_in_line_with_large_rules_are_not_decided_ahead():
    scheduling = Scheduling(LeastFree(), ahead=AheadLimits(nodes=10, least_lead=0, most_lead=1))
    for name in NODES:
        scheduling.node_seen(node(name))
    scheduling.synced(0.0)
    first = pod_facts(pod_object("first", uid="first", whole=1))
    scheduling.pod_seen(first, 0.5)
    terms = [{"matchExpressions": [{"key": f"k{k}", "operator": "Exists"}] * 4} for k in range(64)]
    for n in range(8):
        made = pod_object(f"e{n}", uid=f"e{n}", whole=1, namespace="evil")
        made["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
        scheduling.pod_seen(pod_facts(made), 1.0)
    plain = pod_facts(pod_object("plain", uid="plain", whole=1))
    scheduling.pod_seen(plain, 1.0)
    scheduling.filter(first, NODES, 1.0)
    calls, _ = calls_of(lambda: scheduling.tick(1.1))
    assert calls < 20_000
    assert scheduling.reservations.get("plain"), "the next one in line is decided"
