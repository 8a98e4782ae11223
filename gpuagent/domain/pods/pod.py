"""Pods of this node: their requests (API server) and their devices (kubelet)."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

from gpuagent.domain.pods.annotations import MIRROR_ANNOTATION, bounded, named_for_shares
from gpuagent.domain.pods.json_values import mapping, mappings, number, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, JOB_LABEL, REPLICAS_LABEL, Kind
from gpuagent.domain.sharing.units import UnitId, parse_id

REJECTED = "UnexpectedAdmissionError"
"""The status reason of a pod for which kubelet got no devices. Kubelet never retries that pod."""

_LABELS = (GPU_COUNT_LABEL, JOB_LABEL, REPLICAS_LABEL)
_MOST_ASKING, _MOST_OTHERS = 1000, 100
"""Containers whose names are kept: of those that ask for GPUs, and of the first containers of a pod. The amounts of
further containers count; the agent cannot find these containers by name."""
_MOST_WORDS = 2048
"""Characters of the message with which kubelet failed a pod. Kubelet repeats messages of plugins at any length."""
_MOST_NAME = 512
"""Characters in each part of an owner reference. Kubernetes sets no limit there; its own names are shorter."""
_MOST_FAILED_RUNS = 64
_SANDBOXED = "PodReadyToStartContainers"
"""Condition of pods (KEP-3085, on by default from Kubernetes 1.29)."""
_MOST_CLAIMS, _MOST_CLAIM_USES = 32, 256
"""Claims that are kept in any case, and uses of claims by containers. The uses by containers with several come first:
a claim is checked against these."""
ALL_REQUESTS = ""
"""In place of a request's name: the container uses all requests of the claim."""
_ANOTHER = "another/resource"
"""Stands for all resources of other plugins: a pod can name thousands of them."""
_COUNT = re.compile(r"0{0,59}[1-9][0-9]{0,3}")  # a label has 63 characters at most


class PodName(NamedTuple):
    """Namespace and name: how pod-resources names a pod."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Controller(NamedTuple):
    """The controller of a pod, from the pod's owner references."""

    kind: str
    uid: str


class ContainerRef(NamedTuple):
    """A container of a pod."""

    pod: PodName
    container: str

    def __str__(self) -> str:
        return f"{self.pod}[{self.container}]"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container's limits on extended resources.

    `init` is an ordinary init container; a `sidecar` is an init container that keeps running. `unread` are resources
    with unreadable amounts: for these, only kubelet's allocations show the container's units.
    """

    name: str
    limits: Mapping[str, int]
    init: bool = False
    sidecar: bool = False
    unread: frozenset[str] = frozenset()

    def asks(self, resource: str) -> bool:
        """Whether it requests any units."""
        units = self.limits.get(resource)
        return bool(units) or resource in self.unread

    def may_want(self, resource: str, size: int) -> bool:
        """Whether a request for `size` units may be its own."""
        units = self.limits.get(resource)
        return units == size or resource in self.unread


class FailedRun(NamedTuple):
    """The last run of a container that ended with another exit code than 0.

    Attributes:
        container: its name.
        container_id: tells the run from others of the same container.
        exit_code: of its first process.
    """

    container: str
    container_id: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod bound to this node, as the API server has it."""

    name: PodName
    uid: str
    created: str
    labels: Mapping[str, str]
    containers: tuple[ContainerSpec, ...]
    ended: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Those of `annotations.KEYS`."""
    share_gpus: frozenset[int] | None = None
    """Minor numbers of the GPUs that a scheduler named for its shares; None without a decision."""
    version: str = ""
    """Its resourceVersion."""
    deleting: bool = False
    """The pod has a deletion timestamp; finalizers or its containers still keep it. Kubelet no longer admits it."""
    ends_at: float | None = None
    """When its grace period ends, in seconds since 1970; None while it is not being deleted."""
    controller: Controller | None = None
    rejected: str | None = None
    """Kubelet's message if it failed the pod at admission (`UnexpectedAdmissionError`)."""
    container_ids: Mapping[str, str] = field(default_factory=dict)
    """Id of every container that was started, as the runtime has it (64 hex digits), to its name."""
    failed_runs: tuple[FailedRun, ...] = ()
    """At most one of each container, at most `_MOST_FAILED_RUNS`."""
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of its ResourceClaims, in its namespace, to the containers that use each; at most `_MOST_CLAIM_USES`."""
    claim_requests: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """Name of a claim and container to those of the claim's requests that the container uses, where it is not all."""
    claims_left_out: bool = False
    """Uses of claims are left out, because there are too many, and a container has several claims or requests."""
    sandboxed: bool = False
    """Kubelet has made its sandbox, which it does once the claims are prepared, and again after a reboot."""

    def asks(self, resource: str) -> bool:
        """Whether one of its containers requests any units."""
        return any(container.asks(resource) for container in self.containers)

    @property
    def mirror(self) -> bool:
        """Whether it mirrors a pod from a file of the node, which kubelet does not admit. Any author can set this."""
        return MIRROR_ANNOTATION in self.annotations

    @property
    def app_containers(self) -> tuple[ContainerSpec, ...]:
        """`spec.containers`, in order. Schedulers number these."""
        others = (container for container in self.containers if not container.init)
        return tuple([container for container in others if not container.sidecar])

    @property
    def init_names(self) -> frozenset[str]:
        """Names of the ordinary init containers. Kubelet does not list their devices."""
        return frozenset([container.name for container in self.containers if container.init])

    @property
    def static(self) -> bool:
        """Whether it mirrors a file of the node: kubelet's allocations have another UID for it."""
        return self.controller is not None and self.controller.kind == "Node"

    @property
    def gpu_count_label(self) -> str | None:
        """Raw value of the label `aliyun.com/gpu-count`: number of GPUs over which to spread the pod's memory."""
        return self.labels.get(GPU_COUNT_LABEL)

    @property
    def gpu_count(self) -> int | None:
        """That label's number; None where it is absent or no number of GPUs."""
        return count_of(self.gpu_count_label)


@dataclass(frozen=True)
class Holding:
    """Device ids of one resource that a container holds by kubelet's allocations. No holdings share an id."""

    owner: ContainerRef
    resource: str
    ids: frozenset[str]
    annotated: frozenset[int] | None = None
    """Minor numbers of the GPUs that a scheduler named for the pod, if its plugin assigned these and ignored the ids;
    None if the annotations name none."""

    @cached_property
    def units(self) -> tuple[tuple[UnitId, int], ...]:
        """For each GPU and kind, the unit with the highest number and the count of units; ids of this agent only."""
        blocks: dict[tuple[str, Kind], list[UnitId]] = {}
        for unit in map(parse_id, self.ids):
            if unit is not None:
                of_block = blocks.setdefault((unit.gpu_key, unit.kind), [])
                of_block.append(unit)
        counted = []
        for units in blocks.values():
            highest = max(units, key=_unit_number)
            counted.append((highest, len(units)))
        return tuple(counted)

    @cached_property
    def foreign_ids(self) -> tuple[str, ...]:
        """Ids of other plugins."""
        return tuple(device_id for device_id in self.ids if parse_id(device_id) is None)


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """An allocation in kubelet's checkpoint, which includes init containers and identifies pods by UID.

    Attributes:
        exchanged: its ids to the units in their place, if kubelet did not ask which ids to take (`exchange`).
        gpu_units: how many units of memory its GPUs had in all at the time, by the answer to kubelet; empty if the
            answer does not say.
        kept_env: those of `KEPT_VARIABLES` that the answer to kubelet gave to the container.
        isolation: name of the isolation driver that the container got; empty if it got none.
    """

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    exchanged: Mapping[str, str] = field(default_factory=dict)
    gpu_units: frozenset[int] = frozenset()
    kept_env: Mapping[str, str] = field(default_factory=dict)
    isolation: str = ""


def count_of(label: str | None) -> int | None:
    """A label's number, from 1 to 9999; None where it is absent or something else."""
    if label is None or not _COUNT.fullmatch(label):
        return None
    return int(label)


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


def _containers(spec: Json) -> tuple[ContainerSpec, ...]:
    """Init containers come first, in the order in which kubelet starts all of them."""
    init_containers = mappings(spec.get("initContainers"))
    app_containers = mappings(spec.get("containers"))
    containers = [_init_container(container) for container in init_containers]
    containers += map(_container, app_containers)
    return tuple(containers)


def _is_sandboxed(status: Json) -> bool:
    for condition in mappings(status.get("conditions")):
        is_of_sandbox = condition.get("type") == _SANDBOXED
        if is_of_sandbox and condition.get("status") == "True":
            return True
    return False


def _unit_number(unit: UnitId) -> int:
    return unit.n


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


def _rejected(status: Json) -> str | None:
    """Kubelet's message if it failed the pod at admission."""
    has_failed = status.get("phase") == "Failed"
    is_rejected = has_failed and status.get("reason") == REJECTED
    if not is_rejected:
        return None
    message = text(status.get("message"))
    return message[:_MOST_WORDS]


def _controller(meta: Json) -> Controller | None:
    for owner in mappings(meta.get("ownerReferences")):
        if owner.get("controller") is True:
            kind = text(owner.get("kind"))
            uid = text(owner.get("uid"))
            # Authors can write such a reference by hand. It must not make the agent large.
            has_long_name = max(len(kind), len(uid)) > _MOST_NAME
            return None if has_long_name else Controller(kind, uid)
    return None


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
    # A claim that no container uses is kept, too.
    kept_claims: dict[str, dict[str, None]] = {}
    for claim in islice(claim_of.values(), _MOST_CLAIMS):
        kept_claims[claim] = {}
    requests: dict[tuple[str, str], frozenset[str]] = {}
    for use in islice(chain(of_several, of_single), _MOST_CLAIM_USES):
        kept_claims.setdefault(use.claim, {})[use.container] = None
        user = use.claim, use.container
        requests[user] = requests.get(user, frozenset()) | {use.request}
    return _ClaimUses(
        claims={claim: tuple(containers) for claim, containers in kept_claims.items()},
        # All requests of a claim include those that the container names as well.
        requests={user: names for user, names in requests.items() if ALL_REQUESTS not in names},
        # One of the others may use a claim that a container of several uses too.
        left_out=bool(of_several) and len(uses) > _MOST_CLAIM_USES,
    )


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


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _MOST_NAME


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


def asked(pod: Pod, resource: str) -> int:
    """Maximum units the pod has at one time."""
    return most_at_once(pod.containers, resource)


def most_at_once(containers: Iterable[ContainerSpec], resource: str) -> int:
    """Maximum units of containers at one time: later ones reuse those of init containers, not of sidecars."""
    lasting = 0
    most = 0
    for container in containers:  # init containers and sidecars come first, in the order they start
        units = container.limits.get(resource, 0)
        if container.init:
            most = max(most, lasting + units)
        else:
            lasting += units
    return max(most, lasting)


def requests(
    pods: Iterable[Pod],
    resource: str,
    size: int,
) -> Iterator[tuple[Pod, ContainerSpec]]:
    """Containers of living pods that may request `size` units of `resource`, oldest pod first.

    Pods of one second keep the order in which the agent saw them, which is kubelet's.
    """
    living = [pod for pod in pods if not pod.ended]
    living.sort(key=lambda pod: pod.created)
    for pod in living:
        for container in pod.containers:
            may_be_its_own = container.may_want(resource, size)
            if may_be_its_own:
                yield pod, container
