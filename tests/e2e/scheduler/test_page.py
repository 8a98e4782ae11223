"""The page of the cluster in a real browser."""

from collections.abc import Callable, Iterable

import pytest
from playwright.sync_api import ViewportSize, expect

from gpuagent.domain.sharing.mode import GPU_MEM
from tests.e2e.browser import DESK, PHONE, is_wider_than_the_window, opened
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import share_node
from tests.e2e.scheduler.pods import pod
from tests.e2e.scheduler.replica import Replica


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_it_shows_what_is_held_and_which_pods_wait_and_why(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    make_replica: Callable[..., Replica],
    size: ViewportSize,
) -> None:
    make_allocations(share_node(f"node-{n}", gpus=2) for n in range(12))
    replica = make_replica("a")
    with opened(f"http://127.0.0.1:{replica.pages_port}/", size) as page:
        rows = page.locator("#fleet tbody tr:not(.spacer)")
        # A phone shows some of them at a time.
        expect(page.locator("#fleet")).to_have_attribute("aria-rowcount", "13")
        expect(rows.first).to_contain_text("node-0")
        control_plane.add_pods([pod("holds", {GPU_MEM: 60}), pod("waits", {GPU_MEM: 100})])
        expect(page.locator("#facts")).to_contain_text("60 GiB of 1920 GiB")
        page.locator("#filter").fill("holds")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("60 of 160 GiB")
        rows.click()
        expect(page.locator("#details")).to_contain_text("default/holds")
        expect(page.locator("#details")).to_contain_text("60 GiB of 80 GiB held")
        page.keyboard.press("Escape")
        page.locator("#filter").fill("no-such-node")
        expect(page.locator("#count")).to_have_text("no such node")
        page.locator("#filter").fill("")
        page.locator("#tab-waiting").click()
        expect(page.locator("#waiting")).to_contain_text("node(s) had no GPU with 100 GiB")
        assert not is_wider_than_the_window(page)
        control_plane.delete_pods(["holds", "waits"])
        expect(page.locator("#waiting")).to_contain_text("No pod waits for GPUs.")
        expect(page.locator("#facts")).to_contain_text("0 GiB of 1920 GiB")
