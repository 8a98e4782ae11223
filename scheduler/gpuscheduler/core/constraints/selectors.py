"""Selectors of labels, as kube-scheduler reads them."""

import re
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuscheduler.core.constraints.labels import NOT_KEPT, Labels

MOST_REQUIREMENTS = 64
"""Requirements of one selector that are read."""
MOST_VALUES = 1000
"""Values of one requirement that are read."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


class Unreadable(Exception):  # noqa: N818 (it is no error of ours)
    """A rule that kube-scheduler refuses to read, so that it places no pod with it."""


class TooLarge(Exception):  # noqa: N818
    """A rule that is too large to be checked here. kube-scheduler checks it. It says what there is more of."""

    def __init__(self, most: int, what: str) -> None:
        super().__init__(f"more than {most} {what}")


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one label must be.

    Attributes:
        key: of the label.
        operator: as it is written in the Kubernetes API.
        values: that are compared with the label's.
    """

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, value: str | None) -> bool:
        """Whether a label may have this value; None if the object does not have the label.

        A value that is not kept is neither in the values nor not in them.
        """
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values and value != NOT_KEPT
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return self._compares(value)

    def may_match(self, value: str | None) -> bool:
        """Whether the label may match, as far as its value is kept."""
        is_not_kept = value == NOT_KEPT and self.operator in {"In", "NotIn"}
        return is_not_kept or self.matches(value)

    def _compares(self, value: str | None) -> bool:
        if value is None or not _INTEGER.fullmatch(value):
            return False
        (bound,) = self.values
        is_greater = self.operator == "Gt"
        return int(value) > int(bound) if is_greater else int(value) < int(bound)


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects objects by their labels.

    Attributes:
        requirements: that all have to match.
        nothing: whether it selects no object.
    """

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it selects every object."""
        return not self.requirements and not self.nothing

    def matches(self, labels: Labels) -> bool:
        """Whether it selects an object with these labels."""
        if self.nothing:
            return False
        return all(requirement.matches(labels.get(requirement.key)) for requirement in self.requirements)

    def may_match(self, labels: Labels) -> bool:
        """Whether it may select an object with these labels, some of which have a value that is not kept."""
        if self.nothing:
            return False
        return all(requirement.may_match(labels.get(requirement.key)) for requirement in self.requirements)


NOTHING = Selector(nothing=True)


def label_selector(written: object) -> Selector:
    """Read a LabelSelector. One that is absent selects nothing, and an empty one selects everything."""
    if written is None:
        return NOTHING
    selector = mapping(written)
    match_labels = mapping(selector.get("matchLabels"))
    _check_size(match_labels)
    requirements = [Requirement(key, "In", frozenset([text(value)])) for key, value in match_labels.items()]
    for expression in mappings(selector.get("matchExpressions")):
        requirements.append(requirement(expression, {"In", "NotIn", "Exists", "DoesNotExist"}))
        _check_size(requirements)
    return Selector(tuple(requirements))


def node_requirements(expressions: object) -> tuple[Requirement, ...]:
    """Read what the labels of a node must be."""
    requirements: list[Requirement] = []
    for expression in mappings(expressions):
        requirements.append(requirement(expression, {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}))
        _check_size(requirements)
    return tuple(requirements)


def requirement(expression: Mapping[str, Any], operators: Iterable[str]) -> Requirement:
    """Read one requirement, which has to have one of these operators."""
    operator = text(expression.get("operator"))
    if operator not in operators:
        raise Unreadable(f"operator {operator[:20]!r} is not one")
    written = expression.get("values")
    values = written if isinstance(written, list) else []
    if len(values) > MOST_VALUES:
        raise TooLarge(MOST_VALUES, "values in one requirement")
    texts = frozenset(value for value in values if isinstance(value, str))
    if operator in {"In", "NotIn"} and not texts:
        raise Unreadable(f"operator {operator} has no values")
    if operator in {"Exists", "DoesNotExist"} and texts:
        raise Unreadable(f"operator {operator} has values")
    if operator in {"Gt", "Lt"}:
        is_integer = len(texts) == 1 and all(_INTEGER.fullmatch(value) for value in texts)
        if not is_integer:
            raise Unreadable(f"operator {operator} needs one whole number")
    return Requirement(text(expression.get("key")), operator, texts)


def _check_size(requirements: Sized) -> None:
    if len(requirements) > MOST_REQUIREMENTS:
        raise TooLarge(MOST_REQUIREMENTS, "requirements in one selector")
