"""Claims, classes and pods with claims, as values: what they ask for, what they have, and by which names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, number, sentence, text
from gpuagent.domain.pods.pod import PodName
from gpuscheduler.core.constraints.labels import labels_of
from gpuscheduler.core.constraints.pod_rules import NO_RULES, PodRules, pod_rules
from gpuscheduler.core.explain.published import MOST_TEXT, DeviceKey, quantity

MOST_REQUESTS = 32
"""Requests, results, constraints or selectors of a claim that are read. The API server takes no more."""
MOST_ALTERNATIVES = 8
MOST_SELECTOR = 10 * 1024
MOST_USERS = 256
"""Pods that can use a claim at one time."""


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    """Taints of devices that a request tolerates."""

    key: str
    operator: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One request of a claim, or one of its alternatives.

    Attributes:
        name: as constraints and allocations have it.
        device_class: its name.
        count: how many devices; 0 for all that the selectors take.
        amounts: of capacities, by the names that are written; None for what is not a quantity.
        selectors: CEL, beside those of the class.
        tolerations: of taints.
        is_admin: it is only looked at the devices.
    """

    name: str
    device_class: str
    count: int = 1
    amounts: Mapping[str, int | None] = field(default_factory=dict)
    selectors: tuple[str, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """Devices of some requests have one value of an attribute.

    Attributes:
        requests: their names; empty for all.
        attribute: its full name, as it is written.
    """

    requests: tuple[str, ...]
    attribute: str

    def concerns(self, request: DeviceRequest) -> bool:
        """Whether devices of the request count."""
        main_name = request.name.partition("/")[0]
        return not self.requests or request.name in self.requests or main_name in self.requests


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device that a claim has, and how much of each of its capacities."""

    key: DeviceKey
    consumed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A ResourceClaim.

    Attributes:
        name: namespace and name.
        requests: each with its alternatives, best first.
        constraints: about several devices.
        is_distinct: it has constraints of another kind, which are not read.
        devices: that are allocated, without those that are only looked at.
        nodes: names of the nodes to which the allocation is bound; empty for any.
        is_allocated: it has devices.
        users: names of the pods that use it.
        deleting: it has a deletion timestamp.
    """

    name: PodName
    requests: tuple[tuple[DeviceRequest, ...], ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    devices: tuple[AllocatedDevice, ...] = ()
    nodes: tuple[str, ...] = ()
    is_allocated: bool = False
    users: tuple[str, ...] = ()
    deleting: bool = False
    is_distinct: bool = False

    @property
    def selectors_size(self) -> int:
        """Characters of all selectors."""
        requests = [request for alternatives in self.requests for request in alternatives]
        return sum(len(selector) for request in requests for selector in request.selectors)


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """A DeviceClass.

    Attributes:
        name: of the object.
        selectors: CEL.
        resource: the extended resource that it serves; empty for none.
    """

    name: str
    selectors: tuple[str, ...] = ()
    resource: str = ""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim as a pod refers to it.

    Attributes:
        claim: name of the ResourceClaim; empty while it is not created.
        template: name of the template of which it is made; empty without one.
        is_needed: False where Kubernetes has found that the template makes no claim.
    """

    claim: str
    template: str = ""
    is_needed: bool = True


@dataclass(frozen=True, slots=True)
class ClaimingPod:
    """A pod that waits for a node, with its claims.

    Attributes:
        name: namespace and name.
        claims: that it refers to.
        rules: about the nodes where it may be.
        unscheduled: why kube-scheduler found no node, in its words; empty if it says nothing.
    """

    name: PodName
    uid: str
    claims: tuple[PodClaim, ...]
    rules: PodRules = NO_RULES
    unscheduled: str = ""


def read_claim(claim: Mapping[str, Any]) -> ClaimFacts:
    """Read a ResourceClaim (decoded JSON)."""
    metadata = mapping(claim.get("metadata"))
    devices = mapping_at(claim, "spec", "devices")
    status = mapping(claim.get("status"))
    allocation = mapping(status.get("allocation"))
    users = mappings(status.get("reservedFor"))
    return ClaimFacts(
        name=PodName(text(metadata.get("namespace")), text(metadata.get("name"))),
        requests=_requests(devices),
        constraints=tuple(_constraints(devices)),
        is_distinct=any("distinctAttribute" in written for written in mappings(devices.get("constraints"))),
        devices=tuple(_allocated(allocation)),
        nodes=tuple(_nodes(allocation)),
        is_allocated=bool(allocation),
        users=tuple(text(user.get("name")) for user in islice(users, MOST_USERS)),
        deleting=bool(metadata.get("deletionTimestamp")),
    )


def read_class(device_class: Mapping[str, Any]) -> ClassFacts:
    """Read a DeviceClass (decoded JSON)."""
    spec = mapping(device_class.get("spec"))
    return ClassFacts(
        name=text(mapping_at(device_class, "metadata").get("name")),
        selectors=tuple(_selectors(spec)),
        resource=text(spec.get("extendedResourceName")),
    )


def read_claiming_pod(pod: Mapping[str, Any]) -> ClaimingPod | None:
    """Read a Pod that has no node; None if it has one, or refers to no claim."""
    metadata = mapping(pod.get("metadata"))
    spec = mapping(pod.get("spec"))
    status = mapping(pod.get("status"))
    claims = tuple(_pod_claims(spec, status))
    has_ended = text(status.get("phase")) in {"Succeeded", "Failed"}
    if not claims or spec.get("nodeName") or metadata.get("deletionTimestamp") or has_ended:
        return None
    namespace = text(metadata.get("namespace"))
    labels = labels_of(mapping(metadata.get("labels")))
    return ClaimingPod(
        name=PodName(namespace, text(metadata.get("name"))),
        uid=text(metadata.get("uid")),
        claims=claims,
        rules=pod_rules(spec, namespace, labels),
        unscheduled=unscheduled_words(status),
    )


def unscheduled_words(status: Mapping[str, Any]) -> str:
    """Why kube-scheduler found no node, in its words; empty if it says nothing, or keeps the pod for a gate alone."""
    for condition in mappings(status.get("conditions")):
        is_refused = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if is_refused and condition.get("reason") != "SchedulingGated":
            return sentence(condition.get("message"))
    return ""


def _requests(devices: Mapping[str, Any]) -> tuple[tuple[DeviceRequest, ...], ...]:
    requests: list[tuple[DeviceRequest, ...]] = []
    for written in islice(mappings(devices.get("requests")), MOST_REQUESTS):
        name = text(written.get("name"))[:MOST_TEXT]
        exactly = written.get("exactly")
        if isinstance(exactly, dict):
            requests.append((_request(name, exactly),))
            continue
        alternatives: list[DeviceRequest] = []
        for alternative in islice(mappings(written.get("firstAvailable")), MOST_ALTERNATIVES):
            end = text(alternative.get("name"))[:MOST_TEXT]
            alternatives.append(_request(f"{name}/{end}", alternative))
        if alternatives:
            requests.append(tuple(alternatives))
    return tuple(requests)


def _request(name: str, written: Mapping[str, Any]) -> DeviceRequest:
    amounts: dict[str, int | None] = {}
    asked = mapping_at(written, "capacity", "requests")
    for key, amount in islice(asked.items(), MOST_REQUESTS):
        amounts[key[:MOST_TEXT]] = quantity(amount)
    count = number(written.get("count")) or 1
    if written.get("allocationMode") == "All":
        count = 0
    return DeviceRequest(
        name=name,
        device_class=text(written.get("deviceClassName"))[: 2 * MOST_TEXT],
        count=count,
        amounts=amounts,
        selectors=tuple(_selectors(written)),
        tolerations=tuple(_tolerations(written)),
        is_admin=written.get("adminAccess") is True,
    )


def _selectors(written: Mapping[str, Any]) -> Iterator[str]:
    for selector in islice(mappings(written.get("selectors")), MOST_REQUESTS):
        expression = text(mapping(selector.get("cel")).get("expression"))
        if expression:
            yield expression[: MOST_SELECTOR + 1]


def _tolerations(written: Mapping[str, Any]) -> Iterator[DeviceToleration]:
    for toleration in islice(mappings(written.get("tolerations")), MOST_REQUESTS):
        yield DeviceToleration(
            key=text(toleration.get("key")),
            operator=text(toleration.get("operator")),
            value=text(toleration.get("value")),
            effect=text(toleration.get("effect")),
        )


def _constraints(devices: Mapping[str, Any]) -> Iterator[DeviceConstraint]:
    for written in islice(mappings(devices.get("constraints")), MOST_REQUESTS):
        attribute = text(written.get("matchAttribute"))
        named = written.get("requests")
        names = [text(name) for name in named[:MOST_REQUESTS]] if isinstance(named, list) else []
        if attribute:
            yield DeviceConstraint(tuple(names), attribute[: 2 * MOST_TEXT])


def _allocated(allocation: Mapping[str, Any]) -> Iterator[AllocatedDevice]:
    results = mappings(mapping_at(allocation, "devices").get("results"))
    for result in islice(results, MOST_REQUESTS):
        if result.get("adminAccess") is True:
            continue
        consumed: dict[str, int] = {}
        for name, amount in mapping(result.get("consumedCapacity")).items():
            consumed[name] = quantity(amount) or 0
        key = DeviceKey(*(text(result.get(part)) for part in ("driver", "pool", "device")))
        yield AllocatedDevice(key, consumed)


def _nodes(allocation: Mapping[str, Any]) -> Iterator[str]:
    """Names of nodes in the selector of an allocation, as kube-scheduler writes it for devices of a node."""
    terms = mapping_at(allocation, "nodeSelector").get("nodeSelectorTerms")
    for term in islice(mappings(terms), MOST_REQUESTS):
        for wanted in islice(mappings(term.get("matchFields")), MOST_REQUESTS):
            values = wanted.get("values")
            if wanted.get("key") == "metadata.name" and isinstance(values, list):
                yield from filter(None, map(text, values[:MOST_REQUESTS]))


def _pod_claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[PodClaim]:
    made: dict[str, str] = {}
    for entry in mappings(status.get("resourceClaimStatuses")):
        made[text(entry.get("name"))] = text(entry.get("resourceClaimName"))
    for written in islice(mappings(spec.get("resourceClaims")), MOST_REQUESTS):
        template = text(written.get("resourceClaimTemplateName"))
        if not template:
            yield PodClaim(text(written.get("resourceClaimName")))
            continue
        name = text(written.get("name"))
        is_needed = made.get(name) != ""
        yield PodClaim(made.get(name, ""), template, is_needed)
