"""A real browser: Chromium without a window."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from tests.e2e.cluster.waiting import WAIT_S

CHROMIUM = "/usr/bin/chromium-headless-shell"
DESK = ViewportSize(width=1280, height=900)
PHONE = ViewportSize(width=360, height=740)

_WAIT_MS = WAIT_S * 1000
expect.set_options(timeout=_WAIT_MS)


@contextmanager
def opened(url: str, size: ViewportSize = DESK, *, scripts: bool = True) -> Iterator[Page]:
    """A page that shows this address. Fails at the end if its scripts failed, or the page forbade a part of itself."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=_WAIT_MS)
        page = browser.new_page(viewport=size, java_script_enabled=scripts)
        page.set_default_timeout(_WAIT_MS)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Security Policy" in said.text else None)
        page.goto(url)
        yield page
        # What a test answers in the server's place may be on its way still.
        page.unroute_all(behavior="ignoreErrors")
        browser.close()
        assert wrong == []


def is_wider_than_the_window(page: Page) -> bool:
    """Whether one has to scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))
