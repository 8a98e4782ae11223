"""How far a device comes for a request: kube-scheduler's checks, one after the other.

Source: k8s.io/dynamic-resource-allocation v0.36.3, structured/internal/incubating.
"""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuscheduler.core.explain.claim_facts import ClaimFacts, ClassFacts, DeviceRequest, DeviceToleration
from gpuscheduler.core.explain.expression import Tree
from gpuscheduler.core.explain.published import (
    Capacity,
    Device,
    DeviceKey,
    DeviceTaint,
    Published,
    Word,
    full_word,
)
from gpuscheduler.core.explain.selection import (
    STEPS_OF_CHARACTER,
    STEPS_OF_DEVICE,
    Selection,
    Work,
    conditions,
    selects,
)


class Stage(enum.IntEnum):
    """The check that a device fails; later ones come closer."""

    NOT_SELECTED = enum.auto()
    NO_CAPACITY = enum.auto()
    """It lacks a capacity that the request names."""
    TOO_SMALL = enum.auto()
    """It has too little also when it is unused."""
    NOT_ON_NODE = enum.auto()
    """The pod may not be on its node."""
    TAINTED = enum.auto()
    TAKEN = enum.auto()
    """Others have it, or too much of it."""
    FITS = enum.auto()


@dataclass(frozen=True, slots=True)
class Check:
    """What became of a device.

    Attributes:
        device: that was checked.
        stage: that it came to.
        met: how many conditions it meets before the first that it does not.
        word: the capacity of which it has too little, or which it lacks.
        taints: that keep the claim off.
    """

    device: Device
    stage: Stage
    met: int = 0
    word: Word | None = None
    taints: tuple[DeviceTaint, ...] = ()


class ForAll(enum.Enum):
    """What a device means for a request for all devices of its node."""

    GIVEN = enum.auto()
    LEFT_OUT = enum.auto()
    """It does not match, or others have too much of it: kube-scheduler gives the other devices."""
    REFUSES = enum.auto()
    """It matches and cannot be given, so the request gets no device of the node."""


class Held:
    """What claims have of the devices.

    Args:
        published: the devices.
        claims: all, of all namespaces.
    """

    def __init__(self, published: Published, claims: Iterable[ClaimFacts]) -> None:
        self._consumed: dict[DeviceKey, Counter[Word]] = {}
        self._holders: Counter[DeviceKey] = Counter()
        # Copies, because what claims take is subtracted.
        self._counters = {pool: Counter(values) for pool, values in published.counters.items()}
        devices = {device.key: device for device in published.devices}
        for claim in claims:
            for allocated in claim.devices:
                key = allocated.key
                consumed = _full_words(allocated.consumed, key.driver)
                # A claim may have a device that is no longer published.
                self._take(key, consumed, devices.get(key))

    def _take(self, key: DeviceKey, amounts: Mapping[Word, int], device: Device | None) -> None:
        self._consumed.setdefault(key, Counter()).update(amounts)
        self._holders[key] += 1
        is_first = self._holders[key] == 1
        if device and is_first:
            # Further shares of a device take nothing more of the counters.
            self._change_counters(device, -1)

    def _change_counters(self, device: Device, sign: int) -> None:
        pool = self._counters.setdefault((device.key.driver, device.key.pool), Counter())
        for counter, value in device.counters.items():
            pool[counter] += sign * value

    def add(self, device: Device, amounts: Mapping[Word, int]) -> None:
        """Count a request of the claim itself."""
        self._take(device.key, amounts, device)

    def remove(self, device: Device, amounts: Mapping[Word, int]) -> None:
        """Take that back."""
        self._consumed[device.key].subtract(amounts)
        self._holders[device.key] -= 1
        if not self._holders[device.key]:
            self._change_counters(device, 1)

    def free(self, device: Device, word: Word) -> int:
        """How much of a capacity no claim has."""
        if not self.can_be_given(device):
            return 0
        consumed = self._consumed.get(device.key)
        used = consumed[word] if consumed else 0
        return max(0, device.capacity[word].value - used)

    def holders(self, device: Device) -> int:
        """How many claims have the device or a part of it."""
        return self._holders.get(device.key, 0)

    def can_be_given(self, device: Device) -> bool:
        """Whether another claim can have the device or a part of it, as far as amounts do not count."""
        if self.holders(device):
            return device.is_shared
        if not device.counters:
            return True
        pool = self._counters.setdefault((device.key.driver, device.key.pool), Counter())
        return all(pool[counter] >= value for counter, value in device.counters.items())

    def is_in_held_set(self, device: Device) -> bool:
        """Whether the device itself is free, and another device takes what it is made of."""
        return not self.holders(device) and not self.can_be_given(device)


def _full_words(amounts: Mapping[str, int], driver: str) -> dict[Word, int]:
    """Amounts by the full names of their capacities. A claim writes those of its driver without the driver."""
    return {full_word(name, driver): amount for name, amount in amounts.items()}


@dataclass(frozen=True, slots=True)
class Condition:
    """A part of a selector that has to hold by itself.

    Attributes:
        text: as it is written.
        tree: None if it is not read here.
        device_class: whose selector it is; empty for the request's own.
    """

    text: str
    tree: Tree | None
    device_class: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """A request with what its class adds.

    Attributes:
        request: as the claim has it.
        conditions: that a device must meet.
    """

    request: DeviceRequest
    conditions: tuple[Condition, ...]

    def wanted(self, device: Device) -> dict[Word, int | None]:
        """The amounts that the request names, by full name."""
        return {full_word(name, device.key.driver): value for name, value in self.request.amounts.items()}

    def consumed(self, device: Device) -> dict[Word, int] | Word:
        """What it takes of each capacity; the capacity of which it can never have as much."""
        wanted = self.wanted(device)
        taken: dict[Word, int] = {}
        for word, capacity in device.capacity.items():
            amount = _consumed(capacity, word, wanted)
            if amount is None or amount > capacity.value:
                return word
            taken[word] = amount
        return taken


def _consumed(capacity: Capacity, word: Word, wanted: Mapping[Word, int | None]) -> int | None:
    named = wanted.get(word)
    if word in wanted and named is None:
        # What is written is not an amount.
        return None
    return capacity.consumed(named)


def demand(request: DeviceRequest, device_class: ClassFacts | None, work: Work) -> Demand:
    """A request with the selectors of its class, if that is known. Raises WorkSpent."""
    wanted: list[Condition] = []
    if device_class:
        for expression in device_class.selectors:
            wanted += [Condition(text, tree, device_class.name) for text, tree in conditions(expression)]
    for expression in request.selectors:
        # Those of classes are few, and an administrator's.
        work.spend(STEPS_OF_CHARACTER * len(expression))
        wanted += [Condition(text, tree) for text, tree in conditions(expression)]
    return Demand(request, tuple(wanted))


def check(asked: Demand, device: Device, held: Held, off: Mapping[str, str], work: Work) -> Check:  # noqa: PLR0911
    """How far a device comes. Raises WorkSpent.

    Args:
        asked: the request.
        device: that is checked.
        held: what other claims have.
        off: name of each node where the pod may not be to the reason.
        work: that may be spent.
    """
    work.spend(STEPS_OF_DEVICE)
    for met, condition in enumerate(asked.conditions):
        if selects(condition.tree, device, work) is Selection.REFUSES:
            return Check(device, Stage.NOT_SELECTED, met)
    for name in asked.request.amounts:
        # Unlike attributes, kube-scheduler compares these names as they are written.
        if name not in device.capacity_names:
            return Check(device, Stage.NO_CAPACITY, word=full_word(name, device.key.driver))
    taken = asked.consumed(device)
    if isinstance(taken, Word):
        return Check(device, Stage.TOO_SMALL, word=taken)
    if device.node in off:
        return Check(device, Stage.NOT_ON_NODE)
    taints = untolerated(device.taints, asked.request.tolerations)
    if taints:
        return Check(device, Stage.TAINTED, taints=taints)
    if asked.request.is_admin:
        return Check(device, Stage.FITS)
    return _check_use(device, taken, held)


def _check_use(device: Device, taken: Mapping[Word, int], held: Held) -> Check:
    if not held.can_be_given(device):
        return Check(device, Stage.TAKEN)
    for word, amount in taken.items():
        if held.free(device, word) < amount:
            return Check(device, Stage.TAKEN, word=word)
    return Check(device, Stage.FITS)


def for_all(asked: Demand, checked: Check, held: Held) -> ForAll:
    """What a device means for a request for all of them."""
    match checked.stage:
        case Stage.FITS:
            return ForAll.GIVEN
        case Stage.TAKEN if checked.word is None:
            # It has no parts, or is in use with linked ones.
            return ForAll.REFUSES
        case Stage.TAINTED:
            is_too_full = held.can_be_given(checked.device) and not has_room(asked, checked.device, held)
            return ForAll.LEFT_OUT if is_too_full else ForAll.REFUSES
    return ForAll.LEFT_OUT


def has_room(asked: Demand, device: Device, held: Held) -> bool:
    """Whether others leave enough of a device."""
    taken = asked.consumed(device)
    return not isinstance(taken, Word) and _check_use(device, taken, held).stage is Stage.FITS


def untolerated(taints: Iterable[DeviceTaint], tolerations: Sequence[DeviceToleration]) -> tuple[DeviceTaint, ...]:
    """The taints that keep a request off a device."""
    kept = []
    for taint in taints:
        # An effect of None is for people to read.
        is_tolerated = any(_tolerates(toleration, taint) for toleration in tolerations)
        if taint.effect != "None" and not is_tolerated:
            kept.append(taint)
    return tuple(kept)


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value
