"""The isolation drivers of the node."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from gpuagent.domain import events as ev
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Mode


@dataclass(frozen=True, kw_only=True)
class IsolationDrivers:
    """The reports of isolation drivers, and the drivers of running containers.

    Attributes:
        layers: isolation driver's name to its reported state, best first.
        bound: mode to the isolation driver of its running containers, which they keep if another driver appears.
        unreported: isolation drivers that have not reported their state yet.
    """

    layers: Mapping[str, Layer] = field(default_factory=dict)
    bound: Mapping[Mode, str] = field(default_factory=dict)
    unreported: frozenset[str] = frozenset()

    def taken(self, event: ev.Event) -> Self:
        match event:
            case ev.LayerSeen():
                layers = {**self.layers, event.layer.driver: event.layer}
                return replace(self, layers=layers, unreported=self.unreported - {event.layer.driver})
        return self
