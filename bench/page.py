"""How long a reader of the page of the cluster waits for the nodes, in a real browser."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from bench.node import BenchError
from bench.result import ROOT, Results, Say
from demo.picture import CHROMIUM
from gpuscheduler.pages.paced_reading import RECENT_S

NODES = 5_000
FIRST_MS = 1000
_SHOWN = "performance.getEntriesByName('shown')[0].startTime"
"""When the page has shown the nodes for the first time: ms after its address was opened."""
_SOON_MS = 1000 * RECENT_S + 100
"""After this pause, what the first reader got is too old for the next one."""
_PATIENCE_MS = 120_000
"""If the first reading takes too long on a busy machine, the page asks again after a pause of up to 50 s."""


def measure(results: Results, runs: int, say: Say) -> None:
    """Each run has a server of its own, whose first reader waits until the rows of all nodes are made."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        raise BenchError(f"the page needs a browser: one of {', '.join(CHROMIUM)}")
    say(f"page: {runs} times, {NODES} nodes in a browser")
    first: list[float] = []
    later: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(runs):
            with _served() as url:
                first.append(_wait_ms(browser, url))
                later.append(_wait_ms(browser, url, pause_ms=_SOON_MS))
        browser.close()
    what = f"page of {NODES:,} nodes in a browser"
    results.reaction(f"{what}: the first reader", "page: first reader ms", first, FIRST_MS)
    results.reaction(f"{what}: a reader {RECENT_S:.0f} s later", "page: later reader ms", later, FIRST_MS)


def _wait_ms(browser: Browser, url: str, pause_ms: float = 0.0) -> float:
    """What one reader waits, who comes after a pause and has nothing of the page in a cache."""
    context = browser.new_context()
    page = context.new_page()
    page.wait_for_timeout(pause_ms)
    page.goto(url)
    page.locator("#facts dd").first.wait_for(timeout=_PATIENCE_MS)
    shown_ms = float(page.evaluate(_SHOWN))
    context.close()
    return shown_ms


@contextmanager
def _served() -> Iterator[str]:
    """The address of the page of a fleet, in a process of its own."""
    command = [sys.executable, "-m", "demo.served_fleet", str(NODES)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:  # noqa: S603
        assert server.stdin is not None
        assert server.stdout is not None
        url = server.stdout.readline().decode().strip()
        if not url:
            raise BenchError("the page of the fleet did not start")
        try:
            yield url
        finally:
            server.stdin.close()
