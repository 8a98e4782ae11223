"""The files of the page for a browser. They are read when one asks for them."""

from importlib.resources import files

from gpuagent.pages.http_server import Page

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
SHARED = ("page.css", "live.js")
"""What the pages of the agent and of the scheduler have in common."""


def node_pages() -> dict[str, Page]:
    """The page of the node at ``/``, and the files that it loads, by path."""
    pages = {"/": web_page("node.html")}
    for name in (*SHARED, "links.js", "hour.js", "node.js"):
        pages[f"/{name}"] = web_page(name)
    return pages


def web_page(name: str, package: str = __package__) -> Page:
    """The file of this name in the folder `web` of a package."""
    content_type = TYPES[name.rpartition(".")[2]]
    file = files(package) / "web" / name
    return lambda: (content_type, file.read_bytes())
