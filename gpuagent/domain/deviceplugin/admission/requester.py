"""Who a call is for: a container, or what is known of one that the agent cannot name."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuagent.domain.pods.pod import ContainerRef, ContainerSpec, Pod, PodName, asked
from gpuagent.domain.scheduling.decision import Decision, Ignored, decided_text
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL, VISIBLE_ANNOTATION, Kind
from gpuagent.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """`size` device ids of `resource` for one container.

    Attributes:
        offered: ids that are free by kubelet's account.
        must_include: ids among them that the answer must include.
    """

    resource: str
    size: int
    offered: frozenset[str] = frozenset()
    must_include: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Requester:
    """The container that a call is for.

    Attributes:
        pod: its pod; None where the agent has not seen it.
        container: None with `pod`.
        container_gpus: UUIDs of the GPUs that this container already has for the mode's other resource.
        init_gpus: UUIDs of the GPUs of the pod's init containers, whose units kubelet reuses for later ones.
        certain: kubelet's list confirms the pod, or it is the only one that fits.
        sidecar_gpus: UUIDs of the GPUs of the pod's sidecars.
    """

    pod: Pod | None = None
    container: ContainerSpec | None = None
    container_gpus: frozenset[str] = frozenset()
    init_gpus: frozenset[str] = frozenset()
    certain: bool = False
    sidecar_gpus: frozenset[str] = frozenset()

    @property
    def owner(self) -> ContainerRef | None:
        if self.pod is None or self.container is None:
            return None
        return ContainerRef(self.pod.name, self.container.name)

    @property
    def pod_name(self) -> PodName | None:
        return self.pod.name if self.pod else None

    def units_for_later_containers(self, resource: str) -> int:
        """Units of the pod's largest container; 0 unless this is an init container.

        Kubelet reuses the units of an init container for the later ones, so its GPU should have room for each of them.
        """
        if self.pod is None or self.container is None:
            return 0
        if not self.container.init:
            return 0
        return max([container.limits.get(resource, 0) for container in self.pod.containers])

    def groups_beside_sidecar(self) -> Sequence[Sequence[ContainerSpec]]:
        """Containers to have on one GPU, the best group first: this sidecar with all later ones, or with the largest.

        Empty if this container is not a sidecar. Kubelet asks for sidecars first.
        """
        if self.pod is None or self.container is None:
            return ()
        if not self.container.sidecar:
            return ()
        place = self.pod.containers.index(self.container)
        after = self.pod.containers[place + 1 :]
        apps_and_sidecars = [container for container in after if not container.init]
        later = [container for container in apps_and_sidecars if container.limits]
        if not later:
            return ()
        largest = max(later, key=_total_units)
        return [self.container, *later], [self.container, largest]

    def _amounts_beside(self) -> tuple[object, ...]:
        """The amounts of `groups_beside_sidecar`, to compare."""
        if self.container is None or not self.container.sidecar:
            return ()
        amounts = [_amounts(containers) for containers in self.groups_beside_sidecar()]
        return tuple(amounts)

    def units_of_other_resource(self, resource: str, resource_kinds: Collection[str]) -> int:
        """Units of the mode's other resource for this container, or for the largest one that may reuse its GPU."""
        if self.pod is None or self.container is None:
            return 0
        others = [name for name in resource_kinds if name != resource]
        asking = self.pod.containers if self.container.init else (self.container,)
        most = 0
        for container in asking:
            units = sum([container.limits.get(name, 0) for name in others])
            most = max(most, units)
        return most

    def constraints(self, resource: str, resource_kinds: Mapping[str, Kind]) -> tuple[object, ...]:
        """Everything that the choice of GPUs depends on, except the amount and a scheduler's decision."""
        if self.pod is None:
            return (self.container_gpus,)
        own = (
            self.container_gpus,
            self.init_gpus,
            self.sidecar_gpus,
            self._amounts_beside(),
            self.units_for_later_containers(resource),
            self.units_of_other_resource(resource, resource_kinds),
            self.pod.gpu_count_label,
        )
        kind = resource_kinds.get(resource)
        if kind is None or not kind.is_whole:
            return own
        return (
            *own,
            decided_text(self.pod, GROUP_ANNOTATION),
            decided_text(self.pod, VISIBLE_ANNOTATION),
            _job_key(self.pod),
            asked(self.pod, resource),
        )

    def decision(self, snap: Snapshot) -> Decision | Ignored | None:
        """The scheduler's decision for the pod, if there is one; not that of a newer pod of its name."""
        if self.pod is None or self.pod.uid not in snap.pod_index.by_uid:
            return None
        return snap.schedulers.decisions.get(self.pod.name)

    def decided_gpus(self, resource: str, snap: Snapshot) -> frozenset[str] | str | None:
        """GPUs that a scheduler chose for the container, or why it can get none; None where it chose none."""
        decision = self.decision(snap)
        if self.container is None or not isinstance(decision, Decision):
            return None
        if decision.unmet:
            return decision.unmet
        own_name = self.container.name
        # Decisions name no init containers. One whose units are reused gets the GPUs of the container that reuses them.
        name = decision.follows.get((own_name, resource), own_name)
        gpus = decision.units.get((name, resource))
        return None if gpus is None else frozenset(gpus)


def _amounts(containers: Iterable[ContainerSpec]) -> tuple[object, ...]:
    return tuple([tuple(container.limits.items()) for container in containers])


def _total_units(container: ContainerSpec) -> int:
    return sum(container.limits.values())


def _job_key(pod: Pod) -> object:
    """What is equal for the pods of one job that are alike; the same for all pods without a job."""
    job = pod.labels.get(JOB_LABEL)
    if not job:
        return job
    return pod.name.namespace, job, pod.labels.get(REPLICAS_LABEL)


@dataclass(frozen=True, slots=True)
class Unknown(Requester):
    """A container that the agent cannot name. Each subclass says what is known of it.

    Attributes:
        why: completes the message "The agent cannot identify the requesting pod: ".
        maybe_decided: a scheduler may have decided on its pod. The container gets nothing then, because any GPU could
            break that decision.
        candidates: the decided pods, of those that the agent has seen, that may be the one that asks.
        deleted: a deleted pod that kubelet may still be admitting. This call ends its admission.
    """

    why: str = field(kw_only=True)
    maybe_decided: bool = field(kw_only=True)
    candidates: tuple[PodName, ...] = field(default=(), kw_only=True)
    deleted: Pod | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class UnseenPod(Unknown):
    """No pod that the agent has seen fits. The watch may show the pod soon."""


@dataclass(frozen=True, slots=True)
class HiddenPod(Unknown):
    """A decided pod may ask, but what kubelet lists under its name are the devices of a former pod."""


@dataclass(frozen=True, slots=True)
class UnconfirmedPod(Unknown):
    """Pods fit by the agent's record, but kubelet does not say which of them it admits.

    Attributes:
        maybe_undecided: it may be a pod that no scheduler decided on.
    """

    maybe_undecided: bool = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class UnorderedPods(Unknown):
    """Kubelet lists several pods that fit. It admits the one that came to it last, and has rejected the others.

    The agent saw them in one list, so it does not know which came last. The API server soon shows the others as failed.

    Attributes:
        pods: UIDs of the listed pods.
    """

    pods: frozenset[str] = field(kw_only=True)
