"""Pods that hold no GPU, although they name one of the resources: they must not keep GPUs from others.

Any author of pods can have them run on a node of GPUs, by the cluster's default scheduler.
"""

import pytest

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod, shared_node, whole_node
from tests.unit.gpuscheduler.core.test_scheduling import cluster

REQUESTS = {
    "the number of a node's GPUs": {"count": 1},
    "a number that is no number": {"count": "x"},
    "no memory": {"mem": 0},
    "no compute": {"core": 0},
    "no whole GPU": {"whole": 0},
    "a number and no memory": {"count": 1, "mem": 0},
}
TEXTS = {
    "": {},
    "a decision that it wrote itself": {
        "annotations": {MEMORY_ANNOTATION: '{"0":{"0":9}}', GROUP_ANNOTATION: "0,1,2,3,4,5,6,7"},
        "gpu_count": 16,
    },
}
NODES = {
    "whole": (lambda held: whole_node(held=held), {"whole": 8}),
    "shared": (lambda held: shared_node(held=held), {"mem": 10}),
    "shared by at most one": (lambda held: shared_node(held=held, most_pods=1), {"mem": 10}),
}


@pytest.fixture(params=[False, True], ids=["", "after a restart"])
def seen(request):
    """A scheduler that has seen a node and pods, in either order."""

    def of(node, pods):
        if not request.param:
            scheduling = cluster(node)
        else:
            scheduling = Scheduling(LeastFree())
            scheduling.node_seen(node)
        for one in pods:
            scheduling.pod_seen(one, 0.0)
        if request.param:
            scheduling.synced(0.0)
        return scheduling

    return of


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("written", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize(("make", "wanted"), NODES.values(), ids=NODES)
@pytest.mark.parametrize("held", [None, {}], ids=["", "with what pods hold"])
def test_a_pod_without_gpus_takes_none_from_others(seen, make, wanted, held, asked, written):
    without = [pod(on="n1", phase="Running", scheduler="default-scheduler", **asked, **written) for _ in range(3)]
    scheduling = seen(make(held), without)
    assert scheduling.filter(pod(**wanted), ["n1"], 0.0).nodes == ("n1",)


def test_it_is_not_evicted_for_gpus():
    scheduling = cluster(whole_node("n1", gpus=1))
    without, holder = (pod(on="n1", phase="Running", **asked) for asked in ({"count": 1}, {"whole": 1}))
    for one in (without, holder):
        scheduling.pod_seen(one, 0.0)
    assert scheduling.preempt(pod(whole=1, priority=9), {"n1": []}, 0.0) == {"n1": [holder.uid]}


def test_a_member_without_gpus_does_not_let_its_job_start():
    scheduling = cluster(whole_node("n1"))
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "3"}
    scheduling.pod_seen(pod(count=1, on="n1", labels=labels), 0.0)
    member = pod(whole=1, labels=labels)
    scheduling.pod_seen(member, 0.0)
    assert scheduling.filter(member, ["n1"], 0.0).unresolvable == {
        "n1": "node(s) not given to job j: 2 of 3 pods are there"
    }
