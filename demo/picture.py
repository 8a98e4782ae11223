"""The screenshots of the documents: the pages of a simulated node and fleet in Chromium. `make picture` makes them."""

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Page, ViewportSize, sync_playwright

from demo.__main__ import offers, run, until
from demo.fleet import fleet, use_page
from demo.gpu_user import gpu_user
from demo.node import DemoNode
from demo.served_fleet import served_fleet
from gpuagent.domain.fleet.agent_pods import AgentPods
from gpuagent.system.output import exit_with

PORT = 9446
FLEET = 40
"""Nodes on the page of the cluster."""
IMAGES = Path(__file__).parents[1] / "docs" / "img"
WINDOW = ViewportSize(width=1280, height=800)
WHOLE_BOX = ViewportSize(width=1280, height=1180)
"""So that the GPU with the fault, the seventh, is in the picture."""
NARROW = ViewportSize(width=940, height=800)
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Names of the browser's program; Debian's package `chromium-headless-shell` has the first."""
FIRST_MINUTE_MS = 180_000
"""How long to wait at most for the drawing of the last hour, which has a step for each whole minute."""


class Share(NamedTuple):
    """A share of a GPU: GiB of memory and percent of compute, held and used."""

    gpu: int
    held_gib: int
    held_percent: int
    used_gib: int
    used_percent: int


SHARES = {
    "asr": Share(gpu=0, held_gib=16, held_percent=15, used_gib=13, used_percent=12),
    "chat": Share(gpu=0, held_gib=8, held_percent=20, used_gib=7, used_percent=14),
    "embed": Share(gpu=0, held_gib=10, held_percent=30, used_gib=9, used_percent=24),
    "rank": Share(gpu=0, held_gib=20, held_percent=25, used_gib=14, used_percent=22),
    "ocr": Share(gpu=1, held_gib=40, held_percent=60, used_gib=31, used_percent=35),
}
"""By name of the pod."""


def main() -> int:
    """Make all. The exit code: 1 if there is no browser, or a node does not come to the state that is shown."""
    try:
        chromium = _chromium()
        _shares(chromium)
        _links(chromium)
        _cluster(chromium)
    except RuntimeError as err:
        print(f"picture: {err}", file=sys.stderr)
        return 1
    return 0


def _chromium() -> str:
    programs = filter(None, map(shutil.which, CHROMIUM))
    program = next(programs, None)
    if program is None:
        raise RuntimeError(f"no browser found ({', '.join(CHROMIUM)}): apt-get install chromium-headless-shell")
    return program


def _shares(chromium: str) -> None:
    """README's: shares of memory and compute on a DGX A100, and a GPU with a fault."""
    with DemoNode("dgx-a100", PORT) as node, ExitStack() as users:
        node.install_mps()
        node.api.label_node({"ack.node.gpu.schedule": "core_mem"})
        until(node, offers(node, "aliyun.com/gpu-mem", 640))
        busy = Counter[int]()
        for name, share in SHARES.items():
            run(node, name, mem=share.held_gib, core=share.held_percent)
            uid = node.api.objects.get(("pods", "default", name))["metadata"]["uid"]
            pid = users.enter_context(gpu_user(uid))
            node.inject(fault="process", gpu=share.gpu, pid=pid, mib=share.used_gib << 10, sm=share.used_percent)
            busy[share.gpu] += share.used_percent
        for gpu, percent in busy.items():
            node.inject(fault="busy", gpu=gpu, percent=percent)
        node.inject(fault="xid", gpu=6, code=79)
        until(node, lambda page: page["gpus"][6]["health"] == "Unhealthy")

        def shown(page: Page) -> None:
            page.set_viewport_size(WHOLE_BOX)
            page.locator(".problem").wait_for()
            # The last hour begins with the first whole minute.
            page.get_by_text("Last hour").first.wait_for(timeout=FIRST_MINUTE_MS)
            page.screenshot(path=IMAGES / "page.png")

        _visit(chromium, node.url, shown)


def _links(chromium: str) -> None:
    """The one of docs/topology.md: the links of a DGX-1 with a notebook, the two pods of a job, and a fault."""
    with DemoNode("dgx1-v100", PORT) as node:
        node.api.label_node({"ack.node.gpu.schedule": "topology"})
        until(node, offers(node, "aliyun.com/gpu", 8))
        run(node, "notebook", gpus=1)
        for name in ("train-0", "train-1"):
            run(node, name, labels={"gpu-topology": "train", "gpu-topology-replica": "2"}, gpus=1)
        node.inject(fault="xid", gpu=7, code=79)
        until(node, lambda page: page["gpus"][7]["health"] == "Unhealthy")

        def shown(page: Page) -> None:
            page.set_viewport_size(NARROW)
            page.locator("summary").click()
            page.locator("#drawing > svg .gpu.unhealthy").wait_for()
            page.locator("#links").screenshot(path=IMAGES / "links.png")

        _visit(chromium, node.url, shown)


def _cluster(chromium: str) -> None:
    """The one of docs/gpuscheduler.md: forty nodes, one of them opened."""
    cluster = fleet(FLEET)
    use = asyncio.run(use_page(cluster))

    def shown(page: Page) -> None:
        page.locator("#details .list").wait_for()
        page.screenshot(path=IMAGES / "cluster.png")

    with served_fleet(cluster, use, AgentPods("kube-system")) as url:
        _visit(chromium, f"{url}?node=gpu-t4-0003", shown, "#fleet tbody a")


def _visit(chromium: str, url: str, shown: Callable[[Page], None], sign: str = ".card") -> None:
    """Have `shown` look at the page once it has a part that matches `sign`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=WINDOW)
        page.goto(url)
        page.locator(sign).first.wait_for()
        shown(page)
        browser.close()


if __name__ == "__main__":
    exit_with("picture", main)
