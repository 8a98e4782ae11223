"""The rules for devices that kubelet picked: which of them a container may have.

Kubelet usually follows the agent's own choice, which satisfies the rules already. These checks are for all others:
kubelet may ignore the choice, repeat an allocation when a container restarts, or use ids that it has reserved before.
"""

from collections.abc import Collection, KeysView
from typing import NamedTuple

from gpuagent.domain.deviceplugin.admission.recent_allocations import InUse
from gpuagent.domain.deviceplugin.admission.requester import AllocationRequest, Requester, UnconfirmedPod, Unknown
from gpuagent.domain.deviceplugin.decided_gpus import decision_of, in_doubt
from gpuagent.domain.deviceplugin.job import named_for_others, named_gpus
from gpuagent.domain.deviceplugin.located import Located
from gpuagent.domain.deviceplugin.mode_rules import check_core_mem, not_offered
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.annotations import shown
from gpuagent.domain.pods.pod import requests
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, Mode, other_resource
from gpuagent.domain.snapshot import Snapshot


class PickedDevices(NamedTuple):
    """Devices that kubelet picked for a container.

    Attributes:
        request: kubelet's; it must include all of its ids.
        located: the GPUs of these ids.
        requester: the container.
        before: the allocation that has these ids already; None if they are free.
        occupancy: the devices in use.
    """

    request: AllocationRequest
    located: Located
    requester: Requester
    before: InUse | None
    occupancy: Occupancy

    @property
    def resource(self) -> str:
        return self.request.resource

    @property
    def snap(self) -> Snapshot:
        return self.occupancy.snapshot

    @property
    def uuids(self) -> KeysView[str]:
        """UUIDs of the GPUs, in index order."""
        return self.located.counts.keys()


def check_free(picked: PickedDevices) -> None:
    """Refuse devices that have gone to others while kubelet, or the agent itself, was choosing."""
    snap = picked.snap
    # Most nodes have neither, and each Allocate comes by here.
    if snap.claimed:
        _check_unclaimed(picked)
    if snap.resizes.closed:
        _check_not_withheld(picked)


def check_rules(picked: PickedDevices) -> None:
    """Check devices that the agent has not just chosen against the rules of the mode, and schedulers' decisions.

    Raises:
        Refusal: they break one.
    """
    is_new = picked.before is None
    if is_new:
        _check_certain(picked)
    _check_offered(picked)
    if not _is_of_other_pod(picked):
        _check_pair(picked)
    # The other rules may have changed since the first Allocate, which the container's restart must survive.
    if not is_new:
        return
    _check_decided(picked)
    check_core_mem(picked.resource, picked.request.size, picked.requester, picked.snap)
    if not picked.located.kind.is_whole:
        _check_sharers(picked)


def _check_unclaimed(picked: PickedDevices) -> None:
    """Refuse GPUs that ResourceClaims have: one front end gives a GPU at a time."""
    claimed = picked.snap.claimed & picked.uuids
    if claimed:
        text = f"{picked.resource}: {_gpus(claimed, picked.snap)} is still in use by ResourceClaims"
        raise Refusal(Reason.STILL_HELD, text)


def _check_not_withheld(picked: PickedDevices) -> None:
    """Refuse units that a resized pod has: kubelet has picked them before it heard that they leave the list."""
    resizes = picked.snap.resizes
    lost = resizes.closed.intersection(picked.request.must_include)
    if lost:
        owner = resizes.owner_of(min(lost))
        text = f"{picked.resource}: kubelet picked {len(lost)} units that have just gone to pod {owner}"
        raise Refusal(Reason.STILL_HELD, f"{text}, whose limit was raised. Create the pod again")


def _check_certain(picked: PickedDevices) -> None:
    """Refuse if a scheduler may have chosen other GPUs for the container: the agent cannot name its pod."""
    requester = picked.requester
    if not isinstance(requester, Unknown) or not requester.maybe_decided:
        return
    if isinstance(requester, UnconfirmedPod) and requester.maybe_undecided:
        # A pod without a decision may take GPUs that are in no pod's decision.
        reserved = picked.occupancy.reserved(picked.resource, None)
        decided = {*reserved, *named_for_others(None, picked.resource, picked.occupancy)}
        if decided.isdisjoint(picked.uuids):
            return
    raise in_doubt(picked.resource, requester)


def _check_offered(picked: PickedDevices) -> None:
    """New units must be listed, and on one GPU unless the pod requests a spread. Units allocated before pass."""
    resource = picked.resource
    snap = picked.snap
    before = picked.before
    # Kubelet repeats a whole allocation for a container that starts again.
    if before and before.ids == picked.request.must_include:
        return
    # Until the agent has read kubelet's allocations, no unit is listed. Kubelet can then request only units that it
    # allocated before a restart.
    is_unlisted = before is None and not picked.located.listed
    if is_unlisted and snap.holdings_known:
        raise not_offered(resource, snap)
    kind = snap.resource_kinds.get(resource)
    if kind is None or kind.is_whole:
        return
    counts = picked.located.counts
    if len(counts) == 1 or _is_spread_asked_for(picked):
        return
    on_gpus = [f"{count} on GPU {snap.gpus[uuid].index}" for uuid, count in counts.items()]
    text = (
        f"{resource}: kubelet picked units of several GPUs for one container ({', '.join(on_gpus)}). A share stays "
        "on one GPU unless the pod label aliyun.com/gpu-count asks for an even spread, and in mode core_mem always"
    )
    raise Refusal(Reason.SPANS_GPUS, text)


def _is_spread_asked_for(picked: PickedDevices) -> bool:
    """Whether a pod requests that many units, spread evenly over that many GPUs."""
    located = picked.located
    # Kubelet's device list from before a mode switch may still have units of mode core_mem.
    if located.kind.mode is Mode.CORE_MEM:
        return False
    amounts = set(located.counts.values())
    if len(amounts) > 1:
        return False
    # The agent has not identified the pod, so any pod with this label and amount justifies the spread.
    asking = requests(picked.snap.pods, picked.resource, picked.request.size)
    return any(pod.gpu_count == len(located.counts) for pod, _ in asking)


def _is_of_other_pod(picked: PickedDevices) -> bool:
    """Whether another pod holds the ids already: kubelet may request such ids again."""
    before = picked.before
    if before is None or before.owner is None:
        return False
    return before.owner.pod != picked.requester.pod_name


def _check_pair(picked: PickedDevices) -> None:
    """Refuse another GPU than that of the container's other resource."""
    container_gpus = picked.requester.container_gpus
    if not container_gpus or picked.located.kind.is_whole:
        return
    if container_gpus != picked.uuids:
        other = other_resource(picked.resource)
        raise apart(picked.resource, other, container_gpus, picked.uuids, picked.snap)


def _check_decided(picked: PickedDevices) -> None:
    """Refuse if a scheduler chose other GPUs than kubelet picked."""
    requester = picked.requester
    resource = picked.resource
    uuids = picked.uuids
    text = f"{resource}: kubelet picked {_gpus(uuids, picked.snap)} for {requester.owner}"
    # A container may have a part of the pod's whole GPUs, but a share has exactly those of its decision.
    if requester.pod and picked.located.kind.is_whole:
        named = named_gpus(requester.pod, resource, picked.snap)
        if named is not None and not uuids <= named:
            value = shown(requester.pod.annotations[GROUP_ANNOTATION])
            reason = f"the pod's annotation {GROUP_ANNOTATION} names others: {value}"
            raise Refusal(Reason.GPU_GROUP, f"{text}, and {reason}")
        return
    decided = decision_of(requester, resource, picked.snap)
    if decided and uuids != decided.uuids:
        raise Refusal(Reason.GPU_DECISION, f"{text}, and {decided.words}")


def _check_sharers(picked: PickedDevices) -> None:
    """Refuse a GPU that has as many pods or containers as allowed."""
    snap = picked.snap
    full = picked.occupancy.full_gpus(picked.requester.owner) & picked.uuids
    if full:
        text = f"{picked.resource}: kubelet picked {_gpus(full, snap)}, which has {snap.most_sharers} already"
        raise Refusal(Reason.TOO_MANY_PODS, f"{text}, the most allowed")


def apart(
    resource: str,
    other: str,
    uuids: Collection[str],
    picked: Collection[str],
    snap: Snapshot,
) -> Refusal:
    """The refusal where kubelet `picked` another GPU than the one (`uuids`) of the container's `other` resource."""
    text = f"{resource}: kubelet picked {_gpus(picked, snap)}, but the container's {other} is on {_gpus(uuids, snap)}"
    return Refusal(Reason.PAIR_APART, text)


def _gpus(uuids: Collection[str], snap: Snapshot) -> str:
    indexes = [str(snap.gpus[uuid].index) for uuid in uuids]
    return "GPU " + ", ".join(indexes)
