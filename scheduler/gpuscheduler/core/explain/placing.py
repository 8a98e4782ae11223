"""Whether all requests of a pod fit on one node together: a search that ends after a number of tries."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuscheduler.core.explain import words
from gpuscheduler.core.explain.claim_facts import DeviceConstraint
from gpuscheduler.core.explain.device_check import Demand, ForAll, Held, Stage, check, for_all
from gpuscheduler.core.explain.published import Device, Value, Word, full_word
from gpuscheduler.core.explain.selection import Selection, Work, selects

MOST_TRIES = 4000
"""Devices that are tried for one pod."""


@dataclass(frozen=True, slots=True)
class Part:
    """A request of one of the pod's claims, with the constraints of that claim.

    Attributes:
        alternatives: best first; mostly one.
        constraints: of the claim.
    """

    alternatives: tuple[Demand, ...]
    constraints: tuple[DeviceConstraint, ...] = ()

    @property
    def name(self) -> str:
        """The name of the request."""
        return self.alternatives[0].request.name.partition("/")[0]


@dataclass(slots=True)
class Search:
    """Places the requests of a pod on nodes, one after the other.

    Attributes:
        parts: the requests.
        held: what other claims have. It is changed during the search, and as before afterwards.
        off: nodes where the pod may not be.
        work: for selectors.
        keeps_constraints: whether constraints count.
        tries: that are left.
    """

    parts: Sequence[Part]
    held: Held
    off: Mapping[str, str]
    work: Work
    keeps_constraints: bool = True
    tries: int = MOST_TRIES
    _values: dict[tuple[int, int], list[Value | None]] = field(default_factory=dict)
    _all_for: dict[int, list[Device]] = field(default_factory=dict)

    @property
    def gave_up(self) -> bool:
        """Whether the search ended before it was certain that there is no place."""
        return self.tries <= 0

    def fits(self, devices: Sequence[Device]) -> bool:
        """Whether the devices of one node are enough."""
        # As kube-scheduler does, before the requests of the pod itself take anything.
        for part in self.parts:
            for asked in part.alternatives:
                if not asked.request.count:
                    self._all_for[id(asked)] = self._wanted_by(asked, devices)
        return self._place(0, devices)

    def _wanted_by(self, asked: Demand, devices: Sequence[Device]) -> list[Device]:
        """The devices that a request for all of them has to get."""
        wanted = []
        for device in devices:
            checked = check(asked, device, self.held, self.off, self.work)
            if for_all(asked, checked, self.held) is not ForAll.LEFT_OUT:
                wanted.append(device)
        return wanted

    def _place(self, number: int, devices: Sequence[Device]) -> bool:
        if number == len(self.parts):
            return True
        return any(self._take(number, asked, devices, 0, 0) for asked in self.parts[number].alternatives)

    def _take(self, number: int, asked: Demand, devices: Sequence[Device], taken: int, start: int) -> bool:
        """Take further devices for a request, and then those of the next ones."""
        count = asked.request.count
        if not count:
            return self._take_all(number, asked, devices)
        if taken == count:
            return self._place(number + 1, devices)
        for position in range(start, len(devices)):
            device = devices[position]
            self.tries -= 1
            if self.gave_up:
                return False
            amounts = self._amounts(asked, device)
            if amounts is None or not self._note(number, asked, device):
                continue
            self.held.add(device, amounts)
            is_placed = self._take(number, asked, devices, taken + 1, position + 1)
            self.held.remove(device, amounts)
            self._forget(number, asked)
            if is_placed:
                return True
        return False

    def _take_all(self, number: int, asked: Demand, devices: Sequence[Device]) -> bool:
        """Take each device for a request for all of them, and then those of the next ones."""
        taken: list[tuple[Device, Mapping[Word, int]]] = []
        wanted = self._all_for[id(asked)]
        for device in wanted:
            self.tries -= 1
            amounts = self._amounts(asked, device)
            # Each of them has to meet the constraints, too.
            if self.gave_up or amounts is None or not self._note(number, asked, device):
                break
            self.held.add(device, amounts)
            taken.append((device, amounts))
        has_all = bool(taken) and len(taken) == len(wanted)
        is_placed = has_all and self._place(number + 1, devices)
        for device, consumed in taken:
            self.held.remove(device, consumed)
            self._forget(number, asked)
        return is_placed

    def _amounts(self, asked: Demand, device: Device) -> dict[Word, int] | None:
        """What the request takes of a device; None if it cannot have it."""
        if check(asked, device, self.held, self.off, self.work).stage is not Stage.FITS:
            return None
        return self._consumed(asked, device)

    def _consumed(self, asked: Demand, device: Device) -> dict[Word, int]:
        """What the request takes of a device that it can have; one that is only looked at takes nothing."""
        amounts = asked.consumed(device)
        if asked.request.is_admin or isinstance(amounts, Word):
            return {}
        return amounts

    def _note(self, number: int, asked: Demand, device: Device) -> bool:
        """Keep the device's values of the attributes that must match; whether they do."""
        if not self.keeps_constraints:
            return True
        self.work.spend(len(self.parts[number].constraints))
        noted: list[tuple[int, int]] = []
        for position, constraint in enumerate(self.parts[number].constraints):
            if not constraint.concerns(asked.request):
                continue
            value = device.attributes.get(full_word(constraint.attribute, device.key.driver))
            key = id(self.parts[number].constraints), position
            values = self._values.setdefault(key, [])
            if value is None or any(value != other for other in values):
                for former in noted:
                    self._values[former].pop()
                return False
            values.append(value)
            noted.append(key)
        return True

    def _forget(self, number: int, asked: Demand) -> None:
        if not self.keeps_constraints:
            return
        for position, constraint in enumerate(self.parts[number].constraints):
            if constraint.concerns(asked.request):
                self._values[id(self.parts[number].constraints), position].pop()


def unchecked(parts: Sequence[Part], devices: Sequence[Device], work: Work) -> Iterator[str]:
    """What kube-scheduler checks of devices that are free for all else, and is not checked here. Raises WorkSpent.

    Where that counts, nothing is said to be free.
    """
    for part in parts:
        for asked in part.alternatives:
            yield from _of_selectors(asked, devices, work)
            if asked.request.is_admin:
                # Some versions of kube-scheduler compare amounts for these, too.
                yield "what adminAccess needs"


def _of_selectors(asked: Demand, devices: Sequence[Device], work: Work) -> Iterator[str]:
    for condition in asked.conditions:
        selections = {selects(condition.tree, device, work) for device in devices}
        if Selection.NOT_CHECKED in selections:
            yield words.shown(condition.text)
