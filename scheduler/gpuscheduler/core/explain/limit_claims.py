"""Claims that kube-scheduler makes itself: for resources in a pod's limits that DeviceClasses serve.

Source: kubernetes 1.36.3, pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings
from gpuagent.domain.pods.pod import PodName
from gpuscheduler.core.explain.claim_facts import ClaimFacts, ClassFacts, DeviceRequest
from gpuscheduler.core.explain.published import quantity

OF_A_CLASS = "deviceclass.resource.kubernetes.io"
"""Domain of the resources that Kubernetes serves from the DeviceClass of the same name. No node has them."""


def limit_claims(pod: Mapping[str, Any], name: PodName, classes: Iterable[ClassFacts]) -> dict[str, ClaimFacts]:
    """The claims for a Pod object (decoded JSON), by resource."""
    by_resource = {device_class.resource: device_class.name for device_class in classes if device_class.resource}
    claims: dict[str, ClaimFacts] = {}
    for resource, count in _limits(pod).items():
        domain, _, implicit = resource.partition("/")
        device_class = implicit if domain == OF_A_CLASS else by_resource.get(resource, "")
        if device_class and count:
            claims[resource] = ClaimFacts(name, ((DeviceRequest("limits", device_class, count),),))
    return claims


def _limits(pod: Mapping[str, Any]) -> dict[str, int]:
    """What the containers ask for together. Those that end before others start may have the same devices."""
    spec = mapping(pod.get("spec"))
    staying = Counter[str]()
    ending = Counter[str]()
    for container in mappings(spec.get("containers")):
        staying.update(_limits_of(container))
    for container in mappings(spec.get("initContainers")):
        limits = _limits_of(container)
        if container.get("restartPolicy") == "Always":
            staying.update(limits)
        else:
            ending |= limits
    return dict(staying | ending)


def _limits_of(container: Mapping[str, Any]) -> Counter[str]:
    limits = mapping_at(container, "resources", "limits")
    return Counter({name: quantity(amount) or 0 for name, amount in limits.items() if "/" in name})
