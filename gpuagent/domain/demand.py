"""Whose request is this? What the pods of the node say about a call that carries only device ids.

Kubelet names no pod in its calls. It admits one pod at a time, oldest first, and asks for all resources of a
container one after the other; so the oldest container of the right size that was not served yet is the likely one.
The answer steers a choice and names a pod in a message; certain identity comes with PreStartContainer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.ledger import Handout
from gpuagent.domain.mode import GPU_COUNT_LABEL, Kind
from gpuagent.domain.pods import ContainerSpec, Owner, Pod, requests
from gpuagent.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Demand:
    """What is believed of the container behind a request.

    Attributes:
        owner: the container; None if no pod of the node asks for this much.
        gpu_count: over how many GPUs the request is to be spread evenly.
        room: units that the largest container of the pod will want on the GPU an init container is put on:
            kubelet hands an init container's devices on to the containers after it.
        other: units of the mode's other resource that the same container asks for.
        pinned: UUIDs of GPUs whose units kubelet will reuse for this container.
    """

    owner: Owner | None = None
    gpu_count: int = 1
    room: int = 0
    other: int = 0
    pinned: tuple[str, ...] = ()


def demand(resource: str, size: int, claims: Claims) -> Demand:
    """The oldest container that asks for `size` of `resource` and was not served.

    Raises:
        Refusal: the pod's label `aliyun.com/gpu-count` cannot be honoured.
    """
    for pod, container in _unserved(resource, size, claims):
        return _demand_of(pod, container, resource, size, claims)
    return Demand()


def is_known(resource: str, size: int, claims: Claims) -> bool:
    """Whether a pod that was not served yet asks for this; if not, our watch lags behind kubelet's."""
    return any(True for _ in _unserved(resource, size, claims))


def _unserved(resource: str, size: int, claims: Claims) -> Iterator[tuple[Pod, ContainerSpec]]:
    served = claims.served(resource)
    for pod, container in requests(claims.snapshot.pods, resource, size):
        if Owner(pod.name, container.name) not in served:
            yield pod, container


def _demand_of(pod: Pod, container: ContainerSpec, resource: str, size: int, claims: Claims) -> Demand:
    snapshot = claims.snapshot
    init = {Owner(pod.name, c.name) for c in pod.containers if c.init}
    return Demand(
        owner=Owner(pod.name, container.name),
        gpu_count=_gpu_count(pod, resource, size, snapshot),
        room=max(c.limits.get(resource, 0) for c in pod.containers) if container.init else size,
        other=sum(container.limits.get(name, 0) for name in snapshot.sold if name != resource),
        pinned=tuple(uuid for h in claims.ledger.recent(claims.now) if h.owner in init for uuid in h.uuids),
    )


def _gpu_count(pod: Pod, resource: str, size: int, snapshot: Snapshot) -> int:
    count, kind = pod.gpu_count, snapshot.sold.get(resource)
    if pod.gpu_count_label is None or kind is None or kind.is_whole:
        return 1
    said = f"pod {pod.name}: label {GPU_COUNT_LABEL}={pod.gpu_count_label!r}"
    if count is None:
        raise Refusal(Reason.GPU_COUNT, f"{said} is not a number of GPUs; set it to 1 or more, or remove it")
    if count > 1 and kind in {Kind.MEMORY_CORE_MEM, Kind.CORE_CORE_MEM}:
        raise Refusal(Reason.GPU_COUNT, f"{said} cannot be combined with mode core_mem: one container, one GPU there")
    if size % count:
        text = f"{said} does not divide {size} units of {resource}; ask for a multiple of {count}"
        raise Refusal(Reason.GPU_COUNT, text)
    return count


def spread_was_asked(resource: str, size: int, count: int, snapshot: Snapshot) -> bool:
    """Some pod of the node wants `size` units of `resource` spread over `count` GPUs."""
    return any(pod.gpu_count == count for pod, _ in requests(snapshot.pods, resource, size))


def same_container(first: Handout, resource: str, size: int, snapshot: Snapshot) -> Iterator[Owner]:
    """Containers that ask for both: what `first` gave, and `size` of `resource`."""
    for pod, container in requests(snapshot.pods, resource, size):
        if container.limits.get(first.resource) == len(first.ids):
            yield Owner(pod.name, container.name)


def asks_alone(first: Handout, resource: str, snapshot: Snapshot) -> bool:
    """Some container asks for what `first` gave and for none of `resource`: it may be the one served."""
    return any(
        not container.limits.get(resource) for _, container in requests(snapshot.pods, first.resource, len(first.ids))
    )
