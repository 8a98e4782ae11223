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
    holders = _holders(after, {uuid for uuid, _ in notices}) if notices else {}
    for uuid, notice in notices:
        if notice.reason == "GPURecovered":
            yield notice
        if pods := holders.get(uuid):
            yield replace(notice, pods=tuple(sorted(pods)))


def _fault_notices(before: State, after: State) -> Iterator[tuple[str, Announcement]]:
    """A cause that comes and goes is announced once in each unhealthy period."""
    was, now = before.health.faults, after.health.faults
    for uuid in now.keys() | was.keys():
        gpu = f"GPU {after.gpus.by_uuid[uuid].index} ({uuid})"
        if uuid not in now:
            still = f"; it stays {after.gpus.fenced[uuid]}" if uuid in after.gpus.fenced else ""
            text = f"{gpu} is healthy again{still}; it was unhealthy: {was[uuid]}"
            yield uuid, Announcement("GPURecovered", text)
        elif uuid not in was or after.health.by_uuid[uuid].causes - before.health.by_uuid[uuid].causes:
            text = f"{gpu}, which this pod holds, is unhealthy: {now[uuid]}"
            yield uuid, Announcement("GPUUnhealthy", text, warning=True)


def _fence_notices(before: State, after: State) -> Iterator[tuple[str, Announcement]]:
    was, now = before.gpus.fenced, after.gpus.fenced
    for uuid in now.keys() ^ was.keys():
        gpu = f"GPU {after.gpus.by_uuid[uuid].index} ({uuid}), which this pod holds,"
        if uuid in now:
            text = f"{gpu} is {now[uuid]}: no other pod gets it, this one is left alone"
            yield uuid, Announcement("GPUFenced", text)
        else:
            yield uuid, Announcement("GPUUnfenced", f"{gpu} is not fenced any more")


def _holders(state: State, uuids: set[str]) -> dict[str, set[PodName]]:
    """The pods that hold each of these GPUs."""
    holders: dict[str, set[PodName]] = {uuid: set() for uuid in uuids}
    for holding in (*state.living_holdings, *state.claim_holdings):
        if all(holding.owner.pod):  # else only kubelet's checkpoint has it, by its UID, or the pod was not seen yet
            for uuid in uuids & {uuid for uuid, _ in located(holding, state.gpus.by_uuid)}:
                holders[uuid].add(holding.owner.pod)
    return holders
