"""The core's one transition: `step(state, event)` returns the new state and its announcements."""

from collections.abc import Iterator
from dataclasses import replace

from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.bound_drivers import with_bound_drivers
from gpuagent.domain.deviceplugin import advertise
from gpuagent.domain.deviceplugin.resize import resizing
from gpuagent.domain.former_units import former_units
from gpuagent.domain.gpus.health_verdict import APPLICATION_XIDS
from gpuagent.domain.reconcile.published_holdings import with_published_pods
from gpuagent.domain.reconcile.startup_taint import shows_amounts
from gpuagent.domain.sharing.mode import MODE_LABEL, Mode
from gpuagent.domain.state import State
from gpuagent.domain.status.health_notices import health_notices
from gpuagent.domain.status.pod_notices import pod_notices
from gpuagent.domain.status.problems import problems


def step(state: State, event: ev.Event) -> tuple[State, tuple[Announcement, ...]]:
    """Apply one event, and change the lists as far as is safe at that moment."""
    after = _taken(state, event)
    after = _audited(state, after, event)
    after = with_bound_drivers(after, event)
    after = resizing.resized(after, event.at)
    # Before the lists, which leave out what these units use.
    after = _with_former_units(state, after)
    after = advertise.advertise(after, event.at)
    published = with_published_pods(state, after)
    if published is not after.published_pods:
        after = replace(after, published_pods=published)
    announcements = (
        *_of_event(event, after),
        *_of_change(state, after),
    )
    return after, announcements


def deadline(state: State) -> float | None:
    """Monotonic seconds when the next change is due without an event; None if none is."""
    due = (
        advertise.deadline(state),
        resizing.deadline(state),
        state.claims.next,
        state.gpus.next,
    )
    known = [at for at in due if at is not None]
    return min(known, default=None)


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
        resizes=state.resizes.taken(event),
    )


def _audited(
    before: State,
    after: State,
    event: ev.Event,
) -> State:
    """Mark the GPUs that another mode or plugin may have used, until a later read of kubelet's allocations."""
    lists = after.advertised
    match event:
        case ev.InventoryRead() if after.holdings.read_at < lists.cleared_at:
            # A GPU that appears after a switch was in no allocations that the agent read before it.
            new = after.gpus.by_uuid.keys() - before.gpus.by_uuid.keys()
            lists = replace(lists, unaudited=lists.unaudited | new)
        case ev.NodeSeen() if _has_other_owner(before, after):
            unaudited = _may_be_allocated(after)
            lists = replace(lists, unaudited=unaudited, cleared_at=event.at)
        case ev.HoldingsRead(started_at=at) if after.holdings.problem is None and at >= lists.cleared_at:
            lists = replace(lists, unaudited=frozenset())
    return replace(after, advertised=lists)


def _has_other_owner(before: State, after: State) -> bool:
    """Whether another mode has come into force, or another plugin has just left the GPUs to this agent."""
    if after.node.mode is not before.node.mode:
        return True
    return bool(before.other_plugin_gpus) and not after.other_plugin_gpus


def _may_be_allocated(state: State) -> frozenset[str]:
    """UUIDs of the GPUs that may have an allocation of another mode or plugin.

    Any GPU may have one that the agent has not read yet, by another plugin or from a moment ago. After a switch is
    reverted, units of its mode may still be listed. No other mode or plugin had those GPUs.
    """
    mode = state.node.mode
    listed: set[str] = set()
    for blocks in state.advertised.lists.values():
        listed.update(block.gpu.uuid for block in blocks if block.kind.mode is mode)
    return frozenset(state.gpus.by_uuid.keys() - listed)


def _with_former_units(before: State, after: State) -> State:
    """Update `former_units`. This reads each held unit, so it runs only if pods or allocations changed."""
    has_same_pods = before.pods.seen is after.pods.seen
    if has_same_pods and after.same_allocations(before):
        return after
    current = former_units(after)
    if current == after.former_units:
        return after
    return replace(after, former_units=current)


def _of_event(event: ev.Event, after: State) -> tuple[Announcement, ...]:
    """Announcements of events that may leave the state unchanged."""
    match event:
        case ev.XidRaised(uuid=None):
            text = f"XID {event.xid} names no GPU of this node, so no GPU is marked unhealthy for it"
            return (Announcement("XIDUntied", text, warning=True),)
        case ev.XidRaised(uuid=str(uuid)) if uuid in after.gpus.by_uuid and uuid not in after.health.faults:
            return (_of_harmless_xid(uuid, event),)
        case ev.AnnotationsCorrected(pod, texts):
            # After the write, which is delayed where a user edits annotations again and again: so are these Events.
            about = (pod,)
            corrected = [Announcement("AnnotationCorrected", text, warning=True, pods=about) for text in texts]
            return tuple(corrected)
    return ()


def _of_harmless_xid(uuid: str, event: ev.XidRaised) -> Announcement:
    """Why a GPU stays in use after an XID."""
    reported = f"GPU {uuid}: XID {event.xid}"
    if event.xid in APPLICATION_XIDS:
        return Announcement("ApplicationXID", f"{reported} is an application's own fault; the GPU stays in use")
    says_no_recovery = event.reading is not None and event.reading.action is not None
    why = "needs no recovery, says the driver" if says_no_recovery else "is on the list of those to be ignored"
    return Announcement("HarmlessXID", f"{reported} {why}; the GPU stays in use")


def _of_change(before: State, after: State) -> tuple[Announcement, ...]:
    """Announcements of what differs between two states."""
    return (
        *_of_node(before, after),
        *_of_fence(before, after),
        *_of_problems(before, after),
        *health_notices(before, after),
        *pod_notices(before, after),
    )


def _of_node(before: State, after: State) -> Iterator[Announcement]:
    """What differs about the Node."""
    was = before.node
    node = after.node
    if node.mode is not was.mode:
        yield Announcement("ModeSwitch", f"mode {was.mode} -> {node.mode}")
    if _has_lost_label(before, after):
        text = f"node label {MODE_LABEL} was removed; mode {node.mode} stays in force (set it to default to go back)"
        yield Announcement("ModeLabelRemoved", text)
    if node.placement is not was.placement:
        yield Announcement("PlacementSwitch", f"placement {was.placement} -> {node.placement}")
    is_taint_removed = before.has_startup_taint and not after.has_startup_taint
    if is_taint_removed and shows_amounts(after):
        text = f"the node shows its amounts; its taint {after.policy.startup_taint} is removed"
        yield Announcement("StartupTaintRemoved", text)


def _has_lost_label(before: State, after: State) -> bool:
    """Whether the label with the mode was removed: while the agent ran, or before it started."""
    if after.node.label is not None:
        return False
    if before.node.label is not None:
        return True
    is_first_read = before.node.object is None and after.node.object is not None
    # Without the label, the agent has the mode from an earlier run, if no flag sets it.
    is_mode_kept = after.node.mode is not Mode.DEFAULT and after.policy.forced_mode is None
    return is_first_read and is_mode_kept


def _of_fence(before: State, after: State) -> Iterator[Announcement]:
    """GPUs that are not fenced any more."""
    for uuid in before.gpus.fenced.keys() - after.gpus.fenced.keys():
        fault = after.health.faults.get(uuid)
        state = "it is healthy" if fault is None else f"it stays unhealthy: {fault}"
        index = after.gpus.by_uuid[uuid].index
        yield Announcement("GPUUnfenced", f"GPU {index} ({uuid}) is not fenced any more; {state}")


def _of_problems(before: State, after: State) -> Iterator[Announcement]:
    """Problems that are new. Those that pass by themselves are not announced."""
    known = {(problem.reason, problem.message) for problem in problems(before) if not problem.passing}
    for problem in problems(after):
        is_known = (problem.reason, problem.message) in known
        if not problem.passing and not is_known:
            yield Announcement(problem.reason, problem.message, warning=problem.warning)
