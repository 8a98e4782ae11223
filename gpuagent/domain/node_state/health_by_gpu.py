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
        judged = {
            uuid: health.judged(event.at, policy.settle_s, known=uuid in gpus.answering)
            for uuid, health in after.by_uuid.items()
        }
        same = all(judged[uuid] is health for uuid, health in after.by_uuid.items())
        return after if same else replace(after, by_uuid=judged)

    def _changed(self, event: ev.Event, gpus: Gpus, policy: Policy) -> Self:
        match event:
            case ev.InventoryRead():
                return self._listed(gpus, event)
            case ev.XidRaised(uuid=None):
                counts = self.untied_xids
                return replace(self, untied_xids={**counts, event.xid: counts.get(event.xid, 0) + 1})
            case ev.XidRaised(uuid=str(uuid)):
                return self._with(uuid, self._of(uuid).xid(event.xid, event.vitals, policy.harmless_xids, event.at))
            case ev.GpuLost():
                return self._with(event.uuid, self._of(event.uuid).goes(event.reason))
            case ev.HealthRead():
                return self._with(event.uuid, self._of(event.uuid).answers(event.vitals, returned=event.returned))
        return self

    def _of(self, uuid: str) -> GpuHealth:
        return self.by_uuid.get(uuid) or self.early.get(uuid) or GpuHealth()

    def _with(self, uuid: str, health: GpuHealth) -> Self:
        if uuid in self.by_uuid:
            return replace(self, by_uuid={**self.by_uuid, uuid: health})
        return replace(self, early={**self.early, uuid: health})

    def _listed(self, gpus: Gpus, event: ev.InventoryRead) -> Self:
        listed = gpus.topology.gpus
        by_uuid = {uuid: self._of(uuid).listed(uuid in listed, gpus.unread.get(uuid)) for uuid in gpus.by_uuid}
        silent = event.inventory.unasked & by_uuid.keys() - self.by_uuid.keys()
        by_uuid |= {uuid: by_uuid[uuid].awaited(event.at) for uuid in silent}
        early = {uuid: health for uuid, health in self.early.items() if uuid not in by_uuid}
        return replace(self, by_uuid=by_uuid, early=early)

    @cached_property
    def faults(self) -> dict[str, str]:
        """GPU UUID to why it is unhealthy."""
        return {uuid: health.cause for uuid, health in self.by_uuid.items() if health.cause is not None}

    @cached_property
    def unasked(self) -> dict[str, str]:
        """GPU UUID to why its health is not read yet."""
        waiting = (u for u, health in self.by_uuid.items() if health.awaited_until is not None and not health.cause)
        return dict.fromkeys(waiting, "it was not asked yet: the driver takes its time")
