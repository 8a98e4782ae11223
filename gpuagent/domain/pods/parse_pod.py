"""Reads Pod objects of the API server, and reduces each to what the agent stores.

A tenant writes a Pod object, so any field may be absent, of another shape, or huge. What cannot be read counts as
empty. Every list has a bound, so that a pod of any size needs little memory.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, islice
from typing import Any

from gpuagent.domain.pods.annotations import bounded, named_for_shares
from gpuagent.domain.pods.json_values import mapping, mappings, number, text
from gpuagent.domain.pods.pod import ALL_REQUESTS, REJECTED, ContainerSpec, Controller, FailedRun, Pod, PodName
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, JOB_LABEL, REPLICAS_LABEL

_LABELS = (GPU_COUNT_LABEL, JOB_LABEL, REPLICAS_LABEL)
_MOST_ASKING = 1000
_MOST_OTHERS = 100
"""Containers whose names are kept: of those that ask for GPUs, and of the first containers of a pod. The amounts of
further containers count; the agent cannot find these containers by name."""
_MOST_WORDS = 2048
"""Characters of the message with which kubelet failed a pod. Kubelet repeats messages of plugins at any length."""
_MOST_NAME = 512
"""Characters in each part of an owner reference. Kubernetes sets no limit there; its own names are shorter."""
_MOST_FAILED_RUNS = 64
_SANDBOXED = "PodReadyToStartContainers"
"""Condition of pods (KEP-3085, on by default from Kubernetes 1.29)."""
_MOST_CLAIMS = 32
_MOST_CLAIM_USES = 256
"""Claims that are kept in any case, and uses of claims by containers. The uses by containers with several come first:
a claim is checked against these."""
_ANOTHER = "another/resource"
"""Stands for all resources of other plugins: a pod can name thousands of them."""

Json = Mapping[str, Any]


def parse_pod(pod: Json) -> Pod:
    """Read a Pod object (decoded JSON). Fields that are absent or of another shape count as empty."""
    meta = mapping(pod.get("metadata"))
    spec = mapping(pod.get("spec"))
    status = mapping(pod.get("status"))
    annotations = bounded(mapping(meta.get("annotations")))
    namespace = text(meta.get("namespace"))
    uses = _claim_uses(spec, status)
    return Pod(
        name=PodName(namespace, text(meta.get("name"))),
        uid=text(meta.get("uid")),
        created=text(meta.get("creationTimestamp")),
        labels=_labels(meta),
        containers=_containers(spec),
        ended=status.get("phase") in ("Succeeded", "Failed"),
        annotations=annotations,
        share_gpus=named_for_shares(annotations),
        version=text(meta.get("resourceVersion")),
        deleting="deletionTimestamp" in meta,
        ends_at=_seconds(meta.get("deletionTimestamp")),
        controller=_controller(meta),
        rejected=_rejected(status),
        container_ids=_container_ids(status),
        failed_runs=tuple(islice(_failed_runs(status), _MOST_FAILED_RUNS)),
        claims=uses.claims,
        claim_requests=uses.requests,
        claims_left_out=uses.left_out,
        sandboxed=_is_sandboxed(status),
    )


def _seconds(timestamp: object) -> float | None:
    """Seconds since 1970 of a time as Kubernetes writes it; None if it is none."""
    try:
        return datetime.fromisoformat(text(timestamp)).timestamp()
    except (ValueError, OverflowError):
        return None


def _labels(meta: Json) -> dict[str, str]:
    labels = mapping(meta.get("labels"))
    return {key: value for key, value in labels.items() if isinstance(value, str)}


def _controller(meta: Json) -> Controller | None:
    for owner in mappings(meta.get("ownerReferences")):
        if owner.get("controller") is True:
            kind = text(owner.get("kind"))
            uid = text(owner.get("uid"))
            # Authors can write such a reference by hand. It must not make the agent large.
            has_long_name = max(len(kind), len(uid)) > _MOST_NAME
            return None if has_long_name else Controller(kind, uid)
    return None


def _containers(spec: Json) -> tuple[ContainerSpec, ...]:
    """Init containers come first, in the order in which kubelet starts all of them."""
    init_containers = mappings(spec.get("initContainers"))
    app_containers = mappings(spec.get("containers"))
    containers = [_init_container(container) for container in init_containers]
    containers += map(_container, app_containers)
    return tuple(containers)


def _init_container(container: Json) -> ContainerSpec:
    spec = _container(container)
    is_sidecar = container.get("restartPolicy") == "Always"
    return replace(spec, init=not is_sidecar, sidecar=is_sidecar)


def _container(container: Json) -> ContainerSpec:
    resources = mapping(container.get("resources"))
    limits: dict[str, int] = {}
    unread: set[str] = set()
    for name, value in mapping(resources.get("limits")).items():
        # Extended resources have a "/" in their name; cpu and memory do not matter here.
        if "/" not in name:
            continue
        units = amount(str(value))
        if units is None:
            unread.add(name)
        elif units:
            limits[name] = units
    return ContainerSpec(
        name=text(container.get("name")),
        limits=limits,
        unread=frozenset(unread),
    )


def _rejected(status: Json) -> str | None:
    """Kubelet's message if it failed the pod at admission."""
    has_failed = status.get("phase") == "Failed"
    is_rejected = has_failed and status.get("reason") == REJECTED
    if not is_rejected:
        return None
    message = text(status.get("message"))
    return message[:_MOST_WORDS]


def _container_ids(status: Json) -> dict[str, str]:
    """``containerd://<id>`` without the name of the runtime."""
    names = {}
    for part in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for container in mappings(status.get(part)):
            address = text(container.get("containerID"))
            container_id = address.rpartition("//")[2]
            if container_id:
                names[container_id] = text(container.get("name"))
    return names


def _failed_runs(status: Json) -> Iterator[FailedRun]:
    """From ``state`` if the container does not run again yet, else from ``lastState``."""
    for part in ("containerStatuses", "initContainerStatuses"):
        for container in mappings(status.get(part)):
            state = mapping(container.get("state"))
            last_state = mapping(container.get("lastState"))
            ended = mapping(state.get("terminated")) or mapping(last_state.get("terminated"))
            exit_code = number(ended.get("exitCode"))
            container_id = text(ended.get("containerID"))
            if exit_code and _is_name(container_id):
                yield FailedRun(text(container.get("name")), container_id, exit_code)


def _is_sandboxed(status: Json) -> bool:
    for condition in mappings(status.get("conditions")):
        is_of_sandbox = condition.get("type") == _SANDBOXED
        if is_of_sandbox and condition.get("status") == "True":
            return True
    return False


@dataclass(frozen=True, slots=True)
class _ClaimUse:
    """A container's use of one request of a claim, or of all of them."""

    claim: str
    container: str
    request: str


@dataclass(frozen=True, slots=True)
class _ClaimUses:
    """The fields of `Pod` about claims."""

    claims: Mapping[str, tuple[str, ...]]
    requests: Mapping[tuple[str, str], frozenset[str]]
    left_out: bool


def _claim_uses(spec: Json, status: Json) -> _ClaimUses:
    """The pod's claims with the containers that use each. Any author may name thousands of claims and containers."""
    claim_of = _claim_names(spec, status)
    # Once each: a pod may name one claim several times.
    uses = dict.fromkeys(chain(_named_uses(spec, claim_of), _extended_uses(status)))
    uses_by_container = Counter(use.container for use in uses)
    of_several = [use for use in uses if uses_by_container[use.container] > 1]
    of_single = [use for use in uses if uses_by_container[use.container] == 1]
    kept_uses = list(islice(chain(of_several, of_single), _MOST_CLAIM_USES))
    kept_claims = islice(claim_of.values(), _MOST_CLAIMS)
    return _ClaimUses(
        claims=_users_of_claims(kept_claims, kept_uses),
        requests=_used_requests(kept_uses),
        # One of the others may use a claim that a container of several uses too.
        left_out=bool(of_several) and len(uses) > _MOST_CLAIM_USES,
    )


def _users_of_claims(claims: Iterable[str], uses: Iterable[_ClaimUse]) -> dict[str, tuple[str, ...]]:
    """Each claim to the containers that use it. A claim that no container uses is kept, too."""
    users: dict[str, dict[str, None]] = {}
    for claim in claims:
        users[claim] = {}
    for use in uses:
        of_claim = users.setdefault(use.claim, {})
        of_claim[use.container] = None
    return {claim: tuple(containers) for claim, containers in users.items()}


def _used_requests(uses: Iterable[_ClaimUse]) -> dict[tuple[str, str], frozenset[str]]:
    """A claim and a container to the requests that the container uses, where it is not all."""
    requests: dict[tuple[str, str], frozenset[str]] = {}
    for use in uses:
        user = use.claim, use.container
        requests[user] = requests.get(user, frozenset()) | {use.request}
    # All requests of a claim include those that the container names as well.
    return {user: names for user, names in requests.items() if ALL_REQUESTS not in names}


def _claim_names(spec: Json, status: Json) -> dict[str, str]:
    """Each name in the pod of a claim, to the claim's name in the namespace.

    The claims are those that the pod names, and those that were made from its templates.
    """
    claim_of: dict[str, str] = {}
    named = mappings(spec.get("resourceClaims"))
    from_templates = mappings(status.get("resourceClaimStatuses"))
    for entry in chain(named, from_templates):
        claim = text(entry.get("resourceClaimName"))
        if _is_name(claim):
            claim_of[text(entry.get("name"))] = claim
    return claim_of


def _named_uses(spec: Json, claim_of: Mapping[str, str]) -> Iterator[_ClaimUse]:
    """The claims and requests that containers name."""
    for kind in ("initContainers", "containers"):
        for container in mappings(spec.get(kind)):
            container_name = text(container.get("name"))
            resources = mapping(container.get("resources"))
            for named in mappings(resources.get("claims")):
                claim = claim_of.get(text(named.get("name")))
                if claim is not None:
                    yield _ClaimUse(claim, container_name, _request(named.get("request")))


def _extended_uses(status: Json) -> Iterator[_ClaimUse]:
    """The requests of the claim for extended resources. A container has an entry for each of its resources."""
    extended = mapping(status.get("extendedResourceClaimStatus"))
    claim = text(extended.get("resourceClaimName"))
    if not _is_name(claim):
        return
    for entry in mappings(extended.get("requestMappings")):
        container = text(entry.get("containerName"))
        yield _ClaimUse(claim, container, _request(entry.get("requestName")))


def _request(name: object) -> str:
    """The name of a request. Without one that Kubernetes would take, the use is of all requests."""
    request = text(name)
    return request if _is_name(request) else ALL_REQUESTS


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _MOST_NAME


def kept(pod: Pod, resources: Collection[str]) -> Pod:
    """Reduce a pod to the fields that the agent stores, so that a pod of any size needs little memory.

    The result has the amounts of `resources`; one entry stands for all other resources. A pod that has ended keeps its
    identity, and kubelet's message if kubelet failed it at admission.
    """
    if pod.ended:
        return replace(
            pod,
            labels={},
            annotations={},
            share_gpus=None,
            container_ids={},
            containers=(),
            claims={},
            claim_requests={},
            claims_left_out=False,
        )
    # A pod may have any number of labels, and no others are read.
    labels = {key: pod.labels[key] for key in _LABELS if key in pod.labels}
    container_ids = islice(pod.container_ids.items(), _MOST_ASKING)
    return replace(
        pod,
        labels=labels,
        containers=_kept_containers(pod, resources),
        container_ids=dict(container_ids),
    )


def _kept_containers(
    pod: Pod,
    resources: Collection[str],
) -> tuple[ContainerSpec, ...]:
    """The containers of a pod. Beyond the first ones of each sort, they have no names."""
    containers: list[ContainerSpec] = []
    shared: dict[object, ContainerSpec] = {}
    asking = 0
    for position, container in enumerate(pod.containers):
        reduced = _reduced(container, resources)
        asks = bool(reduced.limits or reduced.unread)
        asking += asks
        # Containers with equal requests share one object.
        limits = tuple(reduced.limits.items())
        content = (reduced.init, reduced.sidecar, reduced.unread, limits)
        reduced = shared.setdefault(content, reduced)
        is_of_first = asks and asking <= _MOST_ASKING
        if is_of_first or position < _MOST_OTHERS:
            reduced = replace(reduced, name=container.name)
        containers.append(reduced)
    return tuple(containers)


def _reduced(container: ContainerSpec, resources: Collection[str]) -> ContainerSpec:
    """The container without its name, and with one entry for all resources that are not in `resources`."""
    limits: dict[str, int] = {}
    for name in resources:
        if name in container.limits:
            limits[name] = container.limits[name]
    named = {*container.limits, *container.unread}
    if named.difference(resources):
        limits[_ANOTHER] = 1
    unread = container.unread.intersection(resources)
    return replace(container, name="", limits=limits, unread=unread)
