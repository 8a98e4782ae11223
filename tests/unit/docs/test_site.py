"""The documentation site: every page has its place, every link and anchor leads somewhere."""

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
