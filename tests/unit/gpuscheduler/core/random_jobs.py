"""Random jobs on random nodes, and an exact answer to whether they fit."""

import itertools
from collections import Counter
from dataclasses import dataclass

import highspy

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import pod_facts

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
RULES = ("apart by node", "apart by zone", "even by zone", "in one zone", "one zone only", "one port")


@dataclass(frozen=True)
class Node:
    name: str
    zone: str
    gpus: int
    cpu: int
    memory: int


@dataclass(frozen=True)
class Role:
    """Pods of one size: GPUs each, cores, GiB, and rules."""

    name: str
    pods: int
    gpus: int
    cpu: int
    memory: int
    rules: tuple[str, ...] = ()


@dataclass
class RandomJob:
    nodes: list[Node]
    roles: list[Role]

    def usage(self):
        return {node.name: NodeUsage(node_facts(node_object(node))) for node in self.nodes}

    def pods(self):
        return [pod_facts(pod_object(role, n)) for role in self.roles for n in range(role.pods)]


def random_job(random):
    zones = [f"z{n}" for n in range(random.randint(1, 3))]
    nodes = [
        Node(f"n{n}", random.choice(zones), random.randint(1, 8), random.randint(8, 64), random.randint(64, 512))
        for n in range(random.randint(2, 8))
    ]
    roles = []
    for number in range(random.randint(1, 3)):
        gpus = random.choice((1, 1, 2, 2, 4, 8))
        rules = random.sample(RULES, k=random.choice((1, 1, 2))) if random.random() < 0.3 else ()
        roles.append(
            Role(f"r{number}", random.randint(1, 6), gpus, random.randint(1, 32), random.randint(16, 200), tuple(rules))
        )
    return RandomJob(nodes, roles)


def tight_job(random):
    """A job on nodes that have just what it needs, or little more: most ways to place its pods leave one out."""
    job = random_job(random)
    taken = {node.name: Counter() for node in job.nodes}
    for role in job.roles:
        for _ in range(role.pods):
            node = random.choice(job.nodes)
            taken[node.name].update(gpus=role.gpus, cpu=role.cpu, memory=role.memory)
    slack = random.choice((0, 0, 1, 4))
    nodes = []
    for node in job.nodes:
        need = taken[node.name]
        gpus = min(max(need["gpus"] + random.randint(0, 1), 1), 16)
        cpu = need["cpu"] + random.randint(0, slack)
        memory = need["memory"] + random.randint(0, 16 * slack)
        nodes.append(Node(node.name, node.zone, gpus, cpu or 1, memory or 1))
    return RandomJob(nodes, job.roles)


def node_object(node):
    gpus = NodeGpus(tuple(NodeGpu(n, whole=True) for n in range(node.gpus)))
    return {
        "metadata": {
            "name": node.name,
            "labels": {HOST: node.name, ZONE: node.zone},
            "annotations": {NODE_GPUS_ANNOTATION: node_gpus_text(gpus)},
        },
        "spec": {},
        "status": {"allocatable": {"cpu": f"{node.cpu}", "memory": f"{node.memory}Gi", "pods": "110"}},
    }


def pod_object(role, number):
    requests = {"cpu": f"{role.cpu}", "memory": f"{role.memory}Gi"}
    selector = {"labelSelector": {"matchLabels": {"role": role.name}}}
    container = {"name": "c", "resources": {"requests": requests, "limits": {"aliyun.com/gpu": f"{role.gpus}"}}}
    spec = {"containers": [container]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    near, apart = [], []
    for rule in role.rules:
        match rule:
            case "apart by node":
                apart.append(selector | {"topologyKey": HOST})
            case "apart by zone":
                apart.append(selector | {"topologyKey": ZONE})
            case "in one zone":
                near.append(selector | {"topologyKey": ZONE})
            case "even by zone":
                spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
                spec["topologySpreadConstraints"] = [selector | spread]
            case "one zone only":
                spec["nodeSelector"] = {ZONE: "z0"}
            case "one port":
                container["ports"] = [{"hostPort": 29500, "containerPort": 29500}]
    spec["affinity"] = {"podAffinity": {required: near}, "podAntiAffinity": {required: apart}}
    return {
        "metadata": {
            "name": f"{role.name}-{number}",
            "namespace": "default",
            "uid": f"{role.name}-{number}",
            "labels": {"role": role.name},
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def fits(job):
    """Whether all pods of the job have places, as a solver finds it."""
    model = integer_program()
    # How many pods of a role are on a node.
    on = {
        (role.name, node.name): model.addIntegral(0, role.pods)
        for role, node in itertools.product(job.roles, job.nodes)
    }
    zones = sorted({node.zone for node in job.nodes})
    for node in job.nodes:
        for what in ("gpus", "cpu", "memory"):
            taken = sum(getattr(role, what) * on[role.name, node.name] for role in job.roles)
            model.addConstr(taken <= getattr(node, what))
        with_port = [on[role.name, node.name] for role in job.roles if "one port" in role.rules]
        if with_port:
            model.addConstr(sum(with_port) <= 1)
    for role in job.roles:
        model.addConstr(sum(on[role.name, node.name] for node in job.nodes) == role.pods)
        in_zone = {zone: sum(on[role.name, node.name] for node in job.nodes if node.zone == zone) for zone in zones}
        for rule in role.rules:
            add_rule(model, job, role, rule, on, in_zone)
    return solved(model)


def integer_program():
    """An empty program of the solver, which prints nothing and uses one core."""
    model = highspy.Highs()
    model.silent()
    model.setOptionValue("threads", 1)
    return model


def solved(model):
    """Whether the program has a solution.

    The solver works with floating-point numbers. Amounts here are integers below a thousand, and its tolerance is a
    millionth, so the answer is exact.
    """
    model.solve()
    match model.getModelStatus():
        case highspy.HighsModelStatus.kOptimal:
            return True
        case highspy.HighsModelStatus.kInfeasible:
            return False
        case other:
            raise RuntimeError(f"the solver ended with {other}, which does not say whether the pods fit")


def add_rule(model, job, role, rule, on, in_zone):  # noqa: PLR0913 (what the rules are about)
    match rule:
        case "apart by node":
            for node in job.nodes:
                model.addConstr(on[role.name, node.name] <= 1)
        case "apart by zone":
            for count in in_zone.values():
                model.addConstr(count <= 1)
        case "in one zone":
            chosen = {zone: model.addBinary() for zone in in_zone}
            model.addConstr(sum(chosen.values()) == 1)
            for zone, count in in_zone.items():
                model.addConstr(count <= role.pods * chosen[zone])
        case "even by zone":
            # kube-scheduler leaves zones out that the node selector leaves out.
            counted = {"z0"} & in_zone.keys() if "one zone only" in role.rules else in_zone.keys()
            for one, other in itertools.permutations(counted, 2):
                model.addConstr(in_zone[one] - in_zone[other] <= 1)
        case "one zone only":
            for zone, count in in_zone.items():
                if zone != "z0":
                    model.addConstr(count == 0)
