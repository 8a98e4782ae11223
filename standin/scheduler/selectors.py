"""The part of CEL in which DeviceClasses and requests usually select devices, as Python.

Operators, ``in``, texts, numbers, ``device.driver``, ``device.allowMultipleAllocations``,
``device.attributes["DOMAIN"].NAME``, ``"NAME" in device.capacity["DOMAIN"]``.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

Json = Mapping[str, Any]

_TEXT = re.compile(r"""("[^"]*"|'[^']*')""")
_WORDS = ((r"&&", " and "), (r"\|\|", " or "), (r"!(?!=)", " not "), (r"\btrue\b", "True"), (r"\bfalse\b", "False"))


def selects(expression: str, driver: str, device: Json) -> bool:
    """Whether the expression holds for a device; false where CEL would end with an error."""
    parts = _TEXT.split(expression)
    for number in range(0, len(parts), 2):  # the others are texts
        for word, python in _WORDS:
            parts[number] = re.sub(word, python, parts[number])
    try:
        return eval("".join(parts).strip(), {"__builtins__": {}}, {"device": _device(driver, device)}) is True
    except (AttributeError, KeyError, TypeError):
        return False


def attribute(driver: str, device: Json, name: str) -> Any:  # noqa: ANN401 - text, number or truth
    """Value of a fully qualified attribute; None if the device lacks it."""
    domain, _, short = name.rpartition("/")
    return vars(_device(driver, device).attributes.get(domain, SimpleNamespace())).get(short)


def _device(driver: str, device: Json) -> SimpleNamespace:
    values: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in (device.get("attributes") or {}).items():
        domain, short = _parts(name, driver)
        values[domain][short] = next(iter(value.values()))
    capacity: dict[str, set[str]] = defaultdict(set)
    for name in device.get("capacity") or {}:
        domain, short = _parts(name, driver)
        capacity[domain].add(short)
    return SimpleNamespace(
        driver=driver,
        allowMultipleAllocations=bool(device.get("allowMultipleAllocations")),
        attributes={domain: SimpleNamespace(**of_domain) for domain, of_domain in values.items()},
        capacity=capacity,
    )


def _parts(name: str, driver: str) -> tuple[str, str]:
    """Domain and name of an attribute or a capacity. Without a domain, it is the driver's."""
    domain, _, short = name.rpartition("/")
    return domain or driver, short
