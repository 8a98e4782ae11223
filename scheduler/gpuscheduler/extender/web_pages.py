"""The files of the page for a browser."""

from gpuagent.pages.http_server import Page
from gpuagent.pages.web_pages import SHARED, web_page


def cluster_pages() -> dict[str, Page]:
    """The page of the cluster at ``/``, and the files that it loads, by path."""
    own = {"/": web_page("cluster.html", "gpuscheduler"), "/cluster.js": web_page("cluster.js", "gpuscheduler")}
    return own | {f"/{name}": web_page(name) for name in SHARED}
