"""Whether a selector takes a device, and which names it uses."""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import ge, gt, le, lt
from typing import Any

from gpuagent.domain.pods.quantity import amount
from gpuscheduler.core.explain.expression import (
    AllOf,
    AnyOf,
    Call,
    Compared,
    Literal,
    Member,
    Name,
    Not,
    Sequence,
    Tree,
    Unparsable,
    parsed,
)
from gpuscheduler.core.explain.published import Device, Version, Word, version

MOST_WORK = 200_000
"""Steps of one explanation, of about 1 µs each: 0.2 s. A tenant may write large claims.

Each device may be looked at once beyond that, so that usual claims are explained in clusters of any size.
"""
STEPS_OF_DEVICE = 12
"""What looking at a device for a request takes, beside the request's selectors."""
_STEPS_OF_LOOK = 32
"""The same with the selectors of usual requests."""
STEPS_OF_CHARACTER = 2
"""What reading a selector takes for each of its characters."""


class Selection(enum.Enum):
    """What a selector says of a device."""

    TAKES = enum.auto()
    REFUSES = enum.auto()
    NOT_CHECKED = enum.auto()
    """It has something that is not read here. So kube-scheduler alone knows."""


@dataclass(frozen=True, slots=True)
class Mentioned:
    """A name that a selector uses.

    Attributes:
        kind: `attributes` or `capacity`.
        word: its full name.
    """

    kind: str
    word: Word


@dataclass(frozen=True, slots=True)
class _Quantity:
    value: int


class _Absent(Exception):  # noqa: N818 (no error of ours)
    """CEL ends with an error, because the device lacks something."""


class _NotChecked(Exception):  # noqa: N818
    """It cannot be said here."""


class WorkSpent(Exception):  # noqa: N818
    """An explanation would take too many steps."""


class Work:
    """Counts the steps of an explanation.

    Args:
        devices: how many there are.
        steps: that may be taken beside one look at each device.
    """

    def __init__(self, devices: int = 0, steps: int = MOST_WORK) -> None:
        self._left = steps + devices * _STEPS_OF_LOOK

    def spend(self, steps: int = 1) -> None:
        """Take steps. Raises WorkSpent when there are none left."""
        self._left -= steps
        if self._left < 0:
            raise WorkSpent


# Each may be the half of a MiB, and any author of claims may write other ones.
@lru_cache(maxsize=32)
def conditions(expression: str) -> tuple[tuple[str, Tree | None], ...]:
    """The parts that must all hold, each as it is written; None for one that is not read."""
    try:
        tree = parsed(expression)
    except Unparsable:
        return ((expression, None),)
    if isinstance(tree, AllOf):
        return tuple(zip(tree.texts, tree.parts, strict=True))
    return ((expression.strip(), tree),)


def selects(tree: Tree | None, device: Device, work: Work) -> Selection:
    """Whether a condition holds for a device. Raises WorkSpent."""
    if tree is None:
        return Selection.NOT_CHECKED
    try:
        value = _Evaluation(device, work).value(tree)
    except _Absent:
        return Selection.REFUSES
    except _NotChecked:
        return Selection.NOT_CHECKED
    return Selection.TAKES if value is True else Selection.REFUSES


def mentioned(tree: Tree | None) -> Iterator[Mentioned]:
    """The attributes and capacities of which a condition needs the value."""
    match tree:
        case Member(Member(Member(Name("device"), Literal(kind)), Literal(domain)), Literal(name)):
            if kind in {"attributes", "capacity"}:
                yield Mentioned(str(kind), Word(str(domain), str(name)))
        case Member(of, key):
            yield from mentioned(of)
            yield from mentioned(key)
        case Call(_, of, arguments) as call:
            # What `has` asks for may be absent.
            needed = () if _is_test_of_presence(call) else (of, *arguments)
            yield from chain.from_iterable(map(mentioned, needed))
        case Sequence(parts) | AnyOf(parts) | AllOf(parts, _):
            for part in parts:
                yield from mentioned(part)
        case Not(of):
            yield from mentioned(of)
        case Compared(_, left, right):
            yield from mentioned(left)
            yield from mentioned(right)


@dataclass(frozen=True, slots=True)
class _OfDomain:
    """`device.attributes["DOMAIN"]`, or the same of capacities."""

    kind: str
    domain: str


class _Evaluation:
    """The values of an expression for one device."""

    def __init__(self, device: Device, work: Work) -> None:
        self._device = device
        self._work = work

    def value(self, tree: Tree) -> Any:  # noqa: ANN401, PLR0911 (of any type)
        """The value. Raises _Absent or _NotChecked."""
        self._work.spend()
        match tree:
            case Literal(value):
                return value
            case Member(of, key):
                return self._member(of, key)
            case Call():
                return self._call(tree)
            case Sequence(items):
                return [self.value(item) for item in items]
            case Not(of):
                return not self._truth(of)
            case AllOf(parts, _):
                return self._joined(parts, decisive=False)
            case AnyOf(parts):
                return self._joined(parts, decisive=True)
            case Compared(operator, left, right):
                return self._compared(operator, left, right)
        raise _NotChecked

    def _truth(self, tree: Tree) -> bool:
        value = self.value(tree)
        if not isinstance(value, bool):
            raise _Absent
        return value

    def _joined(self, parts: tuple[Tree, ...], *, decisive: bool) -> bool:
        """As CEL joins truths: a part with the decisive value counts more than one that ends with an error."""
        problem: Exception | None = None
        for part in parts:
            try:
                if self._truth(part) is decisive:
                    return decisive
            except _Absent as absent:
                problem = problem or absent
            except _NotChecked as not_checked:
                problem = not_checked
        if problem:
            raise problem
        return not decisive

    def _member(self, of: Tree, key: Tree) -> Any:  # noqa: ANN401
        if of == Name("device"):
            return self._of_device(self.value(key))
        inner = self.value(of)
        name = self.value(key)
        if not isinstance(name, str):
            raise _NotChecked
        match inner:
            case _OfDomain(kind, ""):
                return _OfDomain(kind, name)
            case _OfDomain(kind, domain):
                return self._named(kind, Word(domain, name))
        raise _NotChecked

    def _of_device(self, name: object) -> Any:  # noqa: ANN401
        match name:
            case "driver":
                return self._device.key.driver
            case "allowMultipleAllocations":
                return self._device.is_shared
            case "attributes" | "capacity":
                return _OfDomain(str(name), "")
        raise _NotChecked

    def _named(self, kind: str, word: Word) -> Any:  # noqa: ANN401
        if kind == "attributes":
            if word not in self._device.attributes:
                raise _Absent
            return self._device.attributes[word]
        if word not in self._device.capacity:
            raise _Absent
        return _Quantity(self._device.capacity[word].value)

    def _call(self, call: Call) -> Any:  # noqa: ANN401
        if _is_test_of_presence(call):
            return self._has(call.arguments[0])
        arguments = [self.value(argument) for argument in call.arguments]
        if call.of is None:
            return _of_function(call.name, arguments)
        return _of_method(call.name, self.value(call.of), arguments)

    def _has(self, field: Tree) -> bool:
        """Whether the device has what a member names. Without it, that is an answer and not an error."""
        if not isinstance(field, Member):
            raise _NotChecked
        return self._is_in(field.key, field.of)

    def _compared(self, operator: str, left: Tree, right: Tree) -> bool:
        if operator == "in":
            return self._is_in(left, right)
        first = self.value(left)
        second = self.value(right)
        are_of_one_type = type(first) is type(second)
        if operator in {"==", "!="}:
            is_equal = are_of_one_type and first == second
            return is_equal is (operator == "==")
        are_ordered = are_of_one_type and isinstance(first, int | float | str)
        if not are_ordered:
            raise _Absent
        return _ORDERS[operator](first, second)

    def _is_in(self, left: Tree, right: Tree) -> bool:
        key = self.value(left)
        among = self.value(right)
        match among:
            case list():
                return any(type(item) is type(key) and item == key for item in among)
            case _OfDomain(kind, ""):
                return any(word.domain == key for word in self._words(kind))
            case _OfDomain(kind, domain):
                return any(word == (domain, key) for word in self._words(kind))
        raise _NotChecked

    def _words(self, kind: str) -> list[Word]:
        device = self._device
        return [*device.attributes] if kind == "attributes" else [*device.capacity]


_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_IN_TEXT: dict[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}


def _is_test_of_presence(call: Call) -> bool:
    """Whether it is CEL's macro ``has``, whose argument is a member that may be absent."""
    return call.of is None and call.name == "has" and len(call.arguments) == 1


def _of_function(name: str, arguments: list[Any]) -> Any:  # noqa: ANN401
    match name, arguments:
        case "quantity", [str(written)]:
            value = amount(written)
            if value is not None:
                return _Quantity(value)
        case "semver", [str(written)]:
            read = version(written)
            if read is not None:
                return read
        case "size", [list() | str() as of]:
            return len(of)
    raise _NotChecked


def _of_method(name: str, of: Any, arguments: list[Any]) -> Any:  # noqa: ANN401
    match of, arguments:
        case str(), [str(part)] if name in _IN_TEXT:
            return _IN_TEXT[name](of, part)
        case str(), [] if name in {"lowerAscii", "upperAscii"}:
            return of.lower() if name == "lowerAscii" else of.upper()
        case _Quantity(), [_Quantity() as other]:
            return _ordered(name, of.value, other.value)
        case Version(), [Version() as other]:
            return _ordered(name, of, other)
    raise _NotChecked


def _ordered(name: str, first: Any, second: Any) -> bool | int:  # noqa: ANN401
    match name:
        case "isGreaterThan":
            return bool(first > second)
        case "isLessThan":
            return bool(first < second)
        case "compareTo":
            return int(first > second) - int(first < second)
    raise _NotChecked
