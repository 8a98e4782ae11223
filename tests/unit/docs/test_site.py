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
from docsite.search_index import BOOSTS, HEADING_WEIGHT, MARK, NAMES

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
    boosts = {entry["location"]: entry.get("boost", 1) for entry in index["docs"]}
    assert boosts["problems/#gpuunhealthy"] > boosts["install/#values"] > boosts["reference/settings/#gpuagent-run"]
    assert boosts["troubleshooting/#pod-stays-pending"] > boosts["install/#values"] > boosts["zh/modes/#dra"]
    assert boosts["install/"] > boosts["reference/settings/"] > boosts["adr/0018-kubelet-names-the-requesting-pod/"]


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


def test_joined_names_are_found_as_one_word(site: Path) -> None:
    """Those of a heading count as much as its words."""
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    fields = index["config"]["fields"]
    assert fields["title_names"] == fields["title"]
    assert fields["text_names"] == fields["text"]
    entries = {entry["location"]: entry for entry in index["docs"]}
    assert f"{MARK}driverunavailable" in entries["problems/#driverunavailable"]["title_names"].split()
    assert f"{MARK}imagepullbackoff" in entries["troubleshooting/#the-agents-pod-does-not-start"]["text_names"].split()
    assert f"{MARK}flagwaste" in entries["troubleshooting/#out-of-gpu-memory"]["text_names"].split()


def test_message_as_a_heading_counts_no_more_than_a_text(site: Path) -> None:
    """Refusals have their messages as headings, with placeholders or without."""
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    boosts = {entry["title"]: entry.get("boost", 1) for entry in index["docs"]}
    template = "<code>&lt;resource&gt;: the request names no container</code>"
    message = "<code>the agent has not read the node's mode, the GPUs and kubelet's allocations yet</code>"
    assert boosts[template] * HEADING_WEIGHT == boosts["UnexpectedAdmissionError"]
    assert boosts[message] * HEADING_WEIGHT == boosts["UnexpectedAdmissionError"]


def test_every_name_of_the_search_belongs_to_a_section(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    locations = {entry["location"] for entry in index["docs"]}
    assert NAMES.keys() <= locations
    assert [start for start in BOOSTS if not any(location.startswith(start) for location in locations)] == []


def test_the_worker_of_the_theme_gets_the_query_as_words(site: Path) -> None:
    (worker,) = (site / "assets/javascripts/workers").glob("search.*.min.js")
    text = worker.read_text(encoding="utf-8")
    query = (ROOT / "docsite/search_query.js").read_text(encoding="utf-8")
    assert text.index(query) < text.index("lunr.utils")
    assert f'const MARK = "\\u{ord(MARK):04x}";' in query
