"""The page of a real node in a real browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import ViewportSize, expect

from tests.e2e.agent.conftest import Node
from tests.e2e.browser import DESK, PHONE, is_wider_than_the_window, opened
from tests.e2e.cluster import pod_manifest

MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
HIDE = """hidden => {
    Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """A node where memory and compute are given out, unisolated."""
    made = make_node(mode="core_mem", flags=("--allow-unisolated", "true"))
    made.wait_amounts(mem=640, core=800)
    return made


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_it_shows_what_is_held_and_used_and_follows(node: Node, size: ViewportSize) -> None:
    url = f"http://127.0.0.1:{node.agent.port}/"
    with opened(url, size) as page:
        expect(page.locator(".card")).to_have_count(8)
        node.run(pod_manifest("trains", {MEM: 10, CORE: 30}))
        (uuid,) = node.gpus_of("trains", "main")
        gpu = page.locator(f"[id='{uuid}']")
        expect(gpu).to_contain_text("default/trains[main]")
        expect(gpu).to_contain_text("10 GiB, 30 %")
        expect(page.locator("#facts")).to_contain_text("10 GiB of 640 GiB")
        pid = node.cluster.container("trains", "main").pid
        node.agent.inject(fault="process", gpu=uuid, pid=pid, mib=3072, kind="mps", sm=25)
        expect(gpu).to_contain_text("10 GiB of 80 GiB held, 3 GiB used")
        expect(gpu).to_contain_text("3 GiB, 25 %")
        node.agent.inject(fault="xid", gpu=7, code=79)
        expect(page.locator("#problems")).to_contain_text("GPUUnhealthy")
        expect(page.locator(".badge.bad")).to_have_count(1)
        expect(page.locator("#facts")).to_contain_text("7 of 8")
        page.locator("summary").click()
        expect(page.locator("#drawing > svg .gpu")).to_have_count(8)
        expect(page.locator("#drawing > svg .gpu.held")).to_have_count(1)
        expect(page.locator("#drawing > svg .gpu.unhealthy")).to_have_count(1)
        expect(page.locator("#drawing")).to_contain_text("through NVSwitches")
        assert not is_wider_than_the_window(page)
        node.end("trains")
        # The simulated driver's process does not end with its container.
        expect(gpu).to_contain_text("no container, 1 process")
        node.agent.inject(fault="end", gpu=uuid, pid=pid)
        expect(gpu).to_contain_text("no containers")


def test_it_reads_nothing_while_no_one_looks_and_says_when_the_agent_is_gone(node: Node) -> None:
    with opened(f"http://127.0.0.1:{node.agent.port}/") as page:
        page.clock.install()
        page.reload()
        expect(page.locator(".card")).to_have_count(8)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        with page.expect_request("**/metrics"):
            page.clock.run_for(60_000)
        page.evaluate(HIDE, arg=True)
        page.wait_for_load_state("networkidle")
        asked.clear()
        page.clock.run_for(60_000)
        assert asked == []
        with page.expect_request("**/status"):
            page.evaluate(HIDE, arg=False)
        expect(page.locator(".card")).to_have_count(8)
        node.agent.kill()
        page.clock.run_for(60_000)
        expect(page.locator("#live")).to_contain_text("not live")
        expect(page.locator(".card")).to_have_count(8)
