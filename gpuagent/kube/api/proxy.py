"""The proxy to the API server, as Go programs choose and read it."""

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies

from gpuagent.kube.api.api_errors import ApiConfigError

_SCHEMES = ("http", "https")


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
    url = text.strip()
    scheme, separator, _ = url.partition("://")
    if not separator:
        scheme = "http"
        url = f"http://{url}"
    scheme = scheme.lower()
    advice = "Set HTTPS_PROXY, or proxy-url in the kubeconfig, to a URL such as http://proxy.example.com:3128"
    if scheme and scheme not in _SCHEMES:
        raise ApiConfigError(f"a proxy with the scheme {scheme} is not supported. {advice}")
    if not scheme or not _has_host(url):
        raise ApiConfigError(f"the proxy has no valid host and port. {advice}")
    return url


def _has_host(url: str) -> bool:
    """Whether the URL has a host that can be looked up, and no invalid port."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port
    except ValueError:  # brackets without an IPv6 address, or a port that is not a number up to 65535
        return False
    is_name = host.isprintable() and " " not in host
    return bool(host) and is_name and port != 0


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
