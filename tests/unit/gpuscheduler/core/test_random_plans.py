"""Random jobs with random rules, beside random pods: kube-scheduler's filters accept each plan, and plans find places."""

import copy
import os
from random import Random

import pytest

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuscheduler.core.constraints.neighborhood import Neighborhood
from gpuscheduler.core.constraints.node_site import node_site
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.jobs.places.plan import PLAN_TRIES, plan
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.constraints import kube_filters
from tests.unit.gpuscheduler.core.constraints.kube_filters import REQUIRED
from tests.unit.gpuscheduler.core.random_jobs import fits, random_job, tight_job

KEYS = ("kubernetes.io/hostname", "zone", "rack")
APPS = ("a", "b", "c")


class RandomCluster:
    """Nodes and pods as API objects, some with rules."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.nodes = [self.node(n) for n in range(self.random.randint(2, 7))]
        self.pods = [self.pod(f"old-{n}") for n in range(self.random.randint(0, 8))]
        for pod in self.pods:
            pod["spec"]["nodeName"] = self.random.choice(self.nodes)["metadata"]["name"]

    def node(self, number):
        random = self.random
        labels = {KEYS[0]: f"n{number}", "gpu": random.choice("xy")}
        for key in KEYS[1:]:
            if random.random() < 0.9:
                labels[key] = random.choice("uvw")
        if random.random() < 0.8:
            labels["age"] = str(random.randint(1, 12))
        spec = {"taints": [{"key": "t", "effect": "NoSchedule"}]} if random.random() < 0.15 else {}
        spec |= {"unschedulable": True} if random.random() < 0.1 else {}
        gpus = NodeGpus(tuple(NodeGpu(n, whole=True) for n in range(random.choice((0, 1, 2, 4, 8)))))
        annotations = {NODE_GPUS_ANNOTATION: node_gpus_text(gpus)} if gpus.gpus else {}
        amounts = {"cpu": f"{random.randint(4, 40)}", "memory": f"{random.randint(4, 40)}Gi", "pods": "6"}
        amounts |= {"rdma/hca": "2"} if random.random() < 0.7 else {}
        if random.random() < 0.05:
            amounts[random.choice(("cpu", "memory", "pods"))] = "0"
        if random.random() < 0.05:
            del amounts[random.choice(("cpu", "memory", "pods"))]
        if gpus.gpus:
            amounts["aliyun.com/gpu"] = str(len(gpus.gpus))
        metadata = {"name": f"n{number}", "labels": labels, "annotations": annotations}
        return {"metadata": metadata, "spec": spec, "status": {"allocatable": amounts}}

    def pod(self, name, gpus=0):
        random = self.random
        requests = {"cpu": f"{random.randint(1, 80)}00m", "memory": f"{random.randint(0, 6)}Gi"}
        requests |= {"rdma/hca": "1"} if random.random() < 0.1 else {}
        limits = {"aliyun.com/gpu": str(gpus)} if gpus else {}
        container = {"name": "c", "resources": {"requests": requests | limits, "limits": limits}}
        if random.random() < 0.15:
            container["ports"] = [self.port() for _ in range(random.choice((1, 1, 2)))]
        spec = {"containers": [container]}
        metadata = {"name": name, "uid": name, "namespace": random.choice(("default", "default", "other"))}
        metadata["labels"] = {"app": random.choice(APPS)}
        if random.random() < 0.2:
            spec["nodeSelector"] = {"gpu": random.choice("xy")}
        if random.random() < 0.2:
            spec["tolerations"] = [{"operator": "Exists"}]
        affinity = spec["affinity"] = {}
        if random.random() < 0.25:
            terms = [self.node_term() for _ in range(random.choice((1, 1, 2)))]
            affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": terms}}
        for kind, chance in (("podAffinity", 0.15), ("podAntiAffinity", 0.25)):
            if random.random() < chance:
                affinity[kind] = {REQUIRED: [self.term() for _ in range(random.choice((1, 1, 2)))]}
        if random.random() < 0.25:
            spec["topologySpreadConstraints"] = [self.constraint() for _ in range(random.choice((1, 1, 2)))]
        return {"metadata": metadata, "spec": spec, "status": {}}

    def port(self):
        port = {"hostPort": self.random.choice((80, 81))}
        more = [{}, {}, {"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}, {"hostIP": "0.0.0.0"}, {"protocol": "UDP"}]
        return port | self.random.choice(more)

    def node_term(self):
        random = self.random
        if random.random() < 0.2:
            names = [random.choice(self.nodes)["metadata"]["name"]]
            return {
                "matchFields": [{"key": "metadata.name", "operator": random.choice(("In", "NotIn")), "values": names}]
            }
        expressions = [
            {"key": "age", "operator": random.choice(("Gt", "Lt")), "values": [str(random.randint(1, 12))]},
            {"key": random.choice(KEYS[1:]), "operator": random.choice(("In", "NotIn")), "values": ["u", "v"]},
            {"key": random.choice(("age", *KEYS[1:])), "operator": random.choice(("Exists", "DoesNotExist"))},
        ]
        return {"matchExpressions": random.sample(expressions, k=random.choice((1, 1, 2)))}

    def selector(self):
        apps = self.random.sample(APPS, k=self.random.choice((1, 2)))
        return {"matchExpressions": [{"key": "app", "operator": self.random.choice(("In", "NotIn")), "values": apps}]}

    def term(self):
        term = {"topologyKey": self.random.choice(KEYS), "labelSelector": self.selector()}
        more = [{}, {}, {"namespaces": ["other"]}, {"namespaceSelector": {}}]
        return term | self.random.choice(more)

    def constraint(self):
        random = self.random
        constraint = {
            "topologyKey": random.choice(KEYS),
            "maxSkew": random.randint(1, 2),
            "labelSelector": self.selector(),
        }
        constraint["whenUnsatisfiable"] = "DoNotSchedule"
        for key, value in (
            ("minDomains", 3),
            ("nodeAffinityPolicy", "Ignore"),
            ("nodeTaintsPolicy", "Honor"),
            ("matchLabelKeys", ["app"]),
        ):
            if random.random() < 0.2:
                constraint[key] = value
        return constraint

    def neighborhood(self):
        neighborhood = Neighborhood(map(node_site, self.nodes))
        for other in self.pods:
            facts = pod_facts(other)
            neighborhood.put(facts.uid, (facts.occupant, (facts.node,)))
        return neighborhood

    def usage(self):
        """The nodes with GPUs, with what is used there."""
        usage = {}
        for node in self.nodes:
            facts = node_facts(node)
            if facts:
                usage[facts.name] = NodeUsage(facts)
        for other in map(pod_facts, self.pods):
            if other.node in usage:
                usage[other.node].used += other.requests
        return usage

    def accepts(self, pod, name):
        node = next(node for node in self.nodes if node["metadata"]["name"] == name)
        return kube_filters.accepts(pod, node, self.nodes, self.pods)


@pytest.mark.parametrize("seed", range(400))
def test_a_pod_may_be_just_where_kube_scheduler_accepts_it(seed):
    cluster = RandomCluster(seed)
    pod = cluster.pod("new")
    facts = pod_facts(pod)
    neighborhood = cluster.neighborhood()
    admission = neighborhood.admission(neighborhood.kinds([(facts.occupant, facts.rules)]))
    for node in cluster.nodes:
        name = node["metadata"]["name"]
        is_accepted = name not in admission.refuses(0) and admission.accepts(0, name)
        has_resources = kube_filters.has_resources(pod, node, cluster.pods)
        assert (is_accepted and has_resources) is cluster.accepts(pod, name), (name, pod)


@pytest.mark.parametrize("seed", range(300))
def test_kube_scheduler_accepts_the_pods_of_a_plan_in_its_order(seed):
    cluster = RandomCluster(seed)
    job = []
    for role in range(cluster.random.randint(1, 3)):
        template = cluster.pod(f"{role}", gpus=cluster.random.choice((1, 1, 2)))
        for n in range(cluster.random.randint(1, 4)):
            made = copy.deepcopy(template)
            made["metadata"] |= {"name": f"{role}-{n}", "uid": f"{role}-{n}"}
            made["metadata"]["labels"]["index"] = str(n)
            job.append(made)
    pods = [pod_facts(made) for made in job]
    prefer = {pod.uid: cluster.random.choice(cluster.nodes)["metadata"]["name"] for pod in pods}
    wishes = cluster.random.choice(({}, prefer))
    places = plan(pods, cluster.usage(), Links(), beside=cluster.neighborhood(), prefer=wishes)
    if len(places) < len(pods):
        return  # such a plan is not used
    by_uid = {made["metadata"]["uid"]: made for made in job}
    for uid, (name, _) in places.items():
        assert cluster.accepts(by_uid[uid], name), (uid, name)
        by_uid[uid]["spec"]["nodeName"] = name
        cluster.pods.append(by_uid[uid])


JOBS = int(os.environ.get("RANDOM_JOBS", "150"))
"""Random jobs that fit, of each kind. `make random-plans` tries 2,000."""


@pytest.mark.parametrize("made", [random_job, tight_job], ids=["random nodes", "nodes with hardly more than it needs"])
def test_of_the_jobs_that_fit_hardly_any_is_missed(made):
    random = Random(34)
    missed, fitting = [], 0
    while fitting < JOBS:
        job = made(random)
        pods = job.pods()
        tries = Tries(PLAN_TRIES)
        places = plan(pods, job.usage(), Links(), tries=tries)
        is_placed = len(places) == len(pods)
        if fits(job):
            fitting += 1
            if not is_placed:
                missed.append(job)
        else:
            assert not is_placed, job
    assert len(missed) <= JOBS * 0.005, missed
