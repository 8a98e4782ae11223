"""Hosts and ports in URLs, as both HTTP clients can use them."""

import ipaddress
import re

_HOST_AND_PORT = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:]+))(?P<port>:[0-9]{0,5})?")
_ADDRESS = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9._~-]+)?")
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_MOST_PORT = 65535


def ascii_address(text: str) -> str:
    """Host and port as HTTP clients take them, names in ASCII; empty for a host or port that cannot exist."""
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None:
        return ""
    port = match["port"] or ""
    number = port.removeprefix(":")
    if number and not 0 < int(number) <= _MOST_PORT:
        return ""
    host = _ascii_host(match)
    return f"{host}{port}" if host else ""


def _ascii_host(match: re.Match[str]) -> str:
    try:
        address = match["address"]
        if address:
            ipaddress.IPv6Address(address)
            # Python takes any letters for the zone, and the clients do not.
            return f"[{address}]" if _ADDRESS.fullmatch(address) else ""
        # Fails for an empty label, and for one of more than 63 letters.
        name = match["name"].encode("idna").decode("ascii")
    except ValueError:
        return ""
    return name if _NAME.fullmatch(name) else ""
