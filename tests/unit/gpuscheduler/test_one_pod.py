"""A pod from kube-scheduler's calls to the API server."""

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION, MEMORY_ANNOTATION


def test_a_pod_is_bound_with_its_decision(cluster):
    cluster.share_node("n1")
    scheduler = cluster.start()
    pod = cluster.pod(mem=4)
    found = scheduler.filter(pod)
    assert (found["NodeNames"], found["Error"]) == (["n1"], "")
    assert scheduler.bind(pod, "n1") == ""
    bound = cluster.found("p")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"][DECIDED_ANNOTATION] == pod["metadata"]["uid"]
    assert bound["metadata"]["annotations"][MEMORY_ANNOTATION] == '{"0":{"0":4}}'
