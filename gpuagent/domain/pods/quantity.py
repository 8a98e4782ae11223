"""Kubernetes quantities (``5``, ``5e0``, ``2k``, ``1Gi``), read as kubelet reads the amount of an extended resource.

Kubelet takes `Value()` of k8s.io/apimachinery's `resource.Quantity`: rounded up, in 64 bits. This module also copies
the overflow beyond 2^63-1, because the API server stores such texts: kubelet reads `18446744073709551620` as 4.
"""

import re

MOST = 2**63 - 1
_DECIMAL = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
"""Suffix to a power of ten."""
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
"""Suffix to a power of two."""
_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<zeros>0*+)(?P<whole>[0-9]*+)(?:\.(?P<part>[0-9]*+))?+(?P<suffix>[a-zA-Z0-9+-]*)"
)
_EXPONENT = re.compile(r"[eE](?P<sign>[+-]?)0*+(?P<digits>[0-9]*+)(?<=[0-9])")
_FAST_DIGITS = 18
_FAST_SCALE = -9
"""Kubelet reads a text of at most 18 digits, from 10^-9 on, into one number of 64 bits."""
_WRAPPING = {1, 2, 3, 6, 9}
"""Powers of ten by which kubelet multiplies that number without a check, so it wraps. Elsewhere an overflow is 0."""
_LOW_DIGITS = 64
"""2^64 divides 10^64, so only the last 64 digits count in 64 bits."""


def amount(text: str) -> int | None:
    """Kubelet's value of the text; None if it is no quantity, or a negative one.

    The work is bounded by the length of the text, for any exponent.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    whole = match["whole"]
    part = match["part"] or ""
    has_digits = match["zeros"] or whole or part
    binary = _BINARY.get(match["suffix"])
    exponent = _exponent(match["suffix"])
    if not has_digits or (binary is None and exponent is None):
        return None
    if not (whole + part).strip("0"):
        return 0
    if match["sign"] == "-":
        return None
    if binary is not None:
        return _binary(whole, part, binary)
    return _decimal(whole or "0", part, exponent or 0)


def _exponent(suffix: str) -> int | None:
    """Power of ten; kubelet reads one of 64 bits and keeps 32 of them."""
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    match = _EXPONENT.fullmatch(suffix)
    if match is None or len(match["digits"]) > len(str(MOST)):
        return None
    exponent = int(match["sign"] + (match["digits"] or "0"))
    if not -MOST - 1 <= exponent <= MOST:
        return None
    return _wrapped(exponent, 32)


def _wrapped(value: int, bits: int) -> int:
    """What a signed integer of so many bits keeps of the value."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _binary(whole: str, part: str, exponent: int) -> int | None:
    if len(part) > _FAST_DIGITS:
        return None  # the API server stores a rounded text, never this one
    if len(whole) > len(str(MOST)):
        return MOST
    scaled = int(whole + part or "0") << exponent
    divisor: int = 10 ** len(part)
    rounded_up = -(-scaled // divisor)
    return min(rounded_up, MOST)


def _decimal(whole: str, part: str, exponent: int) -> int | None:
    digits = whole + part
    scale = exponent - len(part)
    value = _scaled(digits, scale)
    is_fast = len(digits) <= _FAST_DIGITS and scale >= _FAST_SCALE
    if value > MOST and is_fast and scale not in _WRAPPING:
        return 0
    value = _wrapped(value, 64)
    return value if value >= 0 else None


def _scaled(digits: str, scale: int) -> int:
    """The number times ten to the power of `scale`, rounded up; of large ones, a number that is equal in 64 bits."""
    if scale >= _LOW_DIGITS:
        return 2**64  # or a multiple
    if scale >= 0:
        power: int = 10**scale
        return int(digits[-_LOW_DIGITS:]) * power
    kept = digits[:scale][-_LOW_DIGITS:]
    has_rest = bool(digits[scale:].strip("0"))
    return int(kept or "0") + has_rest
