"""Pods of this node: their requests (API server) and their devices (kubelet)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from gpuagent.domain.pods.annotations import MIRROR_ANNOTATION
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Kind
from gpuagent.domain.sharing.units import UnitId, parse_id

REJECTED = "UnexpectedAdmissionError"
"""The status reason of a pod for which kubelet got no devices. Kubelet never retries that pod."""

ALL_REQUESTS = ""
"""In place of a request's name: the container uses all requests of the claim."""
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


def _unit_number(unit: UnitId) -> int:
    return unit.n


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
