"""Checks of NVML's answers. A value that NVML does not allow is an error of that call, and so affects one GPU."""

import ctypes
import re
from collections.abc import Callable
from typing import Any, TypeVar

from gpuagent.nvml.driver_errors import ODD, CallError
from gpuagent.nvml.link_values import bus_id

T = TypeVar("T")

MIB = 1 << 20
MOST_MEMORY = 4 << 40
"""Bytes. No GPU has a quarter of this, and the units of a larger GPU would not fit into a device list."""
MOST_MINOR = 255
"""Device nodes of the driver's major number, 195, have minor numbers of 8 bits."""
MOST_NAME = 96
"""NVML_DEVICE_NAME_V2_BUFFER_SIZE."""
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SHOWN = 80


class OddAnswerError(ValueError):
    """NVML gave an answer that its interface does not allow."""

    def __init__(self, value: object, wanted: str) -> None:
        # The repr of other types may contain an address, and would make every error a new one.
        is_plain = isinstance(value, str | bytes | int | float | None)
        if is_plain:
            text = ascii(value)
            shown = text[:_SHOWN]
        else:
            shown = f"a value of type {type(value).__name__}"
        super().__init__(f"answered {shown}, which is not {wanted}")


def read(function: str, answer: Any, parse: Callable[[Any], T]) -> T:  # noqa: ANN401 (untyped binding)
    """Return `parse(answer)`. Raises CallError, with the same text each time, if the answer is not valid."""
    try:
        return parse(answer)
    except OddAnswerError as err:
        raise CallError(function, ODD, str(err)) from None
    except UnicodeDecodeError as err:
        raise undecodable(function, err) from None
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError, ctypes.ArgumentError):
        # Any of these can come from a parser that was given something else than it expects.
        words = f"answered a value of type {type(answer).__name__}, which is not what NVML defines"
        raise CallError(function, ODD, words) from None


def undecodable(function: str, err: UnicodeDecodeError) -> CallError:
    """The CallError for a text that the binding, which decodes texts itself, could not decode."""
    return CallError(function, ODD, str(OddAnswerError(err.object, "text in UTF-8")))


def whole(value: object, least: int, most: int) -> int:
    """`value`, a number of that range."""
    # Not isinstance: for Python, true and false are numbers.
    if type(value) is not int or not least <= value <= most:
        raise OddAnswerError(value, f"a whole number from {least} to {most}")
    return value


def flag(value: object) -> bool:
    """NVML_FEATURE_DISABLED or NVML_FEATURE_ENABLED."""
    return bool(whole(value, 0, 1))


def unsigned(value: object) -> int:
    """An unsigned C number, such as an index or a count."""
    return whole(value, 0, (1 << 64) - 1)


def gpu_uuid(value: object) -> str:
    """A UUID in NVML's form; no other is safe in environment variables, device ids, Events and terminals."""
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise OddAnswerError(value, "GPU- and a UUID")
    return value


def printable(value: object) -> str:
    """A name or a version that terminals can show."""
    wanted = f"a text of 1 to {MOST_NAME} printable characters"
    if not isinstance(value, str) or not value.isprintable():
        raise OddAnswerError(value, wanted)
    if not 1 <= len(value) <= MOST_NAME:
        raise OddAnswerError(value, wanted)
    return value


def pci_address(info: Any) -> str:  # noqa: ANN401 (NVML's structure)
    """``00000000:07:00.0``."""
    address = bus_id(info.busId)
    if not address:
        raise OddAnswerError(info.busId, "a PCI address")
    return address


def memory(total: object, reserved: object) -> tuple[int, int]:
    """All bytes, and the bytes of those that driver and firmware reserve."""
    total = whole(total, MIB, MOST_MEMORY)
    return total, whole(reserved, 0, total)
