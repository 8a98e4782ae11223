"""Kubernetes quantities (``5``, ``5e0``, ``2k``, ``1Gi``), read as kubelet reads the amount of an extended resource.

Kubelet takes `Value()` of k8s.io/apimachinery's `resource.Quantity`: rounded up, in 64 bits. This module also copies
the overflow beyond 2^63-1, because the API server stores such texts: kubelet reads `18446744073709551620` as 4.
"""

import re

MOST = 2**63 - 1
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<zeros>0*+)(?P<whole>[0-9]*+)(?:\.(?P<part>[0-9]*+))?+(?P<suffix>[a-zA-Z0-9+-]*)"
)
_EXPONENT = re.compile(r"[eE](?P<sign>[+-]?)0*+(?P<digits>[0-9]*+)(?<=[0-9])")
_FAST_DIGITS, _FAST_SCALE = 18, -9
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
    if match is None or not match["zeros"] + match["whole"] + (match["part"] or ""):
        return None
    whole, part, suffix = match["whole"], match["part"] or "", match["suffix"]
    binary, exponent = _BINARY.get(suffix), _exponent(suffix)
    nothing = not (whole + part).strip("0")
    if (binary is None and exponent is None) or (match["sign"] == "-" and not nothing):
        return None
    if nothing:
        return 0
    return _binary(whole, part, binary) if binary is not None else _decimal(whole or "0", part, exponent or 0)


def _exponent(suffix: str) -> int | None:
    """Power of ten; kubelet reads one of 64 bits and keeps 32 of them."""
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    match = _EXPONENT.fullmatch(suffix)
    if match is None or len(match["digits"]) > len(str(MOST)):
        return None
    found = int(match["sign"] + (match["digits"] or "0"))
    return (found + 2**31) % 2**32 - 2**31 if -MOST - 1 <= found <= MOST else None


def _binary(whole: str, part: str, exponent: int) -> int | None:
    if len(part) > _FAST_DIGITS:
        return None  # the API server stores a rounded text, never this one
    if len(whole) > len(str(MOST)):
        return MOST
    rounded_up: int = -(-(int(whole + part or "0") << exponent) // 10 ** len(part))
    return min(rounded_up, MOST)


def _decimal(whole: str, part: str, exponent: int) -> int | None:
    digits, scale = whole + part, exponent - len(part)
    found: int
    if scale < 0:
        rest = digits[scale:]
        found = int(digits[:scale][-_LOW_DIGITS:] or "0") + bool(rest.strip("0"))
    elif scale < _LOW_DIGITS:
        found = int(digits[-_LOW_DIGITS:]) * 10**scale
    else:
        found = 2**64  # or a multiple
    if found > MOST and len(digits) <= _FAST_DIGITS and scale >= _FAST_SCALE and scale not in _WRAPPING:
        return 0
    found = (found + 2**63) % 2**64 - 2**63
    return found if found >= 0 else None
