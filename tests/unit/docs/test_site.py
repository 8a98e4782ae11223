"""The documentation site: every page has its place, every link and anchor leads somewhere."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_site_has_every_page_and_no_broken_link(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "CONTRIBUTING/index.html").exists()
    assert "Test PASSED" in (tmp_path / "search/search_index.json").read_text(encoding="utf-8")
