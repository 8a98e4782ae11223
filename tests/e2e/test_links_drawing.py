"""The drawing of the links between GPUs, in a real browser, for boxes of every kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from gpuagent.pages.http_server import HttpServer, json_page
from gpuagent.pages.web_pages import node_pages
from tests.e2e.browser import is_wider_than_the_window, opened
from tests.unit.pages import topology_pages as pages

STATUS: dict[str, Any] = {
    "node": "n1",
    "mode": "topology",
    "placement": "binpack",
    "isolation": {"driver": "none", "version": None},
    "memory_unit": "GiB",
    "driver_version": "580",
    "version": "0.1.0",
    "problems": [],
    "switch": {"phase": "steady", "waiting_for": []},
    "gpus": [],
    "resources": {},
}
BOXES = {
    "cube mesh": (pages.dgx1(), 16, "straight to the other GPU"),
    "switches": (pages.switched(), 8, "through NVSwitches"),
    "sixteen": (pages.switched(16), 16, "through NVSwitches"),
    "a link too few": (pages.thin_link(), 3, "17 NVLinks of each GPU"),
    "two fabrics": (pages.two_fabrics(), 12, "through NVSwitches"),
    "bridges": (pages.two_bridges(), 2, "12 NVLinks, straight"),
    "PCIe": (pages.pcie(), 24, "over one PCIe switch at most"),
    "mixed": (pages.mixed(), 3, "through host bridges of one NUMA node"),
    "one": (pages.one(), 0, "free"),
}
"""A page `/topology`, the number of lines, and words of the legend."""


@contextmanager
def drawing(topology: dict[str, Any]) -> Iterator[Locator]:
    """The page with its links open. Fails at the end if a script failed."""
    served = {
        **node_pages(),
        "/status": json_page(lambda: STATUS),
        "/topology": json_page(lambda: topology),
        "/hour": json_page(lambda: {"gpus": {}}),
        "/metrics": lambda: ("text/plain", b""),
    }
    server = HttpServer(("127.0.0.1", 0), served, probes={})
    server.start()
    try:
        with opened(f"http://127.0.0.1:{server.port}/") as page:
            expect(page.locator("#resources thead")).to_have_count(1)
            page.locator("summary").click()
            yield page.locator("#drawing")
            assert not is_wider_than_the_window(page)
    finally:
        server.stop()


@pytest.mark.parametrize("box", BOXES)
def test_every_gpu_is_drawn_and_a_line_for_each_link_of_its_own(box: str) -> None:
    topology, lines, words = BOXES[box]
    with drawing(topology) as drawn:
        expect(drawn.locator("> svg .gpu")).to_have_count(len(topology["gpus"]))
        expect(drawn.locator("> svg line")).to_have_count(lines)
        expect(drawn).to_contain_text(words)


def test_states_of_gpus_are_told_apart() -> None:
    with drawing(pages.dgx1()) as drawn:
        for state, count in {"free": 5, "held": 2, "unhealthy": 1}.items():
            expect(drawn.locator(f"> svg .gpu.{state}")).to_have_count(count)
            expect(drawn).to_contain_text(f"{state} {count} of 8 GPUs")


def test_names_that_others_chose_stay_text() -> None:
    with drawing(pages.hostile()) as drawn:
        expect(drawn.locator("> svg .gpu")).to_have_count(2)
        expect(drawn.locator("script")).to_have_count(0)


def test_a_node_without_gpus_says_so() -> None:
    with drawing(pages.empty()) as drawn:
        expect(drawn).to_contain_text("no GPUs")
