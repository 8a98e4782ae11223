"""Checks what a claim's requests name: amounts that people can mean, and no configuration.

The scheduler rounds an amount up to what the device offers, so a memory of `8` (bytes) becomes a whole unit in silence.
The chart's admission policy refuses the same texts earlier.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU, DRA_DRIVER

Json = Mapping[str, Any]
LEAST_MEMORY = 2**20
"""Bytes. A smaller amount has usually lost its suffix: `8` instead of `8Gi`."""
_MOST_GUESS = 5
"""Digits of a number that may have been meant as GiB."""


def requests_of(claim: Json) -> dict[str, Json]:
    """The requests of a claim, by the name that its allocation has for them."""
    requests: dict[str, Json] = {}
    devices = mapping_at(claim, "spec", "devices")
    for request in mappings(devices.get("requests")):
        name = text(request.get("name"))
        requests[name] = mapping(request.get("exactly"))
        alternatives = mappings(request.get("firstAvailable"))
        for alternative in alternatives:
            end = text(alternative.get("name"))
            requests[f"{name}/{end}"] = alternative
    return requests


def check_requests(claim: Json, allocated: set[str]) -> None:
    """Check the requests that have devices of this driver.

    Args:
        claim: the ResourceClaim.
        allocated: names of those requests.

    Raises:
        Refusal: an amount is too small, too large or not whole, or the claim has a configuration for this driver.
    """
    for name, request in requests_of(claim).items():
        # A monitor asks for nothing of the GPUs, which is an amount of 0.
        is_monitor = request.get("adminAccess") is True
        if name not in allocated or is_monitor:
            continue
        amounts = mapping_at(request, "capacity", "requests")
        _check_memory(amounts)
        _check_cores(amounts)
        _check_sharers(amounts)
    if DRA_DRIVER in _configured(claim):
        words = f"the claim has a configuration for driver {DRA_DRIVER}, which takes none: remove it from the claim"
        raise Refusal(Reason.CLAIM_INVALID, f"{words} and from its class, and name amounts in capacity.requests")


def _check_memory(amounts: Json) -> None:
    if "memory" not in amounts:
        return
    amount_text = _amount_text(amounts["memory"])
    size = amount(amount_text)
    if size is None or size < LEAST_MEMORY:
        words = (
            f"the claim asks for memory {amount_text}, which is less than one MiB: amounts are bytes without a suffix"
        )
        meant = _meant_memory(amount_text)
        raise Refusal(Reason.CLAIM_INVALID, f"{words}; did you mean {meant}?")


def _check_cores(amounts: Json) -> None:
    if "cores" not in amounts:
        return
    amount_text = _amount_text(amounts["cores"])
    percent = amount(amount_text)
    is_whole = amount_text.isascii() and amount_text.isdecimal()
    if percent is None or percent > CORE_PERCENT_PER_GPU or not is_whole:
        words = f"the claim asks for cores {amount_text}, and cores are a whole percentage of a GPU, 0 to 100"
        meant = _meant_cores(amount_text)
        raise Refusal(Reason.CLAIM_INVALID, f"{words}; did you mean {meant}?")


def _check_sharers(amounts: Json) -> None:
    """With another number, the claim would not count as one of those that share the GPU."""
    if "sharers" not in amounts:
        return
    amount_text = _amount_text(amounts["sharers"])
    if amount(amount_text) != 1:
        words = f"the claim asks for sharers {amount_text}, and counts as 1 of the claims that share a GPU"
        raise Refusal(Reason.CLAIM_INVALID, f"{words}: leave sharers out, unless the request has adminAccess")


def _amount_text(value: object) -> str:
    """The text of an amount, which YAML may have read as a number."""
    if isinstance(value, int):
        return str(value)
    return text(value)


def _meant_memory(amount_text: str) -> str:
    """The amount that was probably meant: ``8Gi`` for ``8``, ``-8Gi`` and ``8k``."""
    digits = _digits(amount_text)
    return f"{digits}Gi" if digits else "1Gi"


def _meant_cores(amount_text: str) -> str:
    """The percentage that was probably meant: ``30`` for ``0.3``, ``-30`` and ``300m``."""
    percent = amount_text
    if amount_text.startswith("0."):
        decimals = amount_text.removeprefix("0.") + "0"
        percent = decimals[:2]
    elif amount_text.endswith("m"):
        thousandths = amount_text.removesuffix("m")
        percent = thousandths[:-1]
    digits = _digits(percent)
    is_possible = bool(digits) and int(digits) <= CORE_PERCENT_PER_GPU
    return digits if is_possible else str(CORE_PERCENT_PER_GPU)


def _digits(amount_text: str) -> str:
    """The whole number with which the text begins, without a sign; empty if it is 0 or too long."""
    unsigned = amount_text.lstrip("+-").lstrip("0")
    digits = ""
    for char in unsigned:
        if char not in "0123456789":
            break
        digits += char
    return digits if len(digits) <= _MOST_GUESS else ""


def _configured(claim: Json) -> Iterator[str]:
    """Drivers that the claim, or a class of its allocated requests, has a configuration for."""
    asked_devices = mapping_at(claim, "spec", "devices")
    allocated_devices = mapping_at(claim, "status", "allocation", "devices")
    for devices in (asked_devices, allocated_devices):
        for config in mappings(devices.get("config")):
            opaque = mapping(config.get("opaque"))
            yield text(opaque.get("driver"))
