"""Which container names which claims and requests, and which GPUs it gets by that."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from gpuagent.domain.pods.pod import ALL_REQUESTS, ContainerRef, Pod, PodName
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim


class Named(NamedTuple):
    """What a container names: a request of a claim, or all of its requests."""

    claim: str
    request: str

    def __str__(self) -> str:
        if self.request == ALL_REQUESTS:
            return f"claim {self.claim}"
        return f"request {self.request} of claim {self.claim}"


class Part(NamedTuple):
    """A GPU of a claim, by its place in the claim."""

    claim: str
    place: int


Union = frozenset[Part]
"""All GPUs that a container gets."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """A container, and what it names of prepared claims.

    Attributes:
        owner: the container.
        named: what it names of claims that are prepared.
        is_waiting: it names claims as well that are not prepared yet, so it does not start before they are.
    """

    owner: ContainerRef
    named: frozenset[Named]
    is_waiting: bool = False

    @property
    def claims(self) -> frozenset[str]:
        """Names of the claims."""
        return frozenset([named.claim for named in self.named])


@dataclass(frozen=True)
class ClaimUses:
    """The prepared claims of a namespace, and the containers that use them.

    Attributes:
        claims: by name.
        containers: those that use one of them, or a part of one.
    """

    claims: Mapping[str, PreparedClaim]
    containers: tuple[ContainerUse, ...] = field(default=())
    _unions: dict[frozenset[Named], Union] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What was asked for. Many containers may name the same, and each is compared with the others."""

    def names_of(self, claim: str) -> tuple[Named, ...]:
        """All that containers can name of a claim. The whole claim comes last; one request is the whole claim."""
        requests = requests_of(self.claims[claim])
        names = [Named(claim, request) for request in requests]
        if len(requests) > 1:
            names.append(Named(claim, ALL_REQUESTS))
        return tuple(names)

    def union(self, names: Iterable[Named]) -> Union:
        """The GPUs of a container that names this."""
        asked = frozenset(names)
        union = self._unions.get(asked)
        if union is None:
            union = self._unions[asked] = frozenset(self._parts(asked))
        return union

    def _parts(self, names: Iterable[Named]) -> Iterator[Part]:
        for named in names:
            for place, gpu in enumerate(self.claims[named.claim].gpus):
                if named.request in {ALL_REQUESTS, gpu.request}:
                    yield Part(named.claim, place)

    def gpus(self, union: Union) -> list[tuple[PreparedClaim, ClaimedGpu]]:
        """The GPUs with their claims, in the claims' order."""
        gpus = []
        for claim, place in sorted(union):
            prepared = self.claims[claim]
            gpus.append((prepared, prepared.gpus[place]))
        return gpus

    @cached_property
    def by_name(self) -> Mapping[Named, list[ContainerUse]]:
        """The containers that name something."""
        users: dict[Named, list[ContainerUse]] = {}
        for use in self.containers:
            for named in use.named:
                users.setdefault(named, []).append(use)
        return users

    def users(self, claim: str) -> list[ContainerUse]:
        """The containers that use a claim."""
        return [use for use in self.containers if claim in use.claims]

    def connected(self, claim: str) -> frozenset[str]:
        """The claim, those of the pods that use it, those of the pods that use one of these, and so on.

        Kubelet calls the driver for a claim of a new pod, and not for those that other pods have already.
        """
        return _connected(claim, self._claims_by_pod)

    @cached_property
    def _claims_by_pod(self) -> list[set[str]]:
        """The claims that the containers of each pod use."""
        claims: dict[PodName, set[str]] = {}
        for use in self.containers:
            claims.setdefault(use.owner.pod, set()).update(use.claims)
        return list(claims.values())


def requests_of(claim: PreparedClaim) -> tuple[str, ...]:
    """The requests with devices of this driver, in order."""
    return tuple(dict.fromkeys(gpu.request for gpu in claim.gpus))


def claim_uses(
    claim: PreparedClaim,
    reserved: Collection[str],
    others: Iterable[PreparedClaim],
    pods: Iterable[Pod],
    coming: Collection[str] = (),
) -> ClaimUses:
    """The uses of a claim, and of other claims in its namespace.

    Args:
        claim: to be prepared.
        reserved: UIDs of the pods that the claim is reserved for. Others cannot use it, whatever they name.
        others: that are prepared. One with the claim's name is an earlier claim.
        pods: of the node.
        coming: names of claims with devices of this driver that are not prepared yet.
    """
    known = {other.name: other for other in others if other.namespace == claim.namespace and other.gpus}
    claims = {**known, claim.name: claim}
    not_reserved = {name: other for name, other in known.items() if name != claim.name}
    containers: list[ContainerUse] = []
    for pod in pods:
        if pod.ended or pod.name.namespace != claim.namespace:
            continue
        usable = claims if pod.uid in reserved else not_reserved
        containers += _uses(pod, usable, coming)
    return ClaimUses(claims, tuple(containers))


def unknown_claims(claim: PreparedClaim, others: Iterable[PreparedClaim], pods: Iterable[Pod]) -> list[str]:
    """Names of claims that are not prepared and that containers use, in pods that are connected with a claim."""
    used = [_used_names(pod) for pod in pods if pod.name.namespace == claim.namespace and not pod.ended]
    known = {other.name for other in others if other.namespace == claim.namespace}
    return sorted(_connected(claim.name, used) - known - {claim.name})


def _used_names(pod: Pod) -> frozenset[str]:
    """Names of the claims that containers of a pod use."""
    return frozenset([name for name, containers in pod.claims.items() if containers])


def _connected(claim: str, groups: Collection[Collection[str]]) -> frozenset[str]:
    """The claim, those in groups with it, those in groups with one of these, and so on."""
    connected = {claim}
    remaining = groups
    while True:
        joining = [group for group in remaining if not connected.isdisjoint(group)]
        if not joining:
            return frozenset(connected)
        remaining = [group for group in remaining if connected.isdisjoint(group)]
        connected.update(*joining)


def _uses(pod: Pod, claims: Mapping[str, PreparedClaim], coming: Collection[str]) -> Iterator[ContainerUse]:
    """The containers of a pod that use some of the claims."""
    waiting = {container for name in coming for container in pod.claims.get(name, ())}
    named: dict[str, set[Named]] = {}
    for name, containers in pod.claims.items():
        claim = claims.get(name)
        if claim is None:
            continue
        for container in containers:
            requests = pod.claim_requests.get((name, container))
            named.setdefault(container, set()).update(_names(claim, requests))
    for container, names in named.items():
        if names:
            owner = ContainerRef(pod.name, container)
            yield ContainerUse(owner, frozenset(names), container in waiting)


def _names(claim: PreparedClaim, requests: frozenset[str] | None) -> list[Named]:
    """What a container names of a claim. It may name requests without devices of this driver."""
    known = requests_of(claim)
    if requests is None:
        whole = ALL_REQUESTS if len(known) > 1 else known[0]
        return [Named(claim.name, whole)]
    return [Named(claim.name, request) for request in known if request in requests]
