"""The documentation site: every page has its place, every link and anchor leads somewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docsite.events_page import problem_calls

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "manifests/helm/gpuagent/monitoring"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return folder


def test_the_site_has_every_page_and_no_broken_link(site: Path) -> None:
    assert (site / "CONTRIBUTING/index.html").exists()
    assert "Test PASSED" in (site / "search/search_index.json").read_text(encoding="utf-8")


def test_every_alert_leads_to_a_section_of_the_site(site: Path) -> None:
    """An alert about any problem has the problem's reason in its address."""
    rules = [
        rule
        for file in ("alerts.yaml", "scheduler-alerts.yaml")
        for group in yaml.safe_load((MONITORING / file).read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    addresses = {rule["annotations"]["runbook_url"] for rule in rules}
    by_reason = "docs/problems.md#{{ $labels.reason | toLower }}"
    assert by_reason in addresses
    addresses.remove(by_reason)
    reasons = {reason.lower() for reason in problem_calls()} - {"ready"}
    wanted = {address.removeprefix("docs/problems.md#") for address in addresses} | reasons
    page = (site / "problems/index.html").read_text(encoding="utf-8")
    assert wanted <= set(re.findall(r'<h3 id="([^"]+)"', page))


def test_the_search_finds_problems_before_decisions(site: Path) -> None:
    """tests/e2e/test_site_search.py runs the site's own search in a browser."""
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    boosts = {entry["location"].partition("/")[0]: entry.get("boost", 1) for entry in index["docs"]}
    assert boosts["problems"] > boosts["troubleshooting"] > boosts["install"] > boosts["adr"]
    assert boosts["install"] > boosts["zh"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("DriverUnavailable", ["Driver", "Unavailable"]),
        ("`GPUAgentReady`", ["GPU", "Agent", "Ready"]),
        ("GPUXID", ["GPU", "XID"]),
        ("no_single_gpu", ["no", "single", "gpu"]),
        ("kube-scheduler 1.36.3, then", ["kube", "scheduler", "1.36.3", "then"]),
        ("安装 GPU 驱动。", ["安", "装", "GPU", "驱", "动"]),
    ],
)
def test_the_search_takes_words_apart(site: Path, text: str, words: list[str]) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    assert [word for word in re.split(index["config"]["separator"], text) if word] == words


def test_chinese_is_marked_only_where_the_search_reads_it(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    (title,) = [entry["title"] for entry in index["docs"] if entry["location"] == "zh/quick-start/"]
    assert title.startswith("快\u200b速\u200b开\u200b始\u200b")
    assert "\u200b" not in (site / "zh/quick-start/index.html").read_text(encoding="utf-8")
