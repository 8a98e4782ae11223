"""The health of every GPU of the node."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.health import GpuHealth
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

    def taken(self, event: ev.Event, gpus: Gpus, policy: Policy) -> Self:
        """The next health of all GPUs, as a GPU can recover by time alone. `gpus` have taken the event already."""
        after = self._changed(event, gpus, policy)
        judged = {}
        is_same = True
        for uuid, health in after.by_uuid.items():
            judged[uuid] = health.judged(event.at, policy.settle_s, known=uuid in gpus.answering)
            is_same = is_same and judged[uuid] is health
        return after if is_same else replace(after, by_uuid=judged)

    def _changed(self, event: ev.Event, gpus: Gpus, policy: Policy) -> Self:
        match event:
            case ev.InventoryRead():
                return self._listed(gpus, event)
            case ev.XidRaised(uuid=None):
                counts = dict(self.untied_xids)
                counts[event.xid] = counts.get(event.xid, 0) + 1
                return replace(self, untied_xids=counts)
            case ev.XidRaised(uuid=str(uuid)):
                health = self._of(uuid)
                return self._with(uuid, health.xid(event.xid, event.reading, policy.harmless_xids, event.at))
            case ev.GpuLost():
                health = self._of(event.uuid)
                return self._with(event.uuid, health.goes(event.reason))
            case ev.HealthRead():
                health = self._of(event.uuid)
                return self._with(event.uuid, health.answers(event.reading, returned=event.returned))
        return self

    def _of(self, uuid: str) -> GpuHealth:
        return self.by_uuid.get(uuid) or self.early.get(uuid) or GpuHealth()

    def _with(self, uuid: str, health: GpuHealth) -> Self:
        if uuid in self.by_uuid:
            return replace(self, by_uuid={**self.by_uuid, uuid: health})
        return replace(self, early={**self.early, uuid: health})

    def _listed(self, gpus: Gpus, event: ev.InventoryRead) -> Self:
        listed = gpus.topology.gpus
        unasked = event.inventory.unasked
        by_uuid = {}
        for uuid in gpus.by_uuid:
            health = self._of(uuid).listed(uuid in listed, gpus.unread.get(uuid))
            is_new = uuid not in self.by_uuid
            if is_new and uuid in unasked:
                health = health.awaited(event.at)
            by_uuid[uuid] = health
        early = {uuid: health for uuid, health in self.early.items() if uuid not in by_uuid}
        return replace(self, by_uuid=by_uuid, early=early)

    @cached_property
    def faults(self) -> dict[str, str]:
        """GPU UUID to why it is unhealthy."""
        return {uuid: health.cause for uuid, health in self.by_uuid.items() if health.cause is not None}

    @cached_property
    def unasked(self) -> dict[str, str]:
        """GPU UUID to why its health is not read yet."""
        reasons = {}
        for uuid, health in self.by_uuid.items():
            if health.awaited_until is not None and not health.cause:
                reasons[uuid] = "it was not asked yet: the driver takes its time"
        return reasons
