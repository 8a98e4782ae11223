"""Why a pod with claims waits: one sentence from its claims, and from the devices, classes and nodes of the cluster."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuscheduler.core.constraints.node_site import NodeSite
from gpuscheduler.core.explain import words
from gpuscheduler.core.explain.claim_facts import (
    MOST_USERS,
    ClaimFacts,
    ClaimingPod,
    ClassFacts,
    DeviceConstraint,
    DeviceRequest,
    PodClaim,
)
from gpuscheduler.core.explain.device_check import Held, demand
from gpuscheduler.core.explain.placing import Part, Search, unchecked
from gpuscheduler.core.explain.published import Device, Published, full_word
from gpuscheduler.core.explain.request_reason import Funnel, funnel, unknown_attribute
from gpuscheduler.core.explain.selection import Work, WorkSpent

DevicesByNode = Mapping[str, Sequence[Device]]
_MOST_ALTERNATIVES = 2
"""Alternatives of a request of which the sentence tells."""


_TOO_LARGE = (
    "its claims are too large to be explained here: the pod's condition PodScheduled has kube-scheduler's words"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCluster:
    """What the claims of a pod are compared with. What could not be read is None.

    Attributes:
        published: the devices.
        claims: by namespace and name.
        has_all_claims: whether `claims` are those of all namespaces.
        classes: by name.
        templates: names of the templates in the pod's namespace.
        sites: the nodes, by name.
        modes: how many nodes with GPUs are in each mode.
    """

    published: Published | None = None
    claims: Mapping[PodName, ClaimFacts] | None = None
    has_all_claims: bool = True
    classes: Mapping[str, ClassFacts] | None = None
    templates: Collection[str] | None = None
    sites: Mapping[str, NodeSite] | None = None
    modes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimReason:
    """Why the claims of a pod keep it waiting.

    Attributes:
        text: the sentence; empty if the claims keep it from no node.
        nodes: that could serve all of its claims now.
        unchecked: what has to hold there, too, and is not checked here; empty if the nodes are certain.
        is_ours: whether the claims concern devices of this project, or may do so.
        is_certain: whether that is known. A claim that is not there could be for anything.
    """

    text: str = ""
    nodes: tuple[str, ...] = ()
    unchecked: str = ""
    is_ours: bool = True
    is_certain: bool = True


def claim_reason(pod: ClaimingPod, cluster: ClaimCluster, others: Sequence[ClaimFacts] = ()) -> ClaimReason:
    """Why a pod with claims waits; `others` are claims of it that are not there."""
    return _Explaining(pod, cluster, others).reason()


class _Explaining:
    """The steps for one pod, in the order in which Kubernetes takes them."""

    def __init__(self, pod: ClaimingPod, cluster: ClaimCluster, others: Sequence[ClaimFacts]) -> None:
        self._pod = pod
        self._cluster = cluster
        self._claims: list[ClaimFacts] = list(others)
        self._unchecked: list[str] = []
        self._work = Work(len(cluster.published.devices) if cluster.published else 0)

    def reason(self) -> ClaimReason:
        """Why the pod waits."""
        try:
            return self._of_claims()
        except WorkSpent:
            return ClaimReason(_TOO_LARGE, is_ours=self._may_be_ours())

    def _of_claims(self) -> ClaimReason:
        for pod_claim in self._pod.claims:
            why = self._not_there(pod_claim)
            if why:
                return ClaimReason(why, is_ours=self._may_be_ours(), is_certain=False)
        allocated = [claim for claim in self._claims if claim.is_allocated]
        why = self._held(allocated)
        if why:
            return ClaimReason(why, is_ours=self._may_be_ours())
        pending = [claim for claim in self._claims if not claim.is_allocated]
        if not pending:
            return ClaimReason(is_ours=self._may_be_ours())
        return self._pending(pending, allocated)

    def _may_be_ours(self) -> bool:
        """Whether any of the claims may be for GPUs of this project."""
        if len(self._claims) < len(self._pod.claims):
            # A claim that is not there could be for anything.
            return True
        return any(self._concerns_us(claim) for claim in self._claims)

    def _concerns_us(self, claim: ClaimFacts) -> bool:
        if any(allocated.key.driver == DRA_DRIVER for allocated in claim.devices):
            return True
        for alternatives in claim.requests:
            for request in alternatives:
                if self._is_of_us(request.device_class) or any(DRA_DRIVER in text for text in request.selectors):
                    return True
        return False

    def _is_of_us(self, name: str) -> bool:
        """Whether a class is for devices of this project, as its selectors say, or its name if it is unknown."""
        known = (self._cluster.classes or {}).get(name)
        texts = known.selectors if known else (name,)
        domain = DRA_DRIVER.partition(".")[2]
        return any(domain in text for text in texts)

    # -- claims that are not there, or on a node ----------------------------------------------------------------------

    def _not_there(self, pod_claim: PodClaim) -> str:
        """Why a claim of the pod is not there; empty if it is, and is then kept."""
        if not pod_claim.is_needed:
            return ""
        namespace = self._pod.name.namespace
        if not pod_claim.claim:
            return self._not_created(pod_claim.template)
        claims = self._cluster.claims
        if claims is None:
            return f"its claim {pod_claim.claim} could not be read"
        claim = claims.get(PodName(namespace, pod_claim.claim))
        if claim is None:
            names = {name.name for name in claims if name.namespace == namespace}
            meant = words.did_you_mean(pod_claim.claim, names)
            return f"wants ResourceClaim {pod_claim.claim}, which namespace {namespace} does not have{meant}"
        if claim.deleting:
            # Also while other pods use it: kube-scheduler gives it to no further one.
            return f"wants ResourceClaim {pod_claim.claim}, which is being deleted"
        self._claims.append(claim)
        return ""

    def _not_created(self, template: str) -> str:
        templates = self._cluster.templates
        namespace = self._pod.name.namespace
        if templates is not None and template not in templates:
            meant = words.did_you_mean(template, templates)
            return f"wants ResourceClaimTemplate {template}, which namespace {namespace} does not have{meant}"
        return (
            f"its claim of ResourceClaimTemplate {template} is not created yet: is there such a template in namespace "
            f"{namespace}, or does an Event FailedResourceClaimCreation say more?"
        )

    def _held(self, allocated: Sequence[ClaimFacts]) -> str:
        """Why the pod cannot be where its claims have their devices; empty if it can."""
        for claim in allocated:
            if len(claim.users) >= MOST_USERS:
                return f"its claim {claim.name.name} is used by {MOST_USERS} pods, which is the most"
        nodes = {node for claim in allocated for node in claim.nodes}
        if len(nodes) > 1:
            named = [f"{claim.name.name} on {words.some(claim.nodes)}" for claim in allocated if claim.nodes]
            return f"its claims have devices on different nodes: {words.joined(named)}"
        for claim in allocated:
            why = self._why_not_beside(claim)
            if why:
                return why
        return ""

    def _why_not_beside(self, claim: ClaimFacts) -> str:
        """Why the pod cannot be on a node where a claim has its devices; empty if it can."""
        for node in claim.nodes:
            why = self._why_not_on(node)
            if why:
                users = f", where {words.some(claim.users)} uses it" if claim.users else ""
                where = f"its claim {claim.name.name} has devices on node {node}{users}"
                return f"{where}, and the pod may not be there: 1 node(s) {why}"
        return ""

    def _why_not_on(self, node: str) -> str:
        """Why the pod may not be on a node; empty if it may, or that is not known."""
        if self._cluster.sites is None:
            return ""
        site = self._cluster.sites.get(node)
        return "were deleted" if site is None else self._pod.rules.obstacle(site)

    # -- claims without devices ---------------------------------------------------------------------------------------

    def _pending(self, pending: Sequence[ClaimFacts], allocated: Sequence[ClaimFacts]) -> ClaimReason:
        unknown = next(self._unknown_classes(pending), "")
        is_ours = any(map(self._concerns_us, self._claims))
        if unknown:
            return ClaimReason(unknown, is_ours=is_ours)
        published = self._cluster.published
        if published is None:
            wants = "; ".join(self._wants(pending))
            return ClaimReason(f"{wants}: which GPUs there are is not known here", is_ours=is_ours)
        if is_ours and not any(device.key.driver == DRA_DRIVER for device in published.devices):
            return ClaimReason(f"{'; '.join(self._wants(pending))}: {self._no_devices()}", is_ours=is_ours)
        held = Held(published, (self._cluster.claims or {}).values())
        off = self._off(published.devices, allocated)
        text, nodes = self._of_devices(pending, published.devices, held, off)
        if text and not self._cluster.has_all_claims:
            text = f"{text}; what claims of other namespaces have is not known here"
        return ClaimReason(text, nodes, words.some(dict.fromkeys(self._unchecked)), is_ours)

    def _unknown_classes(self, pending: Sequence[ClaimFacts]) -> Iterator[str]:
        classes = self._cluster.classes
        if classes is None:
            return
        for claim in pending:
            # Of alternatives, each must have its class: kube-scheduler refuses the pod before it tries the first one.
            for request in chain.from_iterable(claim.requests):
                if request.device_class not in classes:
                    meant = words.did_you_mean(request.device_class, classes)
                    named = words.shown(request.device_class)
                    yield f"wants DeviceClass {named}, which the cluster does not have{meant}"

    def _wants(self, pending: Sequence[ClaimFacts]) -> Iterator[str]:
        for claim in pending:
            for alternatives in claim.requests:
                asked = demand(alternatives[0], None, self._work)
                nothing = funnel(asked, (), Held(Published(), ()), {}, self._work)
                yield f"wants {nothing.wants}"

    def _no_devices(self) -> str:
        text = "no node publishes GPUs for claims"
        modes = self._cluster.modes
        if modes.get("dra"):
            count = words.count_are(modes["dra"], "node", "is", "are")
            return f"{text}, and {count} in mode dra: see the condition GPUAgentReady there"
        parts = [
            f"{words.count_are(count, 'node', 'is', 'are')} in mode {mode}" for mode, count in modes.items() if mode
        ]
        return f"{text}, because none is in mode dra{': ' if parts else ''}{', '.join(parts)}"

    def _off(self, devices: Sequence[Device], allocated: Sequence[ClaimFacts]) -> dict[str, str]:
        """Name of each node where the pod may not be to the reason."""
        bound_to = {node for claim in allocated for node in claim.nodes}
        off: dict[str, str] = {}
        for node in {device.node for device in devices}:
            if bound_to and node not in bound_to:
                off[node] = "were not the one where another claim of the pod has its devices"
                continue
            why = self._why_not_on(node)
            if why:
                off[node] = why
        return off

    def _of_devices(
        self,
        pending: Sequence[ClaimFacts],
        devices: Sequence[Device],
        held: Held,
        off: Mapping[str, str],
    ) -> tuple[str, tuple[str, ...]]:
        """Why the claims have no devices, or the nodes that have some."""
        parts: list[Part] = []
        nodes: list[set[str]] = []
        for claim in pending:
            for alternatives in claim.requests:
                part = self._part(claim, alternatives)
                funnels = [funnel(asked, devices, held, off, self._work) for asked in part.alternatives]
                fits_on = {node for each in funnels for node in each.fits_on}
                if not fits_on and self._may_fit_elsewhere(funnels):
                    continue
                if not fits_on:
                    return _reason_of(funnels), ()
                parts.append(part)
                nodes.append(fits_on)
        if not parts:
            # A claim may ask for nothing. Any node has that.
            return "", ()
        by_node: dict[str, list[Device]] = {}
        nodes_for_all = set.intersection(*nodes)
        for device in devices:
            if device.node in nodes_for_all:
                by_node.setdefault(device.node, []).append(device)
        return self._together(parts, nodes, by_node, held, off)

    def _may_fit_elsewhere(self, funnels: Sequence[Funnel]) -> bool:
        """Whether a request of another driver may get a device that is not of one node, such as one in the network."""
        published = self._cluster.published
        elsewhere = published.elsewhere if published else frozenset()
        for each in funnels:
            if elsewhere and each.is_of_others:
                self._unchecked.append(f"devices of {words.some(sorted(elsewhere))} that are not of one node")
                return True
        return False

    def _part(self, claim: ClaimFacts, alternatives: Sequence[DeviceRequest]) -> Part:
        classes = self._cluster.classes
        asked = []
        for request in alternatives:
            known = (classes or {}).get(request.device_class)
            asked.append(demand(request, known, self._work))
        return Part(tuple(asked), claim.constraints)

    def _together(
        self,
        parts: Sequence[Part],
        nodes: Sequence[Collection[str]],
        by_node: DevicesByNode,
        held: Held,
        off: Mapping[str, str],
    ) -> tuple[str, tuple[str, ...]]:
        """Why no node has devices for all requests, each of which fits somewhere; or the nodes that have."""
        search = Search(parts, held, off, self._work)
        fitting = tuple(node for node in sorted(by_node) if search.fits(by_node[node]))
        if fitting:
            self._doubt(parts, [device for node in fitting[: words.MOST_NAMED] for device in by_node[node]])
            return "", fitting
        if search.gave_up:
            self._unchecked.append("whether all requests fit together, for which there are too many ways")
            return "", tuple(sorted(by_node))
        constrained = [part for part in parts if part.constraints]
        free = Search(parts, held, off, self._work, keeps_constraints=False)
        if constrained and any(free.fits(devices) for devices in by_node.values()):
            concerned, constraints = self._failing_constraint(parts, by_node, held, off)
            return self._constraint(concerned, constraints, by_node), ()
        where: list[str] = []
        for part, fits_on in zip(parts, nodes, strict=True):
            where.append(f"{part.name} on {words.some(sorted(fits_on))}")
        return f"wants {len(parts)} requests on one node, and each fits only by itself: {words.joined(where)}", ()

    def _doubt(self, parts: Sequence[Part], devices: Sequence[Device]) -> None:
        """Keep what kube-scheduler checks and this does not, of devices that are free for all else."""
        self._unchecked += unchecked(parts, devices, self._work)
        if any(claim.is_distinct for claim in self._claims):
            self._unchecked.append("constraint distinctAttribute")
        if not self._cluster.has_all_claims:
            self._unchecked.append("what claims of other namespaces have")

    def _failing_constraint(
        self, parts: Sequence[Part], by_node: DevicesByNode, held: Held, off: Mapping[str, str]
    ) -> tuple[Sequence[Part], Sequence[DeviceConstraint]]:
        """The constraint that no node meets, with the requests of its claim; all of a claim if only together."""
        # The requests of a claim share one tuple: by it, they are known to be of one claim.
        by_claim = {id(part.constraints): part.constraints for part in parts if part.constraints}
        for of_claim, constraints in by_claim.items():
            for constraint in constraints:
                alone = (constraint,)
                tried: list[Part] = []
                for part in parts:
                    kept = alone if id(part.constraints) == of_claim else ()
                    tried.append(replace(part, constraints=kept))
                search = Search(tried, held, off, self._work)
                fits = any(search.fits(devices) for devices in by_node.values())
                if not fits and not search.gave_up:
                    return _of_claim(parts, of_claim), alone
        first, constraints = next(iter(by_claim.items()))
        return _of_claim(parts, first), constraints

    def _constraint(
        self, parts: Sequence[Part], constraints: Sequence[DeviceConstraint], by_node: DevicesByNode
    ) -> str:
        """Why no node meets a constraint, although with any values it would.

        Args:
            parts: the requests of the claim.
            constraints: one, or those that no node meets together.
            by_node: the devices.
        """
        requests = [part.alternatives[0].request for part in parts]
        concerned = [request for request in requests if _concerns(constraints, request)]
        count = sum(request.count for request in concerned)
        # A request for all devices has no count.
        has_all = any(not request.count for request in concerned)
        gpus = "all matching GPUs of a node" if has_all else words.count_of(count, "GPU")
        named = words.joined([words.shown(each.attribute) for each in constraints])
        wants = f"wants {gpus} with the same {named}"
        devices = [*chain.from_iterable(by_node.values())]
        for each in constraints:
            unknown = unknown_attribute(full_word(each.attribute, DRA_DRIVER), devices)
            if unknown:
                return f"{wants}: {unknown}"
        nodes = words.some(sorted(by_node))
        lacking = "no node has one value for all" if has_all else "no node has that many with one value free"
        return f"{wants}: {lacking}; with any value there are enough on {nodes}"


def _of_claim(parts: Sequence[Part], claim: int) -> list[Part]:
    """The requests of one claim, by the identity of its constraints."""
    return [part for part in parts if id(part.constraints) == claim]


def _concerns(constraints: Sequence[DeviceConstraint], request: DeviceRequest) -> bool:
    """Whether one of the constraints is about a request."""
    return any(each.concerns(request) for each in constraints)


def _reason_of(funnels: Sequence[Funnel]) -> str:
    """The sentence about a request that fits nowhere, with its alternatives."""
    reasons = [each.reason() for each in funnels[:_MOST_ALTERNATIVES]]
    return "; or else it ".join(reasons)
