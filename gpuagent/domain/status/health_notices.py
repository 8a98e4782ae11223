"""Announcements to the pods that hold a GPU: it has a new fault, has recovered, is fenced or no longer fenced."""

from collections.abc import Iterator
from dataclasses import replace

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.pods.holdings import located
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.state import State


def health_notices(before: State, after: State) -> Iterator[Announcement]:
    """Announce each recovery to the node, and each change of health or fence to the pods that hold the GPU."""
    notices = [*_fault_notices(before, after), *_fence_notices(before, after)]
    if not notices:
        return
    holders = _holders(after, {uuid for uuid, _ in notices})
    for uuid, notice in notices:
        # A fault is a problem of the node, and has an Event as such. That a problem has ended has none.
        if notice.reason == "GPURecovered":
            yield notice
        pods = holders.get(uuid)
        if pods:
            yield replace(notice, pods=tuple(sorted(pods)))


def _fault_notices(before: State, after: State) -> Iterator[tuple[str, Announcement]]:
    """A cause that comes and goes is announced once in each unhealthy period."""
    former = before.health.faults
    faults = after.health.faults
    for uuid in faults.keys() | former.keys():
        gpu = after.gpus.by_uuid[uuid]
        fault = faults.get(uuid)
        former_fault = former.get(uuid)
        if fault is None:
            stays = _stays_fenced(uuid, after)
            text = f"{gpu} is healthy again{stays}; it was unhealthy: {former_fault}"
            yield uuid, Announcement("GPURecovered", text)
        elif former_fault is None or _has_new_cause(uuid, before, after):
            text = f"{gpu}, which this pod holds, is unhealthy: {fault}"
            yield uuid, Announcement("GPUUnhealthy", text, warning=True)


def _stays_fenced(uuid: str, state: State) -> str:
    fenced = state.gpus.fenced.get(uuid)
    if fenced is None:
        return ""
    return f"; it stays {fenced}"


def _has_new_cause(uuid: str, before: State, after: State) -> bool:
    former = before.health.by_uuid[uuid].causes
    causes = after.health.by_uuid[uuid].causes
    return bool(causes - former)


def _fence_notices(before: State, after: State) -> Iterator[tuple[str, Announcement]]:
    former = before.gpus.fenced
    fenced = after.gpus.fenced
    for uuid in fenced.keys() ^ former.keys():
        gpu = after.gpus.by_uuid[uuid]
        if uuid in fenced:
            text = f"{gpu}, which this pod holds, is {fenced[uuid]}: no other pod gets it, this one is left alone"
            yield uuid, Announcement("GPUFenced", text)
        else:
            text = f"{gpu}, which this pod holds, is not fenced any more"
            yield uuid, Announcement("GPUUnfenced", text)


def _holders(state: State, uuids: set[str]) -> dict[str, set[PodName]]:
    """The pods that hold each of these GPUs."""
    holders: dict[str, set[PodName]] = {uuid: set() for uuid in uuids}
    holdings = [*state.living_holdings, *state.claim_holdings]
    for holding in holdings:
        pod = holding.owner.pod
        if not all(pod):  # only kubelet's checkpoint has it, by its UID, or the pod was not seen yet
            continue
        for uuid, _ in located(holding, state.gpus.by_uuid):
            if uuid in holders:
                holders[uuid].add(pod)
    return holders
