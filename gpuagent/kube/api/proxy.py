"""The proxy to the API server, as Go programs read it."""

from urllib.parse import urlsplit

from gpuagent.kube.api.api_errors import ApiConfigError

_SCHEMES = ("http", "https")


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
        scheme, url = "http", f"http://{url}"
    scheme = scheme.lower()
    advice = "Set HTTPS_PROXY, or proxy-url in the kubeconfig, to a URL such as http://proxy.example.com:3128"
    if scheme and scheme not in _SCHEMES:
        raise ApiConfigError(f"a proxy with the scheme {scheme} is not supported. {advice}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # brackets without an IPv6 address, or a port that is not a number up to 65535
        host, port = None, None
    if not scheme or not host or not host.isprintable() or " " in host or port == 0:
        raise ApiConfigError(f"the proxy has no valid host and port. {advice}")
    return url
