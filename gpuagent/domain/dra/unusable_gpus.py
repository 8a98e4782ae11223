"""Why a claim must not be prepared with a GPU, although the scheduler gave it the GPU.

The GPU became unusable after that, or the API server does not keep taints. This follows the rule for usable GPUs, with
two differences: a claim may tolerate a fault with which the GPU still answers, and a claim of an administrator also the
fence. A toleration alone does not lift the fence, because every tenant can write one.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuagent.domain.dra.device_taints import FENCED_TAINT, UNHEALTHY_TAINT, taint, taints
from gpuagent.domain.dra.prepare import tolerations_of
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.health_verdict import GpuHealth
from gpuagent.domain.pods.json_values import text
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.claim import ClaimedGpu
from gpuagent.domain.state import State
from gpuagent.domain.usable_gpus import has_shrunk

Json = Mapping[str, Any]

ADMIN_LABEL = "resource.kubernetes.io/admin-access"
"""With the value ``true``, it marks the namespaces of administrators, also for Kubernetes: only these may have requests
with `adminAccess`. Source: k8s.io/api/resource/v1, DRAAdminNamespaceLabelKey."""
_UNREAD_NAMESPACE = (
    f"The claim tolerates {FENCED_TAINT}, and the agent cannot read whether its namespace has that label: look at the "
    "agent's log"
)
# kube-controller-manager takes the allocation back when the last pod of the claim is gone.
_ANOTHER_GPU = "To get another GPU, delete every pod of the claim, and create them again"


@dataclass(frozen=True, slots=True)
class Unusable:
    """A GPU of a claim that is not usable now.

    Attributes:
        message: the GPU's name, the reason, and what to do.
        passing: it may become usable without an operator, so it pays to wait.
    """

    message: str
    passing: bool = False

    @property
    def refusal(self) -> Refusal:
        """The answer to kubelet."""
        return Refusal(Reason.GPU_UNUSABLE, self.message)


def tolerates_fence(claim: Json) -> bool:
    """Whether a device of the claim was given with a toleration of the fence."""
    return _tolerate_fence(tolerations_of(claim))


def _tolerate_fence(tolerations: Iterable[Json]) -> bool:
    fence = taint(FENCED_TAINT)
    return any(_tolerates(toleration, fence) for toleration in tolerations)


def unusable_gpu(
    claim: Json,
    gpus: Iterable[ClaimedGpu],
    kept: Collection[str],
    state: State,
    *,
    of_administrators: bool | None = False,
) -> Unusable | None:
    """The first GPU with which the claim must not be prepared; one for which no wait helps comes first.

    Args:
        claim: the ResourceClaim.
        gpus: what the claim has. GPUs with adminAccess are for monitors, which look at GPUs in any condition.
        kept: UUIDs of the GPUs with which the claim is prepared already. Its running pods are not disturbed.
        state: of the agent.
        of_administrators: the claim's namespace has the label `ADMIN_LABEL`; None if it cannot be read.
    """
    reasons = []
    for claimed in gpus:
        if claimed.admin or claimed.uuid in kept:
            continue
        gpu = state.gpus.by_uuid[claimed.uuid]
        tolerations = tolerations_of(claim, claimed.device)
        tolerates = _tolerate_fence(tolerations)
        may_pass_fence = tolerates and of_administrators is True
        unusable = _unusable(gpu, tolerations, state, may_pass_fence=may_pass_fence)
        if unusable is not None and tolerates and of_administrators is None:
            unusable = replace(unusable, message=f"{unusable.message}. {_UNREAD_NAMESPACE}")
        if unusable is not None:
            reasons.append(unusable)
    return min(reasons, key=lambda unusable: unusable.passing, default=None)


def _unusable(gpu: Gpu, tolerations: Iterable[Json], state: State, *, may_pass_fence: bool) -> Unusable | None:
    fenced = "" if may_pass_fence else state.gpus.fenced.get(gpu.uuid)
    if gpu.mig:
        return Unusable(
            f"{gpu} is in MIG mode, and claims are for GPUs without it: "
            f"disable it with nvidia-smi --id={gpu.index} -mig 0. {_ANOTHER_GPU}"
        )
    if fenced:
        return Unusable(
            f"{gpu} is {fenced}, and new claims do not get it: "
            f"take the entry out of {state.policy.fence_file}. A claim that tolerates {FENCED_TAINT} gets it in a "
            f"namespace with the label {ADMIN_LABEL}=true. {_ANOTHER_GPU}"
        )
    if has_shrunk(gpu, state):
        return Unusable(
            f"{gpu} has less memory than when the agent started, and new claims do not get it until the agent has "
            f"restarted. {_ANOTHER_GPU}"
        )
    if not _is_away(gpu, state) and not _has_fault(gpu, tolerations, state):
        return None
    cause = state.unhealthy[gpu.uuid]
    return Unusable(
        f"{gpu} cannot be used now: {cause}. The claim is prepared when the GPU is usable: "
        f"look at nvidia-smi and dmesg on the node. {_ANOTHER_GPU}",
        passing=True,
    )


def _is_away(gpu: Gpu, state: State) -> bool:
    """Whether no container can use the GPU, whatever its claim tolerates."""
    health = state.health.by_uuid.get(gpu.uuid, GpuHealth())
    return state.gpus.driver_gone or health.is_away


def _has_fault(gpu: Gpu, tolerations: Iterable[Json], state: State) -> bool:
    """Whether the GPU has a fault that the claim does not tolerate.

    A fault that has ended is not a reason: the GPU works while it settles, and the claim would only start later.
    """
    health = state.health.by_uuid.get(gpu.uuid, GpuHealth())
    if not health.against:
        return False
    return not _tolerates_fault(gpu, tolerations, state)


def _tolerates_fault(gpu: Gpu, tolerations: Iterable[Json], state: State) -> bool:
    """As the scheduler decides it. Source: k8s.io/dynamic-resource-allocation/resourceclaim, ToleratesTaint."""
    for of_gpu in taints(gpu, state):
        if of_gpu["key"] == UNHEALTHY_TAINT:
            return any(_tolerates(toleration, of_gpu) for toleration in tolerations)
    return False


def _tolerates(toleration: Json, taint: Json) -> bool:
    effect = text(toleration.get("effect"))
    if effect not in {"", taint["effect"]}:
        return False
    key = text(toleration.get("key"))
    if key not in {"", taint["key"]}:
        return False
    operator = text(toleration.get("operator")) or "Equal"
    if operator == "Exists":
        return True
    if operator != "Equal":
        return False
    value = text(toleration.get("value"))
    has_value: bool = taint.get("value", "") == value
    return has_value
