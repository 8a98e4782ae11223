"""The core's one transition: `step(state, event)` returns the new state and its announcements."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin import advertise
from gpuagent.domain.deviceplugin.advertise import rival_offers
from gpuagent.domain.gpus.gpu import Gpu, Inventory, unambiguous
from gpuagent.domain.gpus.health import APPLICATION_XIDS, GpuHealth
from gpuagent.domain.gpus.topology import topology
from gpuagent.domain.pods.exchange import by_units, unrecorded
from gpuagent.domain.pods.failed_pod import Failure
from gpuagent.domain.reconcile import failed_pods
from gpuagent.domain.reconcile.startup_taint import shows_amounts, taint_stands
from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.mode import MODE_LABEL, PLACEMENT_LABEL, PROMISES, Mode, Placement
from gpuagent.domain.state import State
from gpuagent.domain.status.health_notices import health_news
from gpuagent.domain.status.interop import by_former_units
from gpuagent.domain.status.problems import problems


def step(state: State, event: ev.Event) -> tuple[State, tuple[Announcement, ...]]:
    """Apply one event, and change the lists as far as is safe at that moment."""
    judged = _judged(_take(state, event), event.at)
    after = _audited(state, failed_pods.rounds(advertise.advertise(judged, event.at), event.at))
    return after, (*_heard(event, after), *_news(state, after))


def deadline(state: State) -> float | None:
    """Monotonic seconds when the next change is due without an event; None if none is."""
    due = (advertise.deadline(state), failed_pods.deadline(state))
    return min((at for at in due if at is not None), default=None)


def _take(state: State, event: ev.Event) -> State:  # noqa: C901, PLR0911, PLR0912 (one case an event)
    match event:
        case ev.InventoryRead():
            return _inventory(state, event)
        case ev.DriverUnavailable():
            return replace(state, driver_problem=event.reason)
        case ev.XidRaised(uuid=str(uuid)):
            harmless = state.policy.harmless_xids
            return _case(state, uuid, lambda case: case.xid(event.xid, event.vitals, harmless, event.at))
        case ev.XidRaised():
            counts = state.untied_xids
            return replace(state, untied_xids={**counts, event.xid: counts.get(event.xid, 0) + 1})
        case ev.GpuLost():
            return _case(state, event.uuid, lambda case: case.goes(event.reason))
        case ev.HealthRead():
            return _case(state, event.uuid, lambda case: case.answers(event.vitals, returned=event.returned))
        case ev.NodeSeen():
            return _node(state, event.node, event.at)
        case ev.PodsSeen():
            return replace(state, pods=event.pods, pods_known=True, pods_problem=None)
        case ev.ApiUnavailable():
            if event.what == "pods":
                return replace(state, pods_problem=event.reason)
            return replace(state, node_problem=event.reason)
        case ev.ReportsKept():
            return replace(state, reports_problem=event.problem)
        case ev.AnnotationsKept():
            return replace(state, annotations_problem=event.problem)
        case ev.ModeKept():
            return replace(state, mode_unsaved=event.problem)
        case ev.FenceRead():
            return replace(state, fence=event.fence, fence_problem=None)
        case ev.FenceUnreadable():
            return replace(state, fence_problem=event.reason)
        case ev.HoldingsRead():
            audited = event.started_at >= state.cleared_at
            if state.counts_only and (unknown := unrecorded(event.holdings, event.checkpoint)):
                text = f"kubelet's checkpoint does not show which units {unknown} was given"
                return replace(state, holdings_problem=text)
            holdings, checkpoint, exchanged = by_units(event.holdings, event.checkpoint)
            read = replace(
                state,
                holdings=holdings,
                holdings_at=event.started_at,
                checkpoint=checkpoint,
                exchanged=exchanged,
                holdings_problem=None,
                unaudited=frozenset() if audited else state.unaudited,
            )
            held = {mode for mode, _ in read.held_under if PROMISES[mode]}
            drivers = {mode: state.layer_of(mode).driver for mode in held}
            return replace(read, bound={mode: name for mode, name in drivers.items() if name != NONE})
        case ev.HoldingsUnavailable():
            return replace(state, holdings_problem=event.reason)
        case ev.RegistrationChanged():
            others = {name: text for name, text in state.registration_problems.items() if name != event.resource}
            now = {event.resource: event.problem} if event.problem else {}
            connected = state.connected - {event.resource} | ({event.resource} if event.connected else set())
            return replace(state, registration_problems=others | now, connected=connected)
        case ev.FailedPodDeleted():
            count = state.deleted.get(event.pod.failure, 0) + 1
            return replace(state, deleted={**state.deleted, event.pod.failure: count})
        case ev.DeletionsSeen():
            return replace(state, deletions_problem=event.problem)
        case ev.LayerSeen():
            layers = {**state.layers, event.layer.driver: event.layer}
            return replace(state, layers=layers, unheard=state.unheard - {event.layer.driver})
        case ev.AllocatesSeen():
            return replace(state, in_flight=event.in_flight, last_allocate_end=event.last_end)
    return state


def _inventory(state: State, event: ev.InventoryRead) -> State:
    """A GPU that was read before and is missing now stays in the state as lost."""
    inventory = unambiguous(event.inventory, state.gpus.values())
    # The number of units that were advertised does not change while the agent runs.
    read = {
        gpu.uuid: replace(gpu, memory_mib=state.gpus[gpu.uuid].memory_mib) if gpu.uuid in state.gpus else gpu
        for gpu in inventory.gpus
    }
    gpus = {**state.gpus, **read}
    unread = _unread({uuid: gpu for uuid, gpu in gpus.items() if uuid not in read}, inventory)
    health = {
        uuid: (state.health.get(uuid) or state.early.get(uuid) or GpuHealth()).listed(uuid in read, unread.get(uuid))
        for uuid in gpus
    }
    health |= {uuid: health[uuid].awaited(event.at) for uuid in inventory.unasked & gpus.keys() - state.gpus.keys()}
    # A GPU that appears after a switch was in no allocations that the agent read before it.
    new = gpus.keys() - state.gpus.keys() if state.holdings_at < state.cleared_at else set()
    wiring = {**state.wiring, **inventory.wiring}
    there = tuple(read.values())
    same = wiring == state.wiring and {gpu.uuid: gpu.index for gpu in there} == {
        uuid: state.gpus[uuid].index for uuid in state.topology.gpus
    }
    return replace(
        state,
        gpus=gpus,
        wiring=wiring,
        topology=state.topology if same else topology(there, wiring),
        unaudited=state.unaudited | new,
        unreadable=inventory.unreadable,
        device_nodes=inventory.device_nodes,
        health=health,
        early={uuid: case for uuid, case in state.early.items() if uuid not in gpus},
        driver_version=inventory.driver_version,
        driver_problem=None,
    )


def _unread(missing: Mapping[str, Gpu], inventory: Inventory) -> dict[str, str]:
    """UUIDs of missing GPUs that the driver still lists, and why it could not read each."""
    read = {gpu.index for gpu in inventory.gpus}
    reasons = {bad.index: bad.reason for bad in inventory.unreadable if bad.index not in read}
    # Match by index, which changes when another GPU is lost. If no fewer GPUs are unreadable than missing, all missing
    # ones are unreadable.
    some = next(iter(reasons.values()), None) if len(missing) <= len(reasons) else None
    found = {uuid: reasons.get(gpu.index, some) for uuid, gpu in missing.items()}
    return {uuid: reason for uuid, reason in found.items() if reason is not None}


def _case(state: State, uuid: str, change: Callable[[GpuHealth], GpuHealth]) -> State:
    if uuid not in state.gpus:
        return replace(state, early={**state.early, uuid: change(state.early.get(uuid, GpuHealth()))})
    return replace(state, health={**state.health, uuid: change(state.health.get(uuid, GpuHealth()))})


def _judged(state: State, at: float) -> State:
    """Judge the health of all GPUs: a GPU can recover by time alone."""
    silent = {bad.index for bad in state.unreadable}
    health = {
        uuid: case.judged(
            at,
            state.policy.settle_s,
            known=state.driver_problem is None and state.gpus[uuid].index not in silent,
        )
        for uuid, case in state.health.items()
    }
    return state if all(health[uuid] is case for uuid, case in state.health.items()) else replace(state, health=health)


def _node(state: State, node: Mapping[str, Any], at: float) -> State:
    labels = (node.get("metadata") or {}).get("labels") or {}
    label, placement = labels.get(MODE_LABEL), labels.get(PLACEMENT_LABEL)
    mode, label_problem = state.mode, None
    if label in _MODES and state.policy.forced_mode is None:
        mode = _MODES[label]
    elif label is not None and label not in _MODES:
        known = ", ".join(_MODES)
        label_problem = f"node label {MODE_LABEL}={label!r} is not a mode; {mode} stays in force (known: {known})"
    placement_problem = None
    if placement is not None and placement not in _PLACEMENTS:
        placement_problem = (
            f"node label {PLACEMENT_LABEL}={placement!r} is neither binpack nor spread; "
            f"{state.placement} stays in force"
        )
    switched = mode is not state.mode
    rival_gone = rival_offers(state) > 0 and rival_offers(replace(state, mode=mode, node=node)) == 0
    picks = replace(state, node=node).counts_only and not state.counts_only
    # After a switch is reverted, units of its mode may still be listed. No other mode or plugin had those GPUs.
    still_listed = {b.gpu.uuid for blocks in state.lists.values() for b in blocks if b.kind.mode is mode}
    return replace(
        state,
        node=node,
        # These were read as if kubelet's ids were units.
        holdings=None if picks else state.holdings,
        holdings_at=float("-inf") if picks else state.holdings_at,
        # Any GPU may have an allocation that the agent has not read yet, by another plugin or from a moment ago.
        unaudited=frozenset(state.gpus) - still_listed if switched or rival_gone else state.unaudited,
        cleared_at=at if switched or rival_gone else state.cleared_at,
        node_problem=None,
        mode=mode,
        mode_known=True,
        label=label,
        label_problem=label_problem,
        placement=_PLACEMENTS.get(placement or Placement.BINPACK, state.placement),
        placement_problem=placement_problem,
    )


_MODES = {str(mode): mode for mode in Mode}
_PLACEMENTS = {str(placement): placement for placement in Placement}


def _audited(before: State, after: State) -> State:
    """Update `former_units`. This reads each held unit, so it runs only if pods or allocations changed."""
    if before.pods is after.pods and after.same_book(before):
        return after
    found = tuple(by_former_units(after))
    return after if found == after.former_units else replace(after, former_units=found)


def _heard(event: ev.Event, after: State) -> tuple[Announcement, ...]:
    """Announcements of events that may leave the state unchanged."""
    match event:
        case ev.XidRaised(uuid=None):
            text = f"XID {event.xid} names no GPU of this node, so no GPU is marked unhealthy for it"
            return (Announcement("XIDUntied", text, warning=True),)
        case ev.XidRaised(uuid=str(uuid)) if uuid in after.gpus and uuid not in after.faults:
            if event.xid in APPLICATION_XIDS:
                text = f"GPU {uuid}: XID {event.xid} is an application's own fault; the GPU stays in use"
                return (Announcement("ApplicationXID", text),)
            why = "is on the list of those to be ignored" if event.vitals is None or event.vitals.action is None else ""
            text = f"GPU {uuid}: XID {event.xid} {why or 'needs no recovery, says the driver'}; the GPU stays in use"
            return (Announcement("HarmlessXID", text),)
        case ev.FailedPodDeleted():
            # No pod name in the text, so that the pods of one controller share one Event with a count.
            refused = "refused by the node's GPU agent; its Event GPURefused says why"
            why = event.pod.words if event.pod.failure is Failure.NO_DEVICES else refused
            text = f"a failed pod was deleted, so that another one is made in its place: {why}"
            return (Announcement("FailedPodDeleted", text, pods=(event.pod.name,), owner=event.pod.controller),)
    return ()


def _news(before: State, after: State) -> tuple[Announcement, ...]:
    news = []
    if after.mode is not before.mode:
        news.append(Announcement("ModeSwitch", f"mode {before.mode} -> {after.mode}"))
    came_without = before.node is None and after.node is not None and after.mode is not Mode.DEFAULT
    if after.label is None and (before.label is not None or (came_without and after.policy.forced_mode is None)):
        text = f"node label {MODE_LABEL} was removed; mode {after.mode} stays in force (set it to default to go back)"
        news.append(Announcement("ModeLabelRemoved", text))
    if after.placement is not before.placement:
        news.append(Announcement("PlacementSwitch", f"placement {before.placement} -> {after.placement}"))
    if taint_stands(before) and not taint_stands(after) and shows_amounts(after):
        text = f"the node shows its amounts; its taint {after.policy.startup_taint} is removed"
        news.append(Announcement("StartupTaintRemoved", text))
    for uuid in before.fenced.keys() - after.fenced.keys():
        still = f"it stays unhealthy: {after.faults[uuid]}" if uuid in after.faults else "it is healthy"
        text = f"GPU {after.gpus[uuid].index} ({uuid}) is not fenced any more; {still}"
        news.append(Announcement("GPUUnfenced", text))
    was = {(problem.reason, problem.message) for problem in problems(before)}
    news += [
        Announcement(problem.reason, problem.message, warning=problem.warning)
        for problem in problems(after)
        if (problem.reason, problem.message) not in was
    ]
    return (*news, *health_news(before, after))
