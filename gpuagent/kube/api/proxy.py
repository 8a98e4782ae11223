"""The proxy to the API server, as Go programs choose and read it."""

import ipaddress
import re
from base64 import b64encode
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import getproxies

from gpuagent.kube.api.api_errors import ApiConfigError
from gpuagent.kube.api.host_and_port import ascii_address

_SCHEMES = ("http", "https")

ADVICE = "Set HTTPS_PROXY, or proxy-url in the kubeconfig, to a URL such as http://proxy.example.com:3128"


def proxy_to(server: str, named: str = "") -> str:
    """URL of the proxy to a server, empty for none. Raises ApiConfigError as `proxy_url` does.

    Args:
        server: URL of the API server.
        named: `proxy-url` of a kubeconfig, which comes before the variables of the environment.
    """
    variables = getproxies()
    proxy = named or variables.get(urlsplit(server).scheme) or variables.get("all") or ""
    # Go clients do not ask the proxy for a loopback address either.
    if not proxy or _is_loopback(server) or _is_excepted(server, variables.get("no", "")):
        return ""
    return proxy_url(proxy)


def proxy_url(text: str) -> str:
    """A proxy's URL with its scheme; like curl and Go, `proxy.corp:3128` means `http://proxy.corp:3128`.

    Args:
        text: of `HTTPS_PROXY` or its siblings, or `proxy-url` of a kubeconfig.

    Raises:
        ApiConfigError: it is not a proxy that the agent can use. The text shows no user and no password.
    """
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        rest = scheme
        scheme = "http"
    scheme = scheme.lower()
    if scheme and scheme not in _SCHEMES:
        raise ApiConfigError(f"a proxy with the scheme {scheme} is not supported. {ADVICE}")
    # A proxy's path means nothing. Go ignores it too.
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, at, host_and_port = authority.rpartition("@")
    address = ascii_address(host_and_port)
    if not scheme or not address:
        raise ApiConfigError(f"the proxy has no valid host and port. {ADVICE}")
    url = f"{scheme}://{login}{at}{address}"
    try:
        login_header(url)
    except UnicodeError as err:
        raise ApiConfigError(f"the proxy's user or password has a character that cannot be sent. {ADVICE}") from err
    return url


def without_login(url: str) -> str:
    """The URL of a proxy without user and password, as HTTP clients get it."""
    scheme, _, authority = url.partition("://")
    _, _, address = authority.rpartition("@")
    return f"{scheme}://{address}"


def login_header(url: str) -> str:
    """The header `Proxy-Authorization` for the user and password in a proxy's URL; empty without them.

    HTTP clients make it of Latin-1 and fail for other letters. Go sends the bytes as the URL has them, thus UTF-8.

    Raises:
        UnicodeError: the URL has half a surrogate pair, as JSON can have.
    """
    _, _, authority = url.partition("://")
    login, _, _ = authority.rpartition("@")
    if not login:
        return ""
    user, _, password = login.partition(":")
    credentials = _bytes_of(user) + b":" + _bytes_of(password)
    return f"Basic {b64encode(credentials).decode()}"


def _bytes_of(text: str) -> bytes:
    # A variable of the environment may have bytes that are not UTF-8. They are sent as they are.
    return unquote_to_bytes(text.encode("utf-8", "surrogateescape"))


def _is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_excepted(server: str, no_proxy: str) -> bool:
    """Whether `NO_PROXY` names the server: by name, domain, address, network, or any of these with its port."""
    parts = urlsplit(server)
    host = parts.hostname or ""
    host_and_port = parts.netloc.lower()
    address = _address(host)
    for entry in no_proxy.lower().split(","):
        excepted = entry.strip()
        if not excepted:
            continue
        if excepted == "*" or _contains(excepted, address):
            return True
        domain = excepted.lstrip(".")
        if _is_below(host, domain) or _is_below(host_and_port, domain):
            return True
    return False


def _is_below(name: str, domain: str) -> bool:
    return name == domain or name.endswith(f".{domain}")


def _contains(network: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    try:
        return address is not None and address in ipaddress.ip_network(network, strict=False)
    except ValueError:  # a name
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:  # a name
        return None
