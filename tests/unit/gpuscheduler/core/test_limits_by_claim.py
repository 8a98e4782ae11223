"""Pods whose GPUs in limits come from a claim: no device plugin gives them these GPUs."""

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE
from gpuscheduler.core.gpu_request import NO_REQUEST
from gpuscheduler.core.pod_facts import changed_on_node, pod_facts
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import LeastFree, container, pod_object, whole_node


def bound_pod(resource):
    """A pod with two GPUs in its limits, for one resource of which kube-scheduler has made a claim."""
    pod = pod_object("pod", container(whole=2), on="n1", uid="pod")
    mapped = {"containerName": "c", "resourceName": resource, "requestName": "container-0-request-0"}
    claim = {"resourceClaimName": "pod-extended-resources-x", "requestMappings": [mapped]}
    return {**pod, "status": {**pod.get("status", {}), "extendedResourceClaimStatus": claim}}


def test_what_comes_from_a_claim_is_not_asked_of_a_device_plugin():
    pod = bound_pod(GPU_WHOLE)
    facts = pod_facts(pod)
    assert facts.request == NO_REQUEST
    assert facts.used is None
    assert changed_on_node(pod, facts).request == NO_REQUEST


@pytest.mark.parametrize("resource", ["example.com/nic", "", 3])
def test_a_claim_for_another_resource_changes_nothing(resource):
    assert pod_facts(bound_pod(resource)).request.gpus == 2


def test_a_pod_that_waited_is_forgotten_when_a_claim_serves_it():
    """kube-scheduler makes the claim just before it binds the pod, which the extender counted as waiting until then."""
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(whole_node("n1", gpus=4))
    scheduling.synced(0.0)
    bound = bound_pod(GPU_WHOLE)
    waiting = pod_object("pod", container(whole=2), uid="pod")
    scheduling.pod_seen(pod_facts(waiting), 1.0)
    assert list(scheduling.pods) == ["pod"]
    unbound = {**waiting, "status": bound["status"]}
    scheduling.pod_seen(pod_facts(unbound), 2.0)
    scheduling.pod_seen(pod_facts(bound), 3.0)
    assert not scheduling.pods
    assert scheduling.filter(pod_facts(pod_object("next", container(whole=4))), ("n1",), 4.0).nodes == ("n1",)
