"""Whether a running pod may be moved to another node, and which nodes its own rules accept.

A pod is moved by an eviction: its controller makes it again, and the scheduler places the new pod elsewhere. What must
not be moved, or comes to harm by it, says so in one of the ways that cluster-autoscaler, Karpenter and the descheduler
know. A pod of which anything is not certain stays where it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, number, text
from gpuscheduler.core.constraints.host_ports import host_ports
from gpuscheduler.core.constraints.node_rules import NodeRules, node_rules
from gpuscheduler.core.constraints.selectors import TooLarge, Unreadable

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_FORBIDS = {
    SAFE_TO_EVICT: "false",
    "karpenter.sh/do-not-disrupt": "true",
    "karpenter.sh/do-not-evict": "true",
}
"""Annotation to the value by which a pod says that it must not be disrupted."""
_FORBIDS_BY_KEY = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
"""The same, whatever the value."""
_MIRROR = "kubernetes.io/config.mirror"
_QUEUED = ("kueue.x-k8s.io/managed", "kueue.x-k8s.io/queue-name")
"""Labels of pods that Kueue admits: a new pod waits for its quota, and may wait for long."""
SYSTEM = "kube-system"
MADE_AGAIN = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""Controllers of services: they make a pod again at once, and lose no work by it."""
NEVER = frozenset({"DaemonSet", "Node"})
"""Controllers whose pods belong to their nodes."""
MOST_GRACE_S = 60
"""Pods that may take longer to end are not moved, as the pod that waits would wait for them."""
_DEFAULT_GRACE_S = 30
_MOST_VOLUMES = 1000
_OTHER_NODES_LACK = {
    "persistentVolumeClaim": "claims a volume, which may be on this node only",
    "ephemeral": "claims a volume, which may be on this node only",
    "hostPath": "uses a directory of its node",
}


@dataclass(frozen=True, slots=True)
class Mobility:
    """Whether a pod may be moved.

    Attributes:
        why_not: why it may not, after "it "; empty if it may.
        nodes: the nodes that its own rules accept.
    """

    why_not: str = "is on no node"
    nodes: NodeRules = NodeRules()


NOT_ON_NODE = Mobility()


def mobility(pod: Mapping[str, Any]) -> Mobility:
    """Read a Pod object (decoded JSON) that is on a node. Fields of another shape count as empty."""
    why_not = _why_not(pod)
    if why_not:
        return _first(Mobility(why_not))
    try:
        nodes = node_rules(mapping(pod.get("spec")))
    except (TooLarge, Unreadable):
        return _first(Mobility("has rules about nodes that are not read"))
    return _first(Mobility("", nodes))


def _why_not(pod: Mapping[str, Any]) -> str:
    metadata = mapping(pod.get("metadata"))
    spec = mapping(pod.get("spec"))
    annotations = mapping(metadata.get("annotations"))
    is_declared_safe = annotations.get(SAFE_TO_EVICT) == "true"
    return (
        _forbidden(annotations)
        or _by_place(metadata)
        or _by_controller(metadata, is_declared_safe=is_declared_safe)
        or _by_volumes(spec, is_declared_safe=is_declared_safe)
        or _by_rules(spec)
        or _by_grace(spec)
    )


def _forbidden(annotations: Mapping[str, Any]) -> str:
    for key, value in _FORBIDS.items():
        if annotations.get(key) == value:
            return f"has the annotation {key}: {value}"
    return f"has the annotation {_FORBIDS_BY_KEY}" if _FORBIDS_BY_KEY in annotations else ""


def _by_place(metadata: Mapping[str, Any]) -> str:
    if metadata.get("namespace") == SYSTEM:
        return f"is in namespace {SYSTEM}"
    labels = mapping(metadata.get("labels"))
    is_queued = any(label in labels for label in _QUEUED)
    return "is admitted by Kueue, for whose quota a new pod would wait" if is_queued else ""


def _by_controller(metadata: Mapping[str, Any], *, is_declared_safe: bool) -> str:
    annotations = mapping(metadata.get("annotations"))
    kind = _controller(metadata)
    if kind in NEVER or _MIRROR in annotations:
        return "belongs to its node"
    if not kind:
        return "has no controller that would make it again"
    if kind in MADE_AGAIN or is_declared_safe:
        return ""
    return "may lose its work: its controller is not a ReplicaSet or a StatefulSet"


def _controller(metadata: Mapping[str, Any]) -> str:
    """Kind of the pod's controller; empty if it has none."""
    for owner in mappings(metadata.get("ownerReferences")):
        if owner.get("controller") is True:
            return text(owner.get("kind"))
    return ""


def _by_volumes(spec: Mapping[str, Any], *, is_declared_safe: bool) -> str:
    if spec.get("resourceClaims"):
        return "claims devices, which may be on this node only"
    for position, volume in enumerate(mappings(spec.get("volumes"))):
        if position >= _MOST_VOLUMES:
            return "has more volumes than are read"
        for kind, why_not in _OTHER_NODES_LACK.items():
            if kind in volume:
                return why_not
        is_on_disk = "emptyDir" in volume and mapping(volume.get("emptyDir")).get("medium") != "Memory"
        if is_on_disk and not is_declared_safe:
            return f"would lose its volume of kind emptyDir (annotation {SAFE_TO_EVICT}: true allows it)"
    return ""


def _by_rules(spec: Mapping[str, Any]) -> str:
    """Rules about other pods are kept only for pods that wait, so that a new place could not be checked."""
    for kind in ("podAffinity", "podAntiAffinity"):
        if mapping_at(spec, "affinity", kind).get("requiredDuringSchedulingIgnoredDuringExecution"):
            return "has rules about other pods"
    for constraint in mappings(spec.get("topologySpreadConstraints")):
        if constraint.get("whenUnsatisfiable") != "ScheduleAnyway":
            return "has rules about other pods"
    uses_ports = bool(spec.get("hostNetwork")) or bool(host_ports(spec))
    return "has a port of its node" if uses_ports else ""


def _by_grace(spec: Mapping[str, Any]) -> str:
    seconds = number(spec.get("terminationGracePeriodSeconds"))
    grace_s = _DEFAULT_GRACE_S if seconds is None else seconds
    return f"may take longer than {MOST_GRACE_S} s to end" if grace_s > MOST_GRACE_S else ""


@lru_cache(maxsize=1024)
def _first(mobility: Mobility) -> Mobility:
    """The first value that was equal to this one: pods of one template share theirs."""
    return mobility
