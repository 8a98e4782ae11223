"""Parsers of settings: each reads a text, and raises ValueError that says what is wrong with it.

The chart's schema has the same patterns, so RE2 must be able to read them.
"""

import re
from collections.abc import Callable
from pathlib import Path

from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, Mode

MOST_SECONDS = 999_999

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PREFIX = rf"{_LABEL}(\.{_LABEL})*"
_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_XID = "[0-9]{1,5}"
LONGEST_KEY = 244
"""Characters of a resource's name or a taint's key. Kubernetes takes as many before the slash of a resource."""

XIDS = re.compile(rf"({_XID}(, ?{_XID})*)?")
RESOURCE = re.compile(rf"{_PREFIX}/{_NAME}")
"""Kubelet's rule for an extended resource's name, with `RESERVED_RESOURCE`."""

RESERVED_RESOURCE = re.compile(r"^(requests\.|aliyun\.com/)|kubernetes\.io/")
TAINT_KEY = re.compile(rf"({_PREFIX}/)?{_NAME}")
"""The API server's rule for a taint's key."""

RESERVED_TAINT = re.compile(r"^node\.(cloudprovider\.)?kubernetes\.io/")
"""Kubernetes' own taints, which show problems of a node: the agent does not remove them."""


def path(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        msg = f"{text!r} is not an absolute path"
        raise ValueError(msg)
    return path


def path_or_off(text: str) -> Path | None:
    return None if text in {"", "off"} else path(text)


def count(text: str) -> int:
    # Digits of other scripts are decimal, too.
    is_number = text.isascii() and text.isdecimal()
    if not is_number or int(text) < 1:
        msg = f"{text!r} is not a whole number of 1 or more"
        raise ValueError(msg)
    return int(text)


def count_or_off(text: str) -> int | None:
    return None if text in {"", "off"} else count(text)


def step(text: str) -> int:
    step = count(text)
    if CORE_PERCENT_PER_GPU % step:
        msg = f"{text!r} does not divide the {CORE_PERCENT_PER_GPU} percent of a GPU"
        raise ValueError(msg)
    return step


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    # This refuses NaN as well, which is in no range.
    if not 0 <= number <= MOST_SECONDS:
        msg = f"{text!r} is not a number of seconds from 0 to {MOST_SECONDS}"
        raise ValueError(msg)
    return number


def seconds_or_off(text: str) -> float | None:
    return None if text in {"", "off"} else seconds(text)


def xids(text: str) -> frozenset[int]:
    numbers = set()
    for part in text.split(","):
        number = part.strip()
        if not number:
            continue
        if not re.fullmatch(_XID, number):
            msg = f"{number!r} is not the number of an XID; give a list such as 63,94"
            raise ValueError(msg)
        numbers.add(int(number))
    return frozenset(numbers)


def address(text: str) -> tuple[str, int] | None:
    if text in {"", "off"}:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        msg = f"{text!r} is not HOST:PORT, :PORT or off"
        raise ValueError(msg)
    # An IPv6 address stands in brackets, because it has colons itself.
    return host.strip("[]"), int(port)


def is_on(text: str) -> bool:
    """Read true or false. Raises ValueError."""
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        msg = f"{text!r} is neither true nor false"
        raise ValueError(msg)
    return known[text.lower()]


def mode(text: str) -> Mode:
    return Mode(one_of(*Mode)(text))


def resource(text: str) -> str | None:
    if not text:
        return None
    if text.startswith("aliyun.com/"):
        msg = f"{text!r} is one of the agent's own resources; name another, such as nvidia.com/gpu"
        raise ValueError(msg)
    is_free = RESOURCE.fullmatch(text) and not RESERVED_RESOURCE.search(text)
    if not is_free or len(text) > LONGEST_KEY:
        msg = f"{text!r} is not a resource name such as nvidia.com/gpu"
        raise ValueError(msg)
    return text


def taint_key(text: str) -> str:
    is_key = TAINT_KEY.fullmatch(text) and len(text) <= LONGEST_KEY
    if text and not is_key:
        msg = f"{text!r} is not the key of a taint, such as example.com/gpu-starting (no value, no effect)"
        raise ValueError(msg)
    if RESERVED_TAINT.search(text):
        msg = f"{text!r} is a taint of Kubernetes' own, which says what is wrong with the node; name one of yours"
        raise ValueError(msg)
    return text


def one_of(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            msg = f"{text!r} is not one of {', '.join(known)}"
            raise ValueError(msg)
        return text

    return parse
