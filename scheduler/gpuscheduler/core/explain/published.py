"""The devices that ResourceSlices publish, as values."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, number, text
from gpuagent.domain.pods.quantity import amount

MOST_DEVICES = 128
"""Devices of a slice that are read. The API server takes no more."""
MOST_TEXT = 128
"""Characters of a name or of an attribute that are kept."""
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


class DeviceKey(NamedTuple):
    """The device that an allocation names."""

    driver: str
    pool: str
    name: str


class Word(NamedTuple):
    """The full name of an attribute or of a capacity."""

    domain: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain}/{self.name}"


class Version(NamedTuple):
    """A semantic version, without what comes after its three numbers."""

    major: int
    minor: int
    patch: int


Value = str | int | bool | Version


@dataclass(frozen=True, slots=True)
class Capacity:
    """An amount of a device, which claims share.

    Attributes:
        value: all of it.
        default: what a request gets that does not name it.
        least: the smallest amount that a request gets; amounts above it grow by `step`.
        step: 0 if any amount goes.
        most: of one request.
        choices: the only amounts that a request gets, ascending; empty if there are no such.
    """

    value: int
    default: int
    least: int = 0
    step: int = 0
    most: int = 0
    choices: tuple[int, ...] = ()

    def consumed(self, wanted: int | None) -> int | None:
        """What a request takes that wants this amount, or names none; None if it cannot have as much."""
        if wanted is None:
            return self.default
        rounded: int | None = wanted
        if self.choices:
            rounded = next((choice for choice in self.choices if choice >= wanted), None)
        elif self.step:
            steps = max(0, -(-(wanted - self.least) // self.step))
            rounded = self.least + steps * self.step
        else:
            rounded = max(wanted, self.least)
        if rounded is None or rounded > self.most:
            return None
        return rounded


class DeviceTaint(NamedTuple):
    """Keeps new claims off a device."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a node.

    Attributes:
        key: by which allocations name it.
        node: that has it.
        attributes: by full name.
        capacity: by full name.
        capacity_names: as the driver has written them.
        is_shared: several claims can have parts of it.
        taints: that keep claims off.
        counters: what it takes of the pool's counters, by set and name.
    """

    key: DeviceKey
    node: str
    attributes: Mapping[Word, Value] = field(default_factory=dict)
    capacity: Mapping[Word, Capacity] = field(default_factory=dict)
    capacity_names: frozenset[str] = frozenset()
    is_shared: bool = False
    taints: tuple[DeviceTaint, ...] = ()
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def own(self, name: str) -> Word:
        """The full name of an attribute or capacity of the driver itself."""
        return Word(self.key.driver, name)

    @property
    def minor(self) -> int | None:
        """The number of the GPU; None if it is not one GPU."""
        return number(self.attributes.get(self.own("minor")))

    @property
    def title(self) -> str:
        """Its name for people: ``node-3 GPU 2``."""
        minor = self.minor
        name = self.key.name if minor is None else f"GPU {minor}"
        return f"{self.node} {name}"


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """One ResourceSlice.

    Attributes:
        name: of the object.
        driver: that published it.
        pool: its name.
        generation: of the pool; older ones do not count.
        slices: how many slices the pool has.
        devices: in order; none if they are not of one node.
        counters: of the pool, by set and name.
        is_of_node: whether its devices are of one node.
    """

    name: str
    driver: str
    pool: str
    generation: int
    slices: int
    devices: tuple[Device, ...] = ()
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    is_of_node: bool = True


@dataclass(frozen=True, slots=True)
class Published:
    """The devices of all complete pools, and their counters by pool.

    Attributes:
        devices: of all nodes.
        counters: by driver and pool, then by set and name.
        elsewhere: drivers with devices that are not of one node, and are not read.
    """

    devices: tuple[Device, ...] = ()
    counters: Mapping[tuple[str, str], Mapping[tuple[str, str], int]] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()


def published(slices: Iterable[SliceFacts]) -> Published:
    """The devices of the newest generation of each pool. Of a pool that is not complete, kube-scheduler gives none."""
    pools: dict[tuple[str, str], list[SliceFacts]] = {}
    elsewhere: set[str] = set()
    for each in slices:
        if not each.is_of_node:
            elsewhere.add(each.driver)
        pool = pools.setdefault((each.driver, each.pool), [])
        if pool and each.generation > pool[0].generation:
            pool.clear()
        if not pool or each.generation == pool[0].generation:
            pool.append(each)
    devices: list[Device] = []
    counters: dict[tuple[str, str], Mapping[tuple[str, str], int]] = {}
    for key, pool in sorted(pools.items()):
        if len(pool) != pool[0].slices:
            continue
        of_pool: dict[tuple[str, str], int] = {}
        for each in sorted(pool, key=lambda each: each.name):
            devices += each.devices
            of_pool.update(each.counters)
        counters[key] = of_pool
    return Published(tuple(devices), counters, frozenset(elsewhere))


def read_slice(resource_slice: Mapping[str, Any]) -> SliceFacts | None:
    """Read a ResourceSlice (decoded JSON); None if it has no driver. Devices that are not of one node are left out."""
    spec = mapping(resource_slice.get("spec"))
    driver = text(spec.get("driver"))[:MOST_TEXT]
    node = text(spec.get("nodeName"))
    if not driver:
        return None
    pool = mapping(spec.get("pool"))
    pool_name = text(pool.get("name"))
    devices = []
    of_node = mappings(spec.get("devices")) if node else ()
    for _, written in zip(range(MOST_DEVICES), of_node, strict=False):
        key = DeviceKey(driver, pool_name, text(written.get("name")))
        devices.append(_device(key, node, written))
    return SliceFacts(
        name=text(mapping_at(resource_slice, "metadata").get("name")),
        driver=driver,
        pool=pool_name,
        generation=number(pool.get("generation")) or 0,
        slices=number(pool.get("resourceSliceCount")) or 1,
        devices=tuple(devices),
        counters=dict(_counters(spec.get("sharedCounters"), "name")),
        is_of_node=bool(node) or not spec.get("devices"),
    )


def full_word(written: str, driver: str) -> Word:
    """The full name of an attribute or capacity, which may lack the domain of its driver."""
    domain, _, name = written.rpartition("/")
    return Word(domain or driver, name)


def _device(key: DeviceKey, node: str, written: Mapping[str, Any]) -> Device:
    attributes: dict[Word, Value] = {}
    for name, value in mapping(written.get("attributes")).items():
        read = _value(mapping(value))
        if read is not None:
            attributes[full_word(name, key.driver)] = read
    capacity: dict[Word, Capacity] = {}
    capacity_names: set[str] = set()
    for name, of_name in mapping(written.get("capacity")).items():
        read_capacity = _capacity(mapping(of_name))
        if read_capacity is not None:
            capacity[full_word(name, key.driver)] = read_capacity
            capacity_names.add(name)
    taints = [_taint(taint) for taint in mappings(written.get("taints"))]
    return Device(
        key=key,
        node=node,
        attributes=attributes,
        capacity=capacity,
        capacity_names=frozenset(capacity_names),
        is_shared=written.get("allowMultipleAllocations") is True,
        taints=tuple(taints),
        counters=dict(_counters(written.get("consumesCounters"), "counterSet")),
    )


def _taint(written: Mapping[str, Any]) -> DeviceTaint:
    key, value, effect = (text(written.get(name)) for name in ("key", "value", "effect"))
    return DeviceTaint(key, value, effect)


def _value(written: Mapping[str, Any]) -> Value | None:
    """The value of an attribute; None if it has another kind."""
    match written:
        case {"string": str(value)}:
            return value[:MOST_TEXT]
        case {"bool": bool(value)}:
            return value
        case {"int": int(value)}:
            return value
        case {"version": str(value)}:
            return version(value)
    return None


def version(written: str) -> Version | None:
    """A semantic version; None if it is none."""
    core, _, _ = written.partition("-")
    core, _, _ = core.partition("+")
    numbers = core.split(".")
    are_numbers = all(map(_NUMBER.fullmatch, numbers))
    if len(numbers) != len(Version._fields) or not are_numbers:
        return None
    return Version(*map(int, numbers))


def _capacity(written: Mapping[str, Any]) -> Capacity | None:
    value = quantity(written.get("value"))
    if value is None:
        return None
    policy = mapping(written.get("requestPolicy"))
    within = mapping(policy.get("validRange"))
    default = quantity(policy.get("default"))
    most = quantity(within.get("max"))
    return Capacity(
        value=value,
        default=value if default is None else default,
        least=quantity(within.get("min")) or 0,
        step=quantity(within.get("step")) or 0,
        most=value if most is None else most,
        choices=_choices(policy.get("validValues")),
    )


def _choices(written: object) -> tuple[int, ...]:
    if not isinstance(written, list):
        return ()
    amounts = [quantity(choice) for choice in written]
    return tuple(sorted(choice for choice in amounts if choice is not None))


def quantity(written: object) -> int | None:
    """A quantity, which YAML may have read as a number; None if it is none."""
    if isinstance(written, int) and not isinstance(written, bool):
        return written if written >= 0 else None
    return amount(text(written)[:MOST_TEXT])


def _counters(written: object, set_key: str) -> Iterator[tuple[tuple[str, str], int]]:
    """Set and name of each counter, and its value."""
    for of_set in mappings(written):
        set_name = text(of_set.get(set_key))
        for name, counter in mapping(of_set.get("counters")).items():
            value = quantity(mapping(counter).get("value"))
            if value is not None:
                yield (set_name, name), value
