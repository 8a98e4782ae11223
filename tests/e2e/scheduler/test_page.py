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
        expect(page.locator("#nodes article")).to_have_count(12)
        assert page.locator("#nodes h2").all_inner_texts() == [f"node-{n}" for n in range(12)]
        control_plane.add_pods([pod("holds", {GPU_MEM: 60}), pod("waits", {GPU_MEM: 100})])
        expect(page.locator("#nodes")).to_contain_text("default/holds")
        expect(page.locator("#nodes")).to_contain_text("20 GiB of 80 GiB free")
        expect(page.locator("#nodes")).to_contain_text("100 GiB of 160 GiB free")
        expect(page.locator("#waiting")).to_contain_text("node(s) had no GPU with 100 GiB")
        expect(page.locator("#facts")).to_contain_text("60 GiB of 1920 GiB")
        page.locator("#named").fill("holds")
        expect(page.locator("#nodes article")).to_have_count(1)
        page.locator("#named").fill("no-such-node")
        expect(page.locator("#more")).to_have_text("no such node")
        assert not is_wider_than_the_window(page)
        control_plane.delete_pods(["holds", "waits"])
        page.locator("#named").fill("")
        expect(page.locator("#nodes")).not_to_contain_text("default/holds")
        expect(page.locator("#waiting")).to_be_empty()
