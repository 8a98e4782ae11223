"""The last hour on the page of a node, in a real browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import expect

from gpuagent.pages.http_server import HttpServer, json_page
from gpuagent.pages.web_pages import node_pages
from tests.e2e.browser import PHONE, is_wider_than_the_window, opened
from tests.e2e.test_links_drawing import STATUS

HELD = "GPU-held"
FREE = "GPU-free"
HOUR: dict[str, Any] = {
    "gpus": {
        HELD: {
            "memory": [None] * 10 + [float(minute) for minute in range(50)],
            "busy": [None] * 10 + [100.0 if minute % 10 < 5 else 0.0 for minute in range(50)],
        }
    }
}


def gpu(index: int, uuid: str) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": uuid,
        "model": "NVIDIA A100-SXM4-80GB",
        "memory_mib": 81920,
        "health": "Healthy",
        "mig": False,
        "recovering": False,
        "cause": None,
    }


@contextmanager
def served() -> Iterator[str]:
    status = STATUS | {"gpus": [gpu(0, HELD), gpu(1, FREE)]}
    pages = {
        **node_pages(),
        "/status": json_page(lambda: status),
        "/hour": json_page(lambda: HOUR),
        "/metrics": lambda: ("text/plain", b""),
        "/table": lambda: ("text/plain", b"node n1"),
    }
    server = HttpServer(("127.0.0.1", 0), pages, probes={})
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.stop()


def test_a_gpu_that_was_held_has_its_last_hour_and_another_one_has_none() -> None:
    with served() as url, opened(url, PHONE) as page:
        drawing = page.locator(f"[id='{HELD}'] svg.hour")
        expect(drawing).to_have_attribute(
            "aria-label",
            "last hour: memory used 25 % on average, 49 % at most; busy 50 % on average, 100 % at most",
        )
        expect(drawing.locator("path")).to_have_count(2)
        expect(page.locator(f"[id='{FREE}']")).to_be_visible()
        expect(page.locator(f"[id='{FREE}'] svg.hour")).to_have_count(0)
        assert not is_wider_than_the_window(page)


def test_without_scripts_there_is_a_table() -> None:
    with served() as url, opened(url, scripts=False) as page:
        page.wait_for_url("**/table")
        expect(page.locator("body")).to_have_text("node n1")
