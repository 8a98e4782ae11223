"""Whether the limits that a running pod requests can be granted at all, whatever units are free."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.domain.deviceplugin.memory_shares import spread
from gpuagent.domain.deviceplugin.resize.resize_allocations import AllocatedMemory, Limits
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, Malformed
from gpuagent.domain.pods.memory_limit import memory_limits
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.sharing.mode import GPU_MEM, Kind, Mode
from gpuagent.domain.sharing.units import units_of
from gpuagent.domain.state import State

IMMUTABLE_CLAIM = (
    "its memory is of a ResourceClaim, and resource.k8s.io/v1 has no change of a claim that is allocated: "
    "create a pod with another claim"
)


@dataclass(frozen=True, slots=True)
class NotGranted:
    """Why a request is not granted. Its `cause` stays the same while amounts in the text change."""

    cause: str
    text: str


@dataclass(frozen=True, slots=True)
class Goal:
    """Where the limits of a pod are to go.

    Attributes:
        limits: of the containers that are to differ from kubelet's allocations; None: what is in force stays.
        problem: why these are not the requested limits; None if they are.
    """

    limits: Limits | None
    problem: NotGranted | None = None


class ResizeRequests:
    """The requests of pods.

    Args:
        state: the agent's.
        by_key: the GPUs that the driver lists.
    """

    def __init__(self, state: State, by_key: Mapping[str, Gpu]) -> None:
        self._state = state
        self._by_key = by_key

    def goal(self, pod: Pod, allocated: AllocatedMemory) -> Goal:
        """The goal of the pod's annotation."""
        text = pod.annotations.get(LIMIT_ANNOTATION)
        if text is None:
            return Goal({})
        if not self._state.policy.live_resize:
            problem = "live resizing is off on this node: the agent's setting --live-resize turns it on"
            return Goal({}, NotGranted("off", problem))
        unfit = self._unfit_pod(pod, allocated)
        if unfit:
            return Goal(None, unfit)
        limits = memory_limits(text, allocated.lasting)
        if isinstance(limits, Malformed):
            return Goal(None, NotGranted("text", limits.problem))
        for container, units in limits.items():
            unfit = self._unfit_container(pod, allocated, container, units)
            if unfit:
                return Goal(None, unfit)
        return Goal({name: units for name, units in limits.items() if units != allocated.units(name)})

    def _unfit_pod(self, pod: Pod, allocated: AllocatedMemory) -> NotGranted | None:
        """Why no limit of this pod can be changed."""
        if pod.static:
            return NotGranted("static", "it is a static pod: change its file on the node instead")
        if self._state.holdings.counts_only:
            return NotGranted("kubelet", "kubelet before 1.19 does not say which units a container has")
        if allocated.lasting:
            return None
        if self._claimed_containers(pod):
            return NotGranted("claim", IMMUTABLE_CLAIM)
        if not pod.container_ids or not self._state.holdings.recorded:
            # Kubelet has not recorded its devices yet, or its checkpoint cannot be read.
            return NotGranted("", "")
        return NotGranted("share", f"none of its containers has a share: kubelet has allocated no {GPU_MEM} to them")

    def _claimed_containers(self, pod: Pod) -> set[str]:
        """Names of the pod's containers that use a claim of this agent."""
        prepared = {(claim.namespace, claim.name) for claim in self._state.claims.prepared.values()}
        containers: set[str] = set()
        for claim, users in pod.claims.items():
            if (pod.name.namespace, claim) in prepared:
                containers.update(users)
        return containers

    def _unfit_container(self, pod: Pod, allocated: AllocatedMemory, name: str, units: int) -> NotGranted | None:
        """Why the limit of a container cannot be that many units."""
        on_gpus = allocated.lasting.get(name)
        if on_gpus is None:
            if name in self._claimed_containers(pod):
                return NotGranted("claim", f"container {name}: {IMMUTABLE_CLAIM}")
            others = ", ".join(sorted(allocated.lasting))
            return NotGranted("container", f"container {name} has no {GPU_MEM} by kubelet's allocations; {others} has")
        if units % len(on_gpus):
            text = f"{name}={units} cannot be spread evenly over the {len(on_gpus)} GPUs of the container"
            return NotGranted("spread", f"{text}: write a multiple of {len(on_gpus)}")
        for (key, kind), limit in spread(on_gpus, units).items():
            problem = self._unfit_mode(kind.mode) or self._unfit_gpu(key, kind, name, limit)
            if problem:
                return problem
        return None

    def _unfit_gpu(self, key: str, kind: Kind, name: str, limit: int) -> NotGranted | None:
        """Why a container cannot have that many units of one of its GPUs."""
        gpu = self._by_key.get(key)
        if gpu is None:
            return NotGranted("gpu", f"container {name} has units of a GPU that the driver does not list")
        has = units_of(gpu, kind, self._state.policy.unit)
        if limit <= has:
            return None
        text = f"{words(limit, self._state)} for {name} is more than GPU {gpu.index} has"
        return NotGranted("size", f"{text}: {words(has, self._state)}")

    def _unfit_mode(self, mode: Mode) -> NotGranted | None:
        """Why no limit can be changed in a mode."""
        layer = self._state.layer_of(mode)
        if layer.limits_pods:
            return None
        text = f"isolation driver {layer.driver} of mode {mode} cannot change the limit of a container that runs"
        return NotGranted("driver", f"{text}: driver limits can, which needs NVIDIA's driver 615 or later")


def words(units: int, state: State) -> str:
    """An amount with its unit, such as ``12 GiB``."""
    return f"{units} {state.policy.unit.phrase}"
