"""The page of a node in a real browser, for what a real node shows seldom. agent/test_page.py has the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, ViewportSize, expect

from gpuagent.pages.http_server import HttpServer, json_page
from gpuagent.pages.web_pages import node_pages
from tests.e2e.browser import DESK, PHONE, is_wider_than_the_window, opened

GIB = 1 << 30
GPU: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-1",
    "model": "NVIDIA A100-SXM4-80GB",
    "memory_mib": 81920,
    "health": "Healthy",
    "mig": False,
    "recovering": False,
    "cause": None,
}
RESOURCE: dict[str, Any] = {"healthy": 640, "unhealthy": 0, "stage": "serving", "problem": None}
STATUS: dict[str, Any] = {
    "node": "n1",
    "mode": "core_mem",
    "placement": "binpack",
    "isolation": {"driver": "none", "version": None},
    "memory_unit": "GiB",
    "driver_version": "580",
    "version": "0.1.0",
    "problems": [],
    "switch": {"phase": "steady", "waiting_for": []},
    "gpus": [GPU],
    "usage": [
        {
            "uuid": "GPU-1",
            "namespace": "ml",
            "pod": "train",
            "container": "main",
            "used_p95_bytes": 4 * GIB,
            "used_peak_bytes": 6 * GIB,
        },
        {"uuid": "GPU-1", "namespace": "ml", "pod": "new", "container": "main", "used_p95_bytes": None},
    ],
    "resources": {"aliyun.com/gpu-core.percentage": RESOURCE, "aliyun.com/gpu-mem": RESOURCE},
}
TABLE = "GPU 0"
_LABELS = 'UUID="GPU-1",gpu="0"'
METRICS = f"""gpuagent_gpu_memory_used_bytes{{{_LABELS}}} {5 * GIB}
gpuagent_gpu_memory_unattributed_bytes{{{_LABELS}}} {2 * GIB}
gpuagent_gpu_unattributed_processes{{{_LABELS}}} 1
gpuagent_container_gpu_memory_limit_bytes{{{_LABELS},namespace="ml",pod="train",container="main"}} {8 * GIB}
gpuagent_container_gpu_memory_used_bytes{{{_LABELS},namespace="ml",pod="train",container="main"}} {3 * GIB}
"""
ENDED = f"""gpuagent_container_gpu_allocated_seconds_total{{{_LABELS},namespace="ml",pod="ended",container="main"}} 60
"""
_LINES_OF_NAME = """name => {
    const range = document.createRange();
    range.selectNodeContents(name);
    return new Set([...range.getClientRects()].map((line) => line.top)).size;
}"""


@contextmanager
def node_page(
    metrics: str = METRICS,
    size: ViewportSize = DESK,
    *,
    scripts: bool = True,
    status: dict[str, Any] = STATUS,
) -> Iterator[Page]:
    served = {
        **node_pages(),
        "/status": json_page(lambda: status),
        "/hour": json_page(lambda: {"gpus": {}}),
        "/table": lambda: ("text/plain", TABLE.encode()),
        "/metrics": lambda: ("text/plain", metrics.encode()),
    }
    server = HttpServer(("127.0.0.1", 0), served, probes={})
    server.start()
    try:
        with opened(f"http://127.0.0.1:{server.port}/", size, scripts=scripts) as page:
            yield page
    finally:
        server.stop()


def test_used_memory_of_no_container_has_a_row_of_its_own() -> None:
    with node_page() as page:
        rows = page.locator(".card tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.nth(0)).to_contain_text("ml/train[main]p95 4 GiB, peak 6 GiB8 GiB3 GiB")
        expect(rows.nth(1)).to_contain_text("no container, 1 process–2 GiB")


def test_a_problem_has_its_severity_as_on_the_page_of_the_cluster() -> None:
    blocking = {"reason": "DriverUnavailable", "severity": "blocking", "message": "no driver", "warning": True}
    fenced = {"reason": "GPUFenced", "severity": "info", "message": "GPU 1 is fenced", "warning": False}
    with node_page(status={**STATUS, "problems": [blocking, fenced]}) as page:
        problems = page.locator(".problem")
        expect(problems).to_have_text(["DriverUnavailable blocking: no driver", "GPUFenced info: GPU 1 is fenced"])
        border = "box => getComputedStyle(box).borderLeftColor"
        assert problems.nth(0).evaluate(border) != problems.nth(1).evaluate(border)


def test_without_such_memory_there_is_no_such_row() -> None:
    without = "\n".join(line for line in METRICS.splitlines() if "unattributed" not in line)
    with node_page(without + "\n") as page:
        expect(page.locator(".card tbody tr")).to_have_count(1)


def test_a_container_that_ended_has_no_row_while_its_sums_are_shown() -> None:
    with node_page(METRICS + ENDED) as page:
        rows = page.locator(".card tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.nth(0)).to_contain_text("ml/train[main]")
        expect(rows.nth(1)).to_contain_text("no container")
    with node_page(ENDED) as page:
        expect(page.locator(".card")).to_contain_text("no containers")


def test_without_javascript_it_leads_to_a_table_in_plain_text() -> None:
    with node_page(scripts=False) as page:
        page.wait_for_url("**/table")
        expect(page.locator("body")).to_have_text(TABLE)


def test_on_a_phone_the_name_of_a_resource_stays_on_one_line() -> None:
    with node_page(size=PHONE) as page:
        names = page.locator("#resources tbody td:first-child")
        expect(names).to_have_count(2)
        assert [name.evaluate(_LINES_OF_NAME) for name in names.all()] == [1, 1]
        assert not is_wider_than_the_window(page)
