"""Small clusters with pods on known GPUs, in which another pod waits."""

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.defragment.budgets import Budgets
from gpuscheduler.core.defragment.surroundings import Surroundings
from gpuscheduler.core.links import Links
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.ranking import Ranking
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod_object


def running(name, node, gpu, mem, kind="ReplicaSet", **given):
    """A Pod object that has units on one GPU of a node, made by a controller of this kind."""
    units = {str(number): mem for number in ([gpu] if isinstance(gpu, int) else gpu)}
    total = sum(units.values())
    change = given.pop("change", None)
    made = pod_object(name, on=node, mem=total, uid=f"uid-{name}", owner=f"owner-{name}", **given)
    made["metadata"]["annotations"] = {**made["metadata"]["annotations"], MEMORY_ANNOTATION: _decision(units)}
    if kind:
        made["metadata"]["ownerReferences"][0]["kind"] = kind
    else:
        del made["metadata"]["ownerReferences"]
    if change:
        change(made)
    return made


def _decision(units):
    by_gpu = ",".join(f'"{gpu}":{amount}' for gpu, amount in units.items())
    return f'{{"0":{{{by_gpu}}}}}'


class Fragmented:
    """A cluster, as the planner sees it."""

    def __init__(self, *nodes):
        self.usage = ClusterUsage()
        self.pods = {}
        self.budgets = Budgets()
        self.budgets.are_read = True
        self.passed_over = frozenset()
        # One for all searches: it takes over what changed since the last.
        self.ranking = Ranking(self.usage, LeastFree(), Mix())
        for node in nodes:
            self.usage.node_seen(node)

    def run(self, *objects):
        for found in objects:
            pod = pod_facts(found)
            assert pod.used is not None, found
            self.pods[pod.uid] = pod
            self.usage.use(pod.uid, pod.node, pod.used)
            self.usage.occupy(pod.uid, pod.node, pod.occupant)
        return self

    @property
    def surroundings(self):
        return Surroundings(
            self.usage,
            Links(),
            self.ranking,
            self.pods,
            self.budgets,
            lambda pod, now: self.passed_over,
            lambda pod, now: "",
        )


def moves(plan):
    """Name of each evicted pod to where it fits."""
    return {move.pod.name.name: (move.node, gpus(move.choice)) for move in plan.moves}


def gpus(choice: Choice):
    return [minor for minor, _ in choice.used]
