"""Pods whose GPUs in limits come from a claim: no device plugin gives them these GPUs."""

import pytest

from gpuagent.domain.sharing.mode import GPU_WHOLE
from gpuscheduler.core.gpu_request import NO_REQUEST
from gpuscheduler.core.pod_facts import changed_on_node, pod_facts
from tests.unit.gpuscheduler.core.api_objects import container, pod_object


def bound_pod(resource):
    """A pod with two GPUs in its limits, for one resource of which kube-scheduler has made a claim."""
    pod = pod_object("pod", container(whole=2), on="n1")
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
