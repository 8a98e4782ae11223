"""The page of the cluster in a real browser, for a small and for a large fleet."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, Route, expect

from demo.fleet import fleet, use_page
from demo.served_fleet import PROBLEMS_URL, no_use, served_fleet
from gpuagent.domain.fleet.agent_pods import AgentPods
from tests.e2e.browser import PHONE, is_wider_than_the_window, opened
from tests.e2e.cluster import WAIT_S

FEW = 40
MANY = 5000
AGENTS = "gpu"
"""Namespace of the agents."""
ROWS = "#fleet tbody tr:not(.spacer)"
CONTRAST = """element => {
    const numbers = (color) => color.match(/[0-9.]+/g).map(Number);
    const isClear = (color) => numbers(color)[3] === 0;
    let behind = element;
    while (isClear(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
    const linear = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const light = (color) => {
        const [red, green, blue] = numbers(color).map((value) => linear(value / 255));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const both = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light);
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
}"""
"""How much lighter one of the colors of words and of what is behind them is than the other: from 1 to 21."""


@contextmanager
def served(nodes: int, problems_url: str = PROBLEMS_URL) -> Iterator[str]:
    """The address of the page over so many nodes."""
    cluster = fleet(nodes)
    # To ask thousands of agents takes two minutes, and no test of a large fleet looks at that.
    use = asyncio.run(use_page(cluster)) if nodes == FEW else no_use(cluster)
    with served_fleet(cluster, use, AgentPods(AGENTS), problems_url) as url:
        yield url


def names(page: Page) -> list[str]:
    """Of the first rows."""
    return page.locator(f"{ROWS} a").all_inner_texts()


def ends_with(query: str) -> re.Pattern[str]:
    """A pattern for the addresses that end with this query."""
    return re.compile(re.escape(query) + "$")


def test_of_a_large_fleet_only_the_rows_in_view_are_made() -> None:
    """`python -m bench --only page` measures how long the first reader waits for them."""
    with served(MANY) as url, opened(url) as page:
        expect(page.locator("#facts")).to_contain_text(str(MANY))
        expect(page.locator(ROWS).first).to_be_visible()
        assert page.locator(ROWS).count() < 100
        page.keyboard.press("End")
        expect(page.locator(f"#fleet [aria-rowindex='{MANY + 1}']")).to_be_visible()
        assert page.locator(ROWS).count() < 100
        assert not is_wider_than_the_window(page)


def test_the_worst_nodes_come_first_and_a_head_sorts() -> None:
    with served(FEW) as url, opened(url) as page:
        expect(page.locator(ROWS).first).to_contain_text("DriverUnavailable")
        assert names(page)[:3] == ["gpu-a10-0012", "gpu-t4-0003", "gpu-h100-0010"]
        page.get_by_role("button", name="node").click()
        expect(page.locator(ROWS).first).to_contain_text("gpu-a10-0000")
        expect(page).to_have_url(ends_with("?sort=name"))
        expect(page.get_by_role("columnheader", name="node")).to_have_attribute("aria-sort", "ascending")
        page.get_by_role("button", name="node").click()
        expect(page.locator(ROWS).first).to_contain_text("gpu-t4-0039")
        page.get_by_role("button", name="compute held").click()
        expect(page.locator(ROWS).first).to_contain_text("gpu-a100-")
        page.reload()
        expect(page.get_by_role("columnheader", name="compute held")).to_have_attribute("aria-sort", "descending")


@pytest.mark.parametrize("query", ["", "?node=gpu-t4-0003"])
def test_the_arrow_of_the_head_that_sorts_is_never_cut(query: str) -> None:
    with served(FEW) as url, opened(f"{url}{query}") as page:
        expect(page.locator(ROWS).first).to_be_visible()
        for head in page.locator("#fleet th:visible button").all():
            head.click()
            arrow = head.locator(".way")
            expect(arrow).not_to_be_empty()
            end = "element => element.getBoundingClientRect().right"
            assert arrow.evaluate(end) <= head.evaluate(end), head.inner_text()


def test_nodes_that_have_none_of_an_amount_are_last_whichever_way_it_sorts() -> None:
    with served(FEW) as url, opened(url) as page:
        head = page.get_by_role("columnheader", name="compute held")
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", "descending")
        expect(page.locator(ROWS).first).to_contain_text("gpu-a100-")
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", "ascending")
        expect(page.locator(ROWS).first).to_contain_text("gpu-a100-")
        page.goto(f"{url}?sort=largest&turned=1")
        expect(page.locator(ROWS).first).to_contain_text("GiB")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_words_have_the_contrast_that_people_need(scheme: Literal["light", "dark"]) -> None:
    """4.5 to 1, as the Web Content Accessibility Guidelines ask for (1.4.3)."""
    with served(FEW) as url, opened(url) as page:
        page.emulate_media(color_scheme=scheme)
        expect(page.locator(ROWS).first).to_be_visible()
        for words in ("#live", "#facts dt", ".badge.blocking", ".badge.warning", ".badge.info", "#pointed"):
            assert page.locator(words).first.evaluate(CONTRAST) >= 4.5, words


def test_a_screen_reader_is_told_that_the_page_is_not_live_and_not_the_time_at_each_turn() -> None:
    with served(FEW) as url, opened(url) as page:
        live = page.locator("#live")
        expect(live).to_contain_text("live, ")
        expect(live).to_have_attribute("aria-live", "off")
        page.route("**/fleet", lambda route: route.abort())
        expect(live).to_contain_text("not live")
        expect(live).to_have_attribute("aria-live", "polite")


def test_while_the_pods_are_read_the_filter_does_not_say_that_there_is_no_such_node() -> None:
    asked: list[Route] = []
    with served(FEW) as url, opened(url) as page:
        page.route("**/pods", lambda route: asked.append(route))
        page.locator("#filter").fill("serving/ocr-pod-")
        expect(page.locator("#count")).to_have_text("no such node so far, reading the pods …")
        until = time.monotonic() + WAIT_S
        while not asked:  # the page has asked before it says so, and the browser tells it a moment later
            assert time.monotonic() < until, "the browser did not tell of the request"
            page.wait_for_timeout(20)
        asked[0].continue_()
        expect(page.locator(ROWS).first).to_be_visible()


def test_the_filter_is_in_the_address_and_finds_pods_and_problems() -> None:
    with served(FEW) as url, opened(url) as page:
        page.locator("#filter").fill("t4 warning")
        expect(page.locator("#count")).to_have_text(f"1 of {FEW} nodes")
        expect(page).to_have_url(ends_with("?q=t4+warning"))
        page.reload()
        expect(page.locator("#count")).to_have_text(f"1 of {FEW} nodes")
        expect(page.locator("#filter")).to_have_value("t4 warning")
        page.locator("#filter").fill("serving/ocr-pod-")
        expect(page.locator("#count")).to_contain_text(f"of {FEW} nodes")
        expect(page.locator(ROWS).first).to_be_visible()
        page.locator("#filter").fill("nowhere")
        expect(page.locator("#count")).to_have_text("no such node")


def test_the_filter_finds_words_of_problems_and_says_which_tab_has_what_this_one_has_not() -> None:
    with served(FEW) as url, opened(f"{url}?q=xid") as page:
        expect(page.locator("#count")).to_have_text(f"1 of {FEW} nodes")
        expect(page.locator(ROWS)).to_contain_text("gpu-t4-0003")
        page.locator("#filter").fill("batch/chat-waiting-0")
        expect(page.locator("#count")).to_have_text("no such node; 1 waiting pod matches")
        page.get_by_role("link", name="1 waiting pod matches").click()
        expect(page.locator("#waiting tbody tr")).to_have_count(1)
        expect(page.get_by_role("tab", name="Waiting pods")).to_be_focused()
        expect(page).to_have_url(ends_with("?view=waiting&q=batch%2Fchat-waiting-0"))
        page.locator("#filter").fill("xid")
        expect(page.locator("#waiting")).to_contain_text("no such pod; 1 node matches")
        page.locator("#filter").fill("ml-research")
        page.get_by_role("tab", name="Namespaces").click()
        expect(page.locator("#namespaces tbody tr")).to_have_count(1)
        page.locator("#filter").fill("A10 nowhere")
        expect(page.locator("#namespaces")).to_have_text("no such namespace")


def test_words_of_the_filter_are_typed_one_after_the_other() -> None:
    with served(FEW) as url, opened(url) as page:
        page.locator("#filter").press_sequentially("t4 warning")
        expect(page.locator("#filter")).to_have_value("t4 warning")
        expect(page.locator("#count")).to_have_text(f"1 of {FEW} nodes")


def test_a_node_is_opened_by_keys_and_its_address_can_be_shared() -> None:
    with served(FEW) as url, opened(url) as page:
        expect(page.locator(ROWS).first).to_be_visible()
        page.locator(ROWS).first.focus()
        page.keyboard.press("ArrowDown")
        focused = page.locator(":focus")
        expect(focused).to_contain_text("gpu-t4-0003")
        assert focused.evaluate("row => getComputedStyle(row).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        details = page.locator("#details")
        expect(details).to_contain_text("XID 79")
        expect(page).to_have_url(ends_with("?node=gpu-t4-0003"))
        link = details.get_by_role("link", name="GPUUnhealthy")
        expect(link).to_have_attribute("href", f"{PROBLEMS_URL}#gpuunhealthy")
        page.keyboard.press("Escape")
        expect(details).to_be_hidden()
        expect(page.locator(":focus")).to_contain_text("gpu-t4-0003")
        page.go_back()
        expect(details).to_be_visible()
        page.reload()
        expect(details).to_contain_text("GPU 0 memory")
        expect(details).to_contain_text(f"kubectl inspect cgpu status gpu-t4-0003 --agent-namespace {AGENTS}")
        expect(details).to_contain_text(f"kubectl -n {AGENTS} port-forward")
        expect(details.get_by_role("link", name="127.0.0.1")).to_have_attribute("href", "http://127.0.0.1:9445/")


def test_a_problem_names_its_section_if_the_address_of_the_documentation_is_not_known() -> None:
    with served(FEW, problems_url="") as url, opened(f"{url}?node=gpu-t4-0003") as page:
        details = page.locator("#details")
        expect(details).to_contain_text("What to do: problems.md#gpuunhealthy of the documentation")
        expect(details.get_by_role("link", name="GPUUnhealthy")).to_have_count(0)


def test_the_details_have_compute_and_pods_with_amounts() -> None:
    with served(FEW) as url, opened(f"{url}?node=gpu-a100-0001") as page:
        details = page.locator("#details")
        expect(details.locator(".list tbody tr").first).to_contain_text("% of compute")
        expect(details.locator(".gpu-bars").first).to_contain_text("compute")
        expect(details).to_contain_text("get events --field-selector involvedObject.name=")


def test_a_cell_of_the_heat_grid_is_a_node() -> None:
    with served(FEW) as url, opened(url) as page:
        expect(page.locator("#pointed")).to_contain_text("A cell is a node")
        page.locator("#heat").hover(position={"x": 10, "y": 10})
        expect(page.locator("#pointed")).to_contain_text("gpu-a10-0012: mode share; DriverUnavailable (blocking)")
        page.locator("#heat").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#pointed")).to_contain_text("gpu-t4-0003")
        page.keyboard.press("Enter")
        expect(page.locator("#details h2")).to_have_text("gpu-t4-0003")


def test_waiting_pods_have_the_reason_and_namespaces_what_they_hold() -> None:
    with served(FEW) as url, opened(url) as page:
        page.get_by_role("tab", name="Waiting pods (4)").click()
        expect(page.locator("#waiting tbody tr")).to_have_count(4)
        expect(page.locator("#waiting")).to_contain_text("had no GPU with 100 GiB free")
        expect(page.locator("#waiting")).to_contain_text("kubectl inspect cgpu -n batch --why chat-waiting-0")
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name="Namespaces")).to_be_focused()
        expect(page.locator("#namespaces tbody tr")).to_have_count(6)
        expect(page.locator("#namespaces")).to_contain_text(
            "Not known of node gpu-a10-0000: its agent cannot be reached"
        )
        unused = page.locator("#namespaces td[data-title='unused']").all_inner_texts()
        amounts = [float(text.removeprefix("≥ ").split(" ")[0]) for text in unused]
        assert amounts == sorted(amounts, reverse=True)
        assert amounts[0] > 0
        page.get_by_role("link", name="team-a").click()
        expect(page.locator("#filter")).to_have_value("team-a/")
        expect(page.locator(ROWS).first).to_be_visible()


def test_all_of_a_long_reason_is_shown_by_keys_and_stays_shown() -> None:
    long = f"node(s) had taints that it does not tolerate {'x' * 300} END"
    with served(FEW) as url, opened(url) as page:
        page.route("**/fleet", lambda route: route.fulfill(json=with_reason(route.fetch().json(), long)))
        page.goto(f"{url}?view=waiting")
        reason = page.locator("#waiting details").first
        summary = reason.locator("summary")
        expect(summary).to_be_visible()
        assert "END" not in summary.inner_text()
        page.get_by_role("tab", name="Waiting pods").focus()
        page.keyboard.press("Tab")
        expect(summary).to_be_focused()
        page.keyboard.press("Enter")
        expect(reason.get_by_text("END")).to_be_visible()
        # The page is read again meanwhile, which must not close it.
        with page.expect_response("**/fleet"):
            pass
        expect(reason.get_by_text("END")).to_be_visible()
        expect(summary).to_be_focused()
        page.keyboard.press("Space")
        expect(reason.get_by_text("END")).to_be_hidden()


def with_reason(fleet_json: dict[str, Any], reason: str) -> dict[str, Any]:
    """The page /fleet with another reason of the first waiting pod."""
    first, *others = fleet_json["waiting"]
    return {**fleet_json, "waiting": [[*first[:-1], reason], *others]}


def test_on_a_phone_the_rows_are_in_a_box_that_keys_scroll() -> None:
    with served(MANY) as url, opened(url, PHONE) as page:
        expect(page.locator(ROWS).first).to_be_visible()
        page.locator(ROWS).first.focus()
        page.keyboard.press("End")
        last = page.locator(f"#fleet [aria-rowindex='{MANY + 1}']")
        expect(last).to_be_focused()
        expect(last).to_be_in_viewport(ratio=0.9)
        assert page.evaluate("document.getElementById('rows').scrollTop") > 0
        # What comes after the rows is within reach, however many there are.
        assert page.evaluate("document.documentElement.scrollHeight < 4 * innerHeight")
        page.keyboard.press("PageUp")
        expect(last).not_to_be_focused()
        expect(page.locator("#fleet :focus")).to_be_in_viewport(ratio=0.9)
        page.keyboard.press("Home")
        expect(page.locator("#fleet [aria-rowindex='2']")).to_be_focused()
        expect(page.locator("#fleet :focus")).to_be_in_viewport(ratio=0.9)
        # All that sorts is above the first row, and not cut on the right.
        expect(page.locator("#rows")).to_have_js_property("scrollTop", 0)
        for head in page.locator("#fleet th").all():
            expect(head).to_be_in_viewport(ratio=0.9)


def test_on_a_phone_each_amount_has_its_name() -> None:
    with served(FEW) as url, opened(url, PHONE) as page:
        core = page.locator(f"{ROWS} .column-core").first
        expect(core).to_be_visible()
        assert core.evaluate("cell => getComputedStyle(cell, '::before').content") == '"compute "'
        assert core.evaluate("cell => cell.scrollWidth <= cell.clientWidth")


@pytest.mark.parametrize("query", ["", "?view=waiting", "?view=namespaces", "?node=gpu-a100-0001", "?q=t4"])
def test_nothing_is_wider_than_a_phone(query: str) -> None:
    with served(FEW) as url, opened(f"{url}{query}", PHONE) as page:
        expect(page.locator("#facts")).to_contain_text(str(FEW))
        assert not is_wider_than_the_window(page)


def test_without_scripts_there_is_a_table() -> None:
    with served(FEW) as url, opened(url, scripts=False) as page:
        page.wait_for_url("**/table")
        expect(page.locator("table.plain").first.locator("tbody tr")).to_have_count(FEW)
        expect(page.locator("body")).to_contain_text("DriverUnavailable (blocking)")
        expect(page.locator("body")).not_to_contain_text("reading")
        page.set_viewport_size(PHONE)
        # Without scrolling sideways: the name and what is wrong with the worst node.
        expect(page.get_by_role("link", name="DriverUnavailable")).to_be_in_viewport(ratio=1)
        assert not is_wider_than_the_window(page)
