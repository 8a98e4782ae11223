"""Which page is at which path."""

from collections.abc import Callable

from gpuagent.pages.http_server import HttpServer, Page, Probe
from gpuagent.pages.web_pages import SHARED, web_page
from gpuscheduler.metrics import CONTENT_TYPE
from gpuscheduler.pages.plain_table import plain_table

JSON = "application/json"
HTML = "text/html; charset=utf-8"
WEB_FILES = (
    "cluster.css",
    "cluster.js",
    "details.js",
    "first.js",
    "fleet.js",
    "heat.js",
    "lists.js",
    "parts.js",
    "rows.js",
)
"""What the page of the cluster loads, besides what it has in common with the page of a node."""


def page_server(  # noqa: PLR0913 (by name)
    address: tuple[str, int],
    *,
    metrics: Callable[[], bytes],
    usage: Callable[[], tuple[bytes, ...]],
    fleet: Callable[[], tuple[bytes, ...]],
    pods: Callable[[], tuple[bytes, ...]],
    use: Callable[[], bytes],
    defragment: Callable[[], bytes],
    alive: Probe,
    problem: Callable[[], str],
) -> HttpServer:
    """The server of pages and probes, not started. Raises OSError.

    Args:
        address: where it listens.
        metrics: makes the page /metrics, in a thread of the server.
        usage: makes the page /usage in the same way.
        fleet: makes the page /fleet in the same way.
        pods: makes the page /pods in the same way.
        use: makes the page /use in the same way.
        defragment: makes the page /defragment in the same way.
        alive: what is wrong with the process.
        problem: why calls cannot be answered now; empty if they can.
    """
    pages: dict[str, Page] = {
        "/metrics": lambda: (CONTENT_TYPE, metrics()),
        "/usage": lambda: (JSON, usage()),
        "/fleet": lambda: (JSON, fleet()),
        "/pods": lambda: (JSON, pods()),
        "/use": lambda: (JSON, use()),
        "/table": lambda: (HTML, plain_table(b"".join(fleet()), use())),
        "/defragment": lambda: (JSON, defragment()),
        **_cluster_pages(),
    }
    return HttpServer(address, pages, {"/healthz": alive, "/readyz": lambda: problem() or None})


def _cluster_pages() -> dict[str, Page]:
    """The page of the cluster at ``/``, and the files that it loads, by path."""
    pages = {"/": web_page("cluster.html", "gpuscheduler")}
    for name in WEB_FILES:
        pages[f"/{name}"] = web_page(name, "gpuscheduler")
    for name in SHARED:
        pages[f"/{name}"] = web_page(name)
    return pages
