"""ConfigMaps about nodes: the links between GPUs, and unhealthy GPUs of nodes that do not publish their GPUs."""

import json

from gpuagent.domain.scheduling.node_links import link_mbps, links_hash
from gpuagent.domain.sharing.mode import GPU_COUNT, GPU_MEM, GROUP_ANNOTATION
from standin.api.server import node_body
from tests.unit.gpuscheduler.running_scheduler import until

PAIRS = [[0, 10, 50, 10], [10, 0, 10, 50], [50, 10, 0, 10], [10, 50, 10, 0]]
"""GB/s: GPUs 0 and 2 are near, and 1 and 3."""
HASH = links_hash(link_mbps(PAIRS, range(4)))


def report(cluster, node, square):
    made = {"metadata": {"name": f"{node}-gputopo-report"}, "data": {"bandwidth": json.dumps(square)}}
    cluster.api.objects.create("configmaps", "kube-system", made)


def group(cluster, scheduler):
    """The GPUs that a pod gets where all are free."""
    pod = cluster.whole_pod("p", gpus=2)
    scheduler.place(pod)
    until(lambda: scheduler.metric('gpuscheduler_pods{state="bound"}') == 1)
    found = cluster.found("p")["metadata"]["annotations"][GROUP_ANNOTATION]
    cluster.api.delete_pod("p")
    until(lambda: scheduler.metric('gpuscheduler_pods{state="bound"}') == 0)
    return found


def test_the_best_linked_gpus_are_chosen_once_node_and_report_agree(cluster):
    report(cluster, "n1", PAIRS)
    cluster.whole_node("n1", gpus=4, links=HASH)
    assert group(cluster, cluster.start()) == "0,2"


def test_a_report_that_comes_later_is_taken(cluster):
    cluster.whole_node("n1", gpus=4, links=HASH)
    scheduler = cluster.start()
    assert group(cluster, scheduler) == "0,1"
    report(cluster, "n1", PAIRS)
    until(lambda: group(cluster, scheduler) == "0,2")


def test_one_report_is_enough_for_all_nodes_that_are_alike(cluster):
    report(cluster, "n1", PAIRS)
    cluster.whole_node("n1", gpus=1, links=HASH)
    cluster.whole_node("n2", gpus=4, links=HASH)
    scheduler = cluster.start()
    assert group(cluster, scheduler) == "0,1"
    cluster.api.objects.delete(("nodes", "", "n1"))
    cluster.whole_node("n1", gpus=4, links=HASH)
    until(lambda: group(cluster, scheduler) == "0,2")


def test_a_report_of_other_links_is_not_taken(cluster):
    cluster.whole_node("n1", gpus=4, links="0123456789abcdef")
    report(cluster, "n1", PAIRS)
    assert group(cluster, cluster.start()) == "0,1"


def test_the_scheduler_works_without_the_right_to_read_config_maps(cluster):
    cluster.api.deny("list", "configmaps")
    cluster.whole_node("n1", gpus=4, links=HASH)
    assert group(cluster, cluster.start()) == "0,1"


def test_an_unhealthy_gpu_of_a_node_that_publishes_none_is_not_used(cluster):
    body = node_body("n1", {}, "")
    body["status"]["allocatable"] |= {GPU_MEM: "20", GPU_COUNT: "2"}
    cluster.api.objects.create("nodes", "", body)
    unhealthy = {"metadata": {"name": "unhealthy-gpu-n1"}, "data": {"gpus": "0, 7,x"}}
    cluster.api.objects.create("configmaps", "kube-system", unhealthy)
    scheduler = cluster.start()

    def usable():
        return [gpu["usable"] for gpu in json.loads(scheduler.get("/usage")[1])["nodes"][0]["gpus"]]

    assert usable() == [False, True]
    cluster.api.objects.delete(("configmaps", "kube-system", "unhealthy-gpu-n1"))
    until(lambda: usable() == [True, True])
