"""The devices that a request cannot have although others like them serve it: by fault, by taint, or by their holder."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuscheduler.core.explain import words
from gpuscheduler.core.explain.device_check import Check, Demand, Held, Stage, has_room, untolerated
from gpuscheduler.core.explain.published import Device

_CAUSES = {
    "unhealthy": ("is unhealthy", "are unhealthy"),
    "settling": ("settles after a fault", "settle after a fault"),
    "unreadable": ("does not answer", "do not answer"),
    "fenced": ("is fenced by its operator", "are fenced by their operator"),
    "held": ("is held by pods of another mode", "are held by pods of another mode"),
}
"""Taint of this driver, after its domain, to what is wrong with a GPU or with several."""


@dataclass(frozen=True, slots=True)
class Out:
    """Devices that are out.

    Attributes:
        asked: the request.
        checks: how far each device comes.
        held: what claims have.
        noun: for a device.
    """

    asked: Demand
    checks: Iterable[Check]
    held: Held
    noun: str

    @property
    def all_words(self) -> str:
        """All of them; empty if there are none."""
        return ", ".join(filter(None, (self.tainted, self._held_whole(), self._free_elsewhere())))

    @property
    def tainted(self) -> str:
        """Which devices are kept off by a taint, and why; empty if none is."""
        by_cause: dict[str, list[str]] = {}
        for each in self._at(Stage.TAINTED):
            taint = each.taints[0]
            by_cause.setdefault(taint.key, []).append(taint.value)
        return ", ".join(self._cause_words(key, values) for key, values in sorted(by_cause.items()))

    def _at(self, stage: Stage) -> list[Check]:
        return [each for each in self.checks if each.stage is stage]

    def _cause_words(self, key: str, values: Sequence[str]) -> str:
        domain, _, cause = key.partition("/")
        count = len(values)
        if domain != DRA_DRIVER or cause not in _CAUSES:
            devices_have = words.count_are(count, self.noun, "has", "have")
            return f"{devices_have} taint {words.shown(key)}"
        singular, plural = _CAUSES[cause]
        devices_are = words.count_are(count, self.noun, singular, plural)
        faults = sorted(set(filter(None, values)))
        if not faults:
            return devices_are
        listed = words.some(faults)
        return f"{devices_are} ({words.shown(listed)})"

    def _held_whole(self) -> str:
        """How many devices of which a share is wanted one claim has whole; empty if there are none."""
        if "memory" not in self.asked.request.amounts:
            return ""
        whole = sum(self._is_held_whole(each) for each in self._at(Stage.TAKEN))
        return f"{words.count_are(whole, self.noun, 'is', 'are')} held whole" if whole else ""

    def _is_held_whole(self, taken: Check) -> bool:
        device = taken.device
        memory = device.own("memory")
        is_used_up = taken.word == memory and not self.held.free(device, memory)
        return is_used_up and self.held.holders(device) == 1

    def _free_elsewhere(self) -> str:
        """How many devices have room on nodes where the pod may not be; empty if there are none."""
        roomy = [each.device for each in self._at(Stage.NOT_ON_NODE) if self._is_free(each.device)]
        if not roomy:
            return ""
        have = words.count_are(len(roomy), self.noun, "has", "have")
        nodes = words.some(dict.fromkeys(device.node for device in roomy))
        return f"{have} as much free where the pod may not be ({nodes})"

    def _is_free(self, device: Device) -> bool:
        taints = untolerated(device.taints, self.asked.request.tolerations)
        return not taints and has_room(self.asked, device, self.held)
