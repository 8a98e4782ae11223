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
_BINARY = {
    "Ki": 10,
    "Mi": 20,
    "Gi": 30,
    "Ti": 40,
    "Pi": 50,
    "Ei": 60,
}
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
    suffix = match["suffix"]
    has_digits = match["zeros"] or whole or part
    binary = _BINARY.get(suffix)
    exponent = _exponent(suffix)
    has_known_suffix = binary is not None or exponent is not None
    if not has_digits or not has_known_suffix:
        return None
    significant = (whole + part).strip("0")
    if not significant:
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
    # Kubelet reads none beyond 64 bits, and Python would refuse to read thousands of digits.
    if match is None or len(match["digits"]) > len(str(MOST)):
        return None
    digits = match["digits"] or "0"
    exponent = int(match["sign"] + digits)
    has_64_bits = -MOST - 1 <= exponent <= MOST
    if not has_64_bits:
        return None
    return _wrapped(exponent, 32)


def _wrapped(value: int, bits: int) -> int:
    """What a signed integer of so many bits keeps of the value."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _binary(whole: str, part: str, exponent: int) -> int | None:
    if len(part) > _FAST_DIGITS:
        # The API server stores a rounded text, never this one.
        return None
    if len(whole) > len(str(MOST)):
        return MOST
    digits = whole + part or "0"
    scaled = int(digits) << exponent
    divisor: int = 10 ** len(part)
    rounded_up = -(-scaled // divisor)
    return min(rounded_up, MOST)


def _decimal(whole: str, part: str, exponent: int) -> int | None:
    digits = whole + part
    scale = exponent - len(part)
    value = _scaled(digits, scale)
    has_few_digits = len(digits) <= _FAST_DIGITS
    is_fast = has_few_digits and scale >= _FAST_SCALE
    is_checked = is_fast and scale not in _WRAPPING
    if value > MOST and is_checked:
        return 0
    kept = _wrapped(value, 64)
    return kept if kept >= 0 else None


def _scaled(digits: str, scale: int) -> int:
    """The number times ten to the power of `scale`, rounded up; of large ones, a number that is equal in 64 bits."""
    if scale >= _LOW_DIGITS:
        # Or a multiple of it, which is equal in 64 bits.
        return 2**64
    if scale >= 0:
        power: int = 10**scale
        low_digits = digits[-_LOW_DIGITS:]
        return int(low_digits) * power
    whole = digits[:scale]
    low_digits = whole[-_LOW_DIGITS:] or "0"
    has_rest = bool(digits[scale:].strip("0"))
    return int(low_digits) + has_rest
