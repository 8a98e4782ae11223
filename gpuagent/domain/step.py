"""The core's one transition: `step(state, event)` returns the new state and its announcements."""

from dataclasses import replace

from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin import advertise
from gpuagent.domain.gpus.health import APPLICATION_XIDS
from gpuagent.domain.reconcile.published_holdings import with_published_pods
from gpuagent.domain.reconcile.startup_taint import shows_amounts
from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.mode import MODE_LABEL, PROMISES, Mode
from gpuagent.domain.state import State
from gpuagent.domain.status.health_notices import health_notices
from gpuagent.domain.status.interop import warn_of_former_units
from gpuagent.domain.status.pod_notices import pod_notices
from gpuagent.domain.status.problems import problems


def step(state: State, event: ev.Event) -> tuple[State, tuple[Announcement, ...]]:
    """Apply one event, and change the lists as far as is safe at that moment."""
    after = _bound(_audited(state, _taken(state, event), event), event)
    after = advertise.advertise(after, event.at)
    after = _with_former_units(state, after)
    published = with_published_pods(state, after)
    if published is not after.published_pods:
        after = replace(after, published_pods=published)
    return after, (*_of_event(event, after), *_of_change(state, after))


def deadline(state: State) -> float | None:
    """Monotonic seconds when the next change is due without an event; None if none is."""
    due = (advertise.deadline(state), state.claims.next, state.gpus.next)
    return min((at for at in due if at is not None), default=None)


def _taken(state: State, event: ev.Event) -> State:
    """Fold the event over the parts of the state."""
    gpus = state.gpus.taken(event)
    pods = state.pods.taken(event)
    holdings = state.holdings.taken(event)
    return replace(
        state,
        gpus=gpus,
        health=state.health.taken(event, gpus, state.policy),
        node=state.node.taken(event, state.policy),
        pods=pods,
        holdings=holdings,
        living=state.living.of(holdings, pods),
        advertised=state.advertised.taken(event),
        allocates=state.allocates.taken(event),
        isolation=state.isolation.taken(event),
        claims=state.claims.taken(event),
    )


def _audited(before: State, after: State, event: ev.Event) -> State:
    """Mark the GPUs that another mode or plugin may have used, until a later read of kubelet's allocations."""
    lists = after.advertised
    gpus = after.gpus.by_uuid.keys()
    mode = after.node.mode
    match event:
        case ev.InventoryRead() if after.holdings.read_at < lists.cleared_at:
            # A GPU that appears after a switch was in no allocations that the agent read before it.
            lists = replace(lists, unaudited=lists.unaudited | (gpus - before.gpus.by_uuid.keys()))
        case ev.NodeSeen() if mode is not before.node.mode or (
            before.other_plugin_gpus and not after.other_plugin_gpus
        ):
            # Any GPU may have an allocation that the agent has not read yet, by another plugin or from a moment ago.
            # After a switch is reverted, units of its mode may still be listed. No other mode or plugin had those GPUs.
            blocks = (block for blocks in lists.lists.values() for block in blocks)
            listed = {block.gpu.uuid for block in blocks if block.kind.mode is mode}
            lists = replace(lists, unaudited=frozenset(gpus - listed), cleared_at=event.at)
        case ev.HoldingsRead(started_at=at) if after.holdings.problem is None and at >= lists.cleared_at:
            lists = replace(lists, unaudited=frozenset())
    return replace(after, advertised=lists)


def _bound(state: State, event: ev.Event) -> State:
    """Running containers keep the isolation driver that their mode has now."""
    if not isinstance(event, ev.HoldingsRead) or state.holdings.problem is not None:
        return state
    drivers = {mode: state.layer_of(mode).driver for mode, _ in state.held_under if PROMISES[mode]}
    bound = {mode: name for mode, name in drivers.items() if name != NONE}
    return replace(state, isolation=replace(state.isolation, bound=bound))


def _with_former_units(before: State, after: State) -> State:
    """Update `former_units`. This reads each held unit, so it runs only if pods or allocations changed."""
    if before.pods.seen is after.pods.seen and after.same_allocations(before):
        return after
    found = tuple(warn_of_former_units(after))
    return after if found == after.former_units else replace(after, former_units=found)


def _of_event(event: ev.Event, after: State) -> tuple[Announcement, ...]:
    """Announcements of events that may leave the state unchanged."""
    match event:
        case ev.XidRaised(uuid=None):
            text = f"XID {event.xid} names no GPU of this node, so no GPU is marked unhealthy for it"
            return (Announcement("XIDUntied", text, warning=True),)
        case ev.XidRaised(uuid=str(uuid)) if uuid in after.gpus.by_uuid and uuid not in after.health.faults:
            if event.xid in APPLICATION_XIDS:
                text = f"GPU {uuid}: XID {event.xid} is an application's own fault; the GPU stays in use"
                return (Announcement("ApplicationXID", text),)
            says_no_recovery = event.reading is not None and event.reading.action is not None
            why = "needs no recovery, says the driver" if says_no_recovery else "is on the list of those to be ignored"
            text = f"GPU {uuid}: XID {event.xid} {why}; the GPU stays in use"
            return (Announcement("HarmlessXID", text),)
        case ev.AnnotationsCorrected(pod, texts):
            # After the write, which is delayed where a user edits annotations again and again: so are these Events.
            return tuple(Announcement("AnnotationCorrected", text, warning=True, pods=(pod,)) for text in texts)
    return ()


def _of_change(before: State, after: State) -> tuple[Announcement, ...]:
    changes = []
    was = before.node
    node = after.node
    if node.mode is not was.mode:
        changes.append(Announcement("ModeSwitch", f"mode {was.mode} -> {node.mode}"))
    came_without = was.object is None and node.object is not None and node.mode is not Mode.DEFAULT
    if node.label is None and (was.label is not None or (came_without and after.policy.forced_mode is None)):
        text = f"node label {MODE_LABEL} was removed; mode {node.mode} stays in force (set it to default to go back)"
        changes.append(Announcement("ModeLabelRemoved", text))
    if node.placement is not was.placement:
        changes.append(Announcement("PlacementSwitch", f"placement {was.placement} -> {node.placement}"))
    if before.has_startup_taint and not after.has_startup_taint and shows_amounts(after):
        text = f"the node shows its amounts; its taint {after.policy.startup_taint} is removed"
        changes.append(Announcement("StartupTaintRemoved", text))
    for uuid in before.gpus.fenced.keys() - after.gpus.fenced.keys():
        still = f"it stays unhealthy: {after.health.faults[uuid]}" if uuid in after.health.faults else "it is healthy"
        text = f"GPU {after.gpus.by_uuid[uuid].index} ({uuid}) is not fenced any more; {still}"
        changes.append(Announcement("GPUUnfenced", text))
    known = {(problem.reason, problem.message) for problem in problems(before) if not problem.passing}
    changes += [
        Announcement(problem.reason, problem.message, warning=problem.warning)
        for problem in problems(after)
        if not problem.passing and (problem.reason, problem.message) not in known
    ]
    return (*changes, *health_notices(before, after), *pod_notices(before, after))
