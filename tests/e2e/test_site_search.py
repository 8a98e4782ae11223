"""What the search of the documentation finds first, with the site's own scripts in a real browser."""

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browser import opened

ROOT = Path(__file__).parents[2]
FIRST = {
    "driver unavailable": "problems/#driverunavailable",
    "unhealthy gpu": "problems/#gpuunhealthy",
    "GPUUnhealthy": "problems/#gpuunhealthy",
    "GPUAgentReady": "problems/",
    "isolation missing": "problems/#isolationmissing",
    "xid": "problems/#gpuxid",
    "agent down": "problems/#gpuagentdown",
    "UnexpectedAdmissionError": "troubleshooting/#unexpectedadmissionerror",
    "GPUMemoryExhausted": "troubleshooting/#out-of-gpu-memory",
    "OOM": "troubleshooting/#out-of-gpu-memory",
    "InvalidIdleLabel": "problems/#invalididlelabel",
    "GPUIdle": "operations/#idle-pods",
    "GPUIdleEvicted": "operations/#idle-pods",
    "pod pending": "troubleshooting/#pod-stays-pending",
    "HAMi": "compare/",
    "KAI": "compare/",
    "time slicing": "compare/",
    "chart values": "reference/chart-values/",
    "upgrade": "upgrade/",
    "install": "install/",
    "快速开始": "zh/quick-start/",
    "运行模型": "zh/quick-start/",
    "安装": "zh/install/",
    "升级": "zh/install/#升级与回滚",
    "选择模式": "zh/modes/",
    "申请": "zh/modes/",
    "显存限制": "zh/install/#显存限制",
    "--waste": "inspect/#who-wastes-memory",
    "imagepullbackoff": "troubleshooting/#the-agents-pod-does-not-start",
    "pending": "troubleshooting/#pod-stays-pending",
    "显存": "zh/install/#显存限制",
    "Insufficient aliyun.com/gpu-mem": "troubleshooting/#pod-stays-pending",
    "gpu fell off the bus": "problems/#gpuunhealthy",
    "gpu lost": "problems/#gpuunhealthy",
    "RuntimeClass nvidia not found": "troubleshooting/#pod-is-not-created",
    "fence a gpu": "operations/#fencing-a-gpu",
    "nameOverride": "reference/chart-values/",
    "schedulerName": "gpuscheduler/#which-pods-it-places",
    "install kind": "try-it/",
    "故障": "zh/install/#故障排查",
    "共享": "zh/modes/",
    "--simulate": "operations/#simulated-boxes",
    "--memory-unit": "modes/#units",
    "errimagepull": "troubleshooting/#the-agents-pod-does-not-start",
    "crashloopbackoff": "troubleshooting/#the-agent-ends",
    "CUDA out of memory": "troubleshooting/#out-of-gpu-memory",
    "Failed to initialize NVML: Unknown Error": "troubleshooting/#nvml-stops-working-in-a-running-container",
    "libcuda.so.1: cannot open shared object file": "troubleshooting/#no-gpu-in-the-container",
    "no single GPU has that much": "troubleshooting/",
    "had untolerated taint": "troubleshooting/#pod-stays-pending",
    "tolerations": "gpuscheduler/#two-schedulers",
    "servicemonitor": "reference/chart-values/",
    "uninstall": "install/#removal",
    "billing": "metrics/#use-over-time",
    "chargeback": "metrics/#use-over-time",
    "airgap": "image/#without-a-registry-behind-a-proxy",
    "fake gpu": "try-it/",
    "node notready": "problems/#gpunodenotready",
    "pod waits": "gpuscheduler/#why-a-pod-waits",
    "rollback": "upgrade/",
    "node reboot": "operations/#after-a-reboot",
    "xid 79": "problems/",
    "nvlink": "topology/",
    "ResourceClaimTemplate": "dra/#what-a-claim-looks-like",
    "vllm": "run-a-workload/",
    "pytorch": "run-a-workload/",
    "驱动": "zh/install/#驱动",
    "卸载": "zh/install/#卸载",
    "单位": "zh/modes/#单位",
    "算力": "zh/modes/",
    "隔离": "zh/modes/",
    "k3s": "platforms/#k3s-and-rke2",
    "eks": "platforms/#eks",
    "karpenter": "autoscaling/#karpenter",
    "private registry": "image/",
    "quota": "kueue/",
    "gang scheduling": "gpuscheduler/#jobs",
    "OutOfaliyun.com/gpu-mem": "troubleshooting/#outof-a-resource",
    "krew": "inspect/#installing",
    "imagePullSecrets": "image/#a-registry-with-a-login-imagepullsecrets",
    "grafana dashboard": "metrics/#the-grafana-dashboard-of-the-fleet",
    "change the mode of a node": "operations/#changing-the-mode-of-a-node",
    "no agent metrics": "troubleshooting/#agent-metrics-are-missing",
}
"""What people type, and where the first result must lead: to a page, or to a section."""
_START = """async () => {
  const settings = JSON.parse(document.getElementById("__config").textContent);
  const index = await (await fetch("search/search_index.json")).json();
  const worker = new Worker(settings.search);
  window.answer = (type, data) => new Promise((resolve) => {
    worker.onmessage = (event) => resolve(event.data);
    worker.postMessage({ type, data });
  });
  await window.answer(0, { ...index, options: { suggest: true } });
}"""
_SEARCH = """async (query) => {
  const { data } = await window.answer(2, query);
  return data.items.map((page) => page.map(({ location, score }) => ({ location, score })));
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the standard library)
        """No line for each file."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the documentation site, built from this tree."""
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def _first(page: Page, query: str) -> str:
    """The section with the highest score on the page that is first, or that page."""
    found: list[list[dict[str, Any]]] = page.evaluate(_SEARCH, query)
    best = max(found[0], key=lambda section: section["score"])
    return str(best["location"])


def test_what_people_type_leads_to_the_page_that_helps(site: str) -> None:
    with opened(site) as page:
        page.evaluate(_START)
        first = {query: _first(page, query) for query in FIRST}
    wrong = {
        query: location
        for query, location in first.items()
        if location != FIRST[query] and ("#" in FIRST[query] or location.partition("#")[0] != FIRST[query])
    }
    assert wrong == {}


@pytest.mark.parametrize("query", ["unhealthy gpu", "运行模型"])
def test_the_search_box_shows_the_same(site: str, query: str) -> None:
    with opened(site) as page:
        box = page.locator("[data-md-component=search-query]")
        box.fill(query)
        # The box answers to keys, and an input method fills in Chinese without one.
        box.press("End")
        first = page.locator(".md-search-result__link").first
        address = re.escape(f"{site}{FIRST[query].partition('#')[0]}")
        expect(first).to_have_attribute("href", re.compile(rf"{address}\?h=.*"))
