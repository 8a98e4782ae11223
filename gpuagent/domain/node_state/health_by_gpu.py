"""The health of every GPU of the node."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.health_verdict import GpuHealth
from gpuagent.domain.node_state.known_gpus import Gpus
from gpuagent.domain.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Health:
    """The health of each GPU that was read, by UUID in `by_uuid`.

    Attributes:
        early: by UUID, the health of GPUs that were not read yet, so that the first list includes it.
        untied_xids: how often the driver reported each XID without a GPU of this node.
    """

    by_uuid: Mapping[str, GpuHealth] = field(default_factory=dict)
    early: Mapping[str, GpuHealth] = field(default_factory=dict)
    untied_xids: Mapping[int, int] = field(default_factory=dict)

    def taken(
        self,
        event: ev.Event,
        gpus: Gpus,
        policy: Policy,
    ) -> Self:
        """The next health of all GPUs, as a GPU can recover by time alone. `gpus` have taken the event already."""
        after = self._changed(event, gpus, policy)
        judged: dict[str, GpuHealth] = {}
        any_changed = False
        for uuid, health in after.by_uuid.items():
            is_known = uuid in gpus.answering
            verdict = health.judged(event.at, policy.settle_s, known=is_known)
            judged[uuid] = verdict
            is_changed = verdict is not health
            any_changed = any_changed or is_changed
        if not any_changed:
            return after
        return replace(after, by_uuid=judged)

    def _changed(self, event: ev.Event, gpus: Gpus, policy: Policy) -> Self:
        match event:
            case ev.InventoryRead():
                return self._listed(gpus, event)
            case ev.XidRaised(uuid=None):
                earlier = self.untied_xids.get(event.xid, 0)
                counts = {**self.untied_xids, event.xid: earlier + 1}
                return replace(self, untied_xids=counts)
            case ev.XidRaised(uuid=str(uuid)):
                health = self._of(uuid)
                after = health.xid(event.xid, event.reading, policy.harmless_xids, event.at)
                return self._with(uuid, after)
            case ev.GpuLost():
                health = self._of(event.uuid)
                after = health.went_silent(event.reason)
                return self._with(event.uuid, after)
            case ev.HealthRead():
                health = self._of(event.uuid)
                after = health.answered(event.reading, returned=event.returned)
                return self._with(event.uuid, after)
        return self

    def _of(self, uuid: str) -> GpuHealth:
        known = self.by_uuid.get(uuid) or self.early.get(uuid)
        return known or GpuHealth()

    def _with(self, uuid: str, health: GpuHealth) -> Self:
        if uuid in self.by_uuid:
            by_uuid = {**self.by_uuid, uuid: health}
            return replace(self, by_uuid=by_uuid)
        early = {**self.early, uuid: health}
        return replace(self, early=early)

    def _listed(self, gpus: Gpus, event: ev.InventoryRead) -> Self:
        """The driver has listed its GPUs. Those that it lists no more stay, as lost ones."""
        listed = gpus.topology.gpus
        unasked = event.inventory.unasked
        by_uuid = {}
        for uuid in gpus.by_uuid:
            is_listed = uuid in listed
            unread = gpus.unread.get(uuid)
            health = self._of(uuid).listed(is_listed, unread)
            is_new = uuid not in self.by_uuid
            if is_new and uuid in unasked:
                health = health.awaited(event.at)
            by_uuid[uuid] = health
        early = {uuid: health for uuid, health in self.early.items() if uuid not in by_uuid}
        return replace(self, by_uuid=by_uuid, early=early)

    @cached_property
    def faults(self) -> dict[str, str]:
        """GPU UUID to why it is unhealthy."""
        faults: dict[str, str] = {}
        for uuid, health in self.by_uuid.items():
            if health.cause is not None:
                faults[uuid] = health.cause
        return faults

    @cached_property
    def unasked(self) -> dict[str, str]:
        """GPU UUID to why its health is not read yet."""
        reasons = {}
        for uuid, health in self.by_uuid.items():
            if health.awaited_until is not None and not health.cause:
                reasons[uuid] = "it was not asked yet: the driver takes its time"
        return reasons
