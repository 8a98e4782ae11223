"""What kubelet asks for, and the container that it asks for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuagent.domain.mode import GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL, VISIBLE_ANNOTATION, Kind
from gpuagent.domain.pods import ContainerSpec, Owner, Pod, PodName, asked


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """`size` device ids of `resource` for one container.

    Attributes:
        offered: ids that are free by kubelet's account.
        fixed: ids among them that the answer must include.
    """

    resource: str
    size: int
    offered: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Requester:
    """The container that a call is for.

    Attributes:
        pod: its pod; None where the agent has not seen it.
        container: None with `pod`.
        paired: UUIDs of the GPUs of the container's other resource, if it has that already.
        handed_on: UUIDs of the GPUs of the pod's init containers, whose units kubelet hands on to later containers.
        certain: kubelet's allocations name the pod, or no other could be meant.
    """

    pod: Pod | None = None
    container: ContainerSpec | None = None
    paired: frozenset[str] = frozenset()
    handed_on: frozenset[str] = frozenset()
    certain: bool = False

    @property
    def owner(self) -> Owner | None:
        return Owner(self.pod.name, self.container.name) if self.pod and self.container else None

    @property
    def pod_name(self) -> PodName | None:
        return self.pod.name if self.pod else None

    def room(self, resource: str) -> int:
        """Units that the largest container to reuse this one's GPU asks for; 0 unless it is an init container."""
        if self.pod is None or self.container is None or not self.container.init:
            return 0
        return max(container.limits.get(resource, 0) for container in self.pod.containers)

    def other(self, resource: str, sold: Collection[str]) -> int:
        """Units of the mode's other resource that this container, or one that reuses its GPU, asks for."""
        if self.pod is None or self.container is None:
            return 0
        asking = self.pod.containers if self.container.init else (self.container,)
        return max(sum(c.limits.get(name, 0) for name in sold if name != resource) for c in asking)

    def constraints(self, resource: str, sold: Mapping[str, Kind]) -> tuple[object, ...]:
        """What the choice of its GPUs depends on besides the amount and a scheduler's decision."""
        if self.pod is None:
            return (self.paired,)
        needs = self.room(resource), self.other(resource, sold) if len(sold) > 1 else 0
        own = self.paired, self.handed_on, *needs, self.pod.gpu_count_label
        if resource not in sold or not sold[resource].is_whole:
            return own
        named = (self.pod.annotations.get(key) for key in (GROUP_ANNOTATION, VISIBLE_ANNOTATION))
        job = self.pod.labels.get(JOB_LABEL)
        job_key = job and (self.pod.name.namespace, job, self.pod.labels.get(REPLICAS_LABEL))
        return *own, *named, job_key, asked(self.pod, resource)
