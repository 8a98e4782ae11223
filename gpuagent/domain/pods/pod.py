"""Pods of this node: their requests (API server) and their devices (kubelet)."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

from gpuagent.domain.pods.annotations import MIRROR_ANNOTATION, bounded, named_for_shares
from gpuagent.domain.pods.json_values import mapping, mappings, text
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
_SANDBOXED = "PodReadyToStartContainers"
"""Condition of pods (KEP-3085, on by default from Kubernetes 1.29)."""
_MOST_CLAIMS = 32
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
        return bool(self.limits.get(resource)) or resource in self.unread

    def may_want(self, resource: str, size: int) -> bool:
        """Whether a request for `size` units may be its own."""
        return self.limits.get(resource) == size or resource in self.unread


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
    controller: Controller | None = None
    rejected: str | None = None
    """Kubelet's message if it failed the pod at admission (`UnexpectedAdmissionError`)."""
    container_ids: Mapping[str, str] = field(default_factory=dict)
    """Id of every container that was started, as the runtime has it (64 hex digits), to its name."""
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of its ResourceClaims, in its namespace, to the containers that use each; at most `_MOST_CLAIMS`."""
    claim_requests: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """Name of a claim and container to those of the claim's requests that the container uses, where it is not all."""
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
        return tuple(c for c in self.containers if not (c.init or c.sidecar))

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
        found: dict[tuple[str, Kind], list[UnitId]] = {}
        for unit in filter(None, map(parse_id, self.ids)):
            found.setdefault((unit.gpu_key, unit.kind), []).append(unit)
        return tuple((max(units, key=lambda unit: unit.n), len(units)) for units in found.values())

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
    """

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    exchanged: Mapping[str, str] = field(default_factory=dict)
    gpu_units: frozenset[int] = frozenset()


def count_of(label: str | None) -> int | None:
    """A label's number, from 1 to 9999; None where it is absent or something else."""
    return int(label) if label is not None and _COUNT.fullmatch(label) else None


def parse_pod(pod: Mapping[str, Any]) -> Pod:
    """Read a Pod object (decoded JSON). Fields that are absent or of another shape count as empty."""
    meta, spec, status = (mapping(pod.get(part)) for part in ("metadata", "spec", "status"))
    annotations = bounded(mapping(meta.get("annotations")))
    containers = [
        *(_first(c, sidecar=c.get("restartPolicy") == "Always") for c in mappings(spec.get("initContainers"))),
        *map(_container, mappings(spec.get("containers"))),
    ]
    return Pod(
        name=PodName(text(meta.get("namespace")), text(meta.get("name"))),
        uid=text(meta.get("uid")),
        created=text(meta.get("creationTimestamp")),
        labels={key: value for key, value in mapping(meta.get("labels")).items() if isinstance(value, str)},
        containers=tuple(containers),
        ended=status.get("phase") in ("Succeeded", "Failed"),
        annotations=annotations,
        share_gpus=named_for_shares(annotations),
        version=text(meta.get("resourceVersion")),
        deleting="deletionTimestamp" in meta,
        controller=_controller(meta),
        rejected=text(status.get("message"))[:_MOST_WORDS] if _is_rejected(status) else None,
        container_ids=_container_ids(status),
        claims=_claims(spec, status),
        claim_requests=_claim_requests(status),
        sandboxed=any(
            one.get("type") == _SANDBOXED and one.get("status") == "True" for one in mappings(status.get("conditions"))
        ),
    )


def kept(pod: Pod, resources: Collection[str]) -> Pod:
    """Reduce a pod to the fields that the agent stores, so that a pod of any size needs little memory.

    The result has the amounts of `resources`; one entry stands for all other resources. A pod that has ended keeps its
    identity, and kubelet's message if kubelet failed it at admission.
    """
    if pod.ended:
        ended = replace(pod, labels={}, annotations={}, share_gpus=None, container_ids={}, containers=())
        return replace(ended, claims={}, claim_requests={})
    containers: list[ContainerSpec] = []
    same: dict[object, ContainerSpec] = {}
    asking = 0
    for position, container in enumerate(pod.containers):
        few = _few(container, resources)
        asks = bool(few.limits or few.unread)
        asking += asks
        # Containers with equal requests share one object.
        alike = same.setdefault((few.init, few.sidecar, few.unread, *few.limits.items()), few)
        named = position < _MOST_OTHERS or (asks and asking <= _MOST_ASKING)
        containers.append(replace(alike, name=container.name) if named else alike)
    return replace(
        pod,
        labels={key: pod.labels[key] for key in _LABELS if key in pod.labels},
        containers=tuple(containers),
        container_ids=dict(islice(pod.container_ids.items(), _MOST_ASKING)),
    )


def _few(container: ContainerSpec, resources: Collection[str]) -> ContainerSpec:
    limits = {name: container.limits[name] for name in resources if name in container.limits}
    if any(name not in resources for name in chain(container.limits, container.unread)):
        limits[_ANOTHER] = 1
    return replace(container, name="", limits=limits, unread=container.unread.intersection(resources))


def _is_rejected(status: Mapping[str, Any]) -> bool:
    return status.get("phase") == "Failed" and status.get("reason") == REJECTED


def _controller(meta: Mapping[str, Any]) -> Controller | None:
    found = next((ref for ref in mappings(meta.get("ownerReferences")) if ref.get("controller") is True), None)
    if found is None:
        return None
    controller = Controller(*(text(found.get(key)) for key in ("kind", "uid")))
    return controller if max(map(len, controller)) <= _MOST_NAME else None


def _container_ids(status: Mapping[str, Any]) -> dict[str, str]:
    """``containerd://<id>`` without the name of the runtime."""
    lists = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    statuses = (found for name in lists for found in mappings(status.get(name)))
    ids = ((text(found.get("containerID")).rpartition("//")[2], text(found.get("name"))) for found in statuses)
    return {container_id: name for container_id, name in ids if container_id}


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Those that the pod names, that were made from its templates, and that stand for its extended resources."""
    users: dict[str, list[str]] = {}
    for kind in ("initContainers", "containers"):
        for container in mappings(spec.get(kind)):
            for used in mappings(mapping(container.get("resources")).get("claims")):
                users.setdefault(text(used.get("name")), []).append(text(container.get("name")))
    named = [*mappings(spec.get("resourceClaims")), *mappings(status.get("resourceClaimStatuses"))]
    found = [(one.get("resourceClaimName"), users.get(text(one.get("name")), [])) for one in named]
    extended = mapping(status.get("extendedResourceClaimStatus"))
    requests = [text(one.get("containerName")) for one in mappings(extended.get("requestMappings"))]
    found.append((extended.get("resourceClaimName"), [*dict.fromkeys(requests)]))
    claims = ((text(name), tuple(containers[:_MOST_CLAIMS])) for name, containers in found)
    return dict(islice((claim for claim in claims if 0 < len(claim[0]) <= _MOST_NAME), _MOST_CLAIMS))


def _claim_requests(status: Mapping[str, Any]) -> dict[tuple[str, str], frozenset[str]]:
    """Of the claim for extended resources, which has a request for each container."""
    extended = mapping(status.get("extendedResourceClaimStatus"))
    found: dict[tuple[str, str], frozenset[str]] = {}
    for one in islice(mappings(extended.get("requestMappings")), _MOST_CLAIMS):
        use = text(extended.get("resourceClaimName")), text(one.get("containerName"))
        if 0 < len(request := text(one.get("requestName"))) <= _MOST_NAME:
            found[use] = found.get(use, frozenset()) | {request}
    return found


def _first(container: Mapping[str, Any], *, sidecar: bool) -> ContainerSpec:
    return replace(_container(container), init=not sidecar, sidecar=sidecar)


def _container(container: Mapping[str, Any]) -> ContainerSpec:
    limits = mapping(mapping(container.get("resources")).get("limits"))
    # Extended resources have a "/" in their name; cpu and memory do not matter here.
    amounts = {name: amount(str(value)) for name, value in limits.items() if "/" in name}
    return ContainerSpec(
        name=text(container.get("name")),
        limits={name: units for name, units in amounts.items() if units},
        unread=frozenset(name for name, units in amounts.items() if units is None),
    )


def asked(pod: Pod, resource: str) -> int:
    """Maximum units the pod has at one time."""
    return most_at_once(pod.containers, resource)


def most_at_once(containers: Iterable[ContainerSpec], resource: str) -> int:
    """Maximum units of containers at one time: later ones reuse those of init containers, not of sidecars."""
    lasting = most = 0
    for container in containers:  # init containers and sidecars come first, in the order they start
        units = container.limits.get(resource, 0)
        lasting += 0 if container.init else units
        most = max(most, lasting + (units if container.init else 0))
    return most


def requests(pods: Iterable[Pod], resource: str, size: int) -> Iterator[tuple[Pod, ContainerSpec]]:
    """Containers of living pods that may request `size` units of `resource`, oldest pod first.

    Pods of one second keep the order in which the agent saw them, which is kubelet's.
    """
    for pod in sorted((p for p in pods if not p.ended), key=lambda p: p.created):
        for container in pod.containers:
            if container.may_want(resource, size):
                yield pod, container
