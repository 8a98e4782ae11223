"""The files of a release fit together: versions, the manifest of krew, and what the workflows call."""

import re

import pytest
import yaml

from release import release_checks
from release.chart import published
from release.krew import COMPLETION, PROGRAM, manifest
from release.release_checks import CHART, ROOT, VERSION, problems

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def test_a_tree_is_released_under_its_own_version_and_day(tmp_path, monkeypatch):
    monkeypatch.setattr(release_checks, "ROOT", tmp_path)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(f"# Changelog\n\n## [{VERSION}] - 2027-01-31\n")
    assert problems(f"v{VERSION}") == []
    assert problems("v9.9.9")[0].startswith("the tag is v9.9.9")
    changelog.write_text(f"# Changelog\n\n## [{VERSION}] - Unreleased\n")
    assert "write the day" in problems(f"v{VERSION}")[0]
    changelog.write_text("# Changelog\n\n## [0.0.9] - 2027-01-31\n")
    assert "add its heading" in problems(f"v{VERSION}")[0]


def test_the_chart_has_the_version_of_the_agent():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_a_published_chart_says_where_it_comes_from_and_keeps_what_it_had():
    text = (CHART / "Chart.yaml").read_text()
    before, after = yaml.safe_load(text), yaml.safe_load(published(text, "https://github.com/Owner/gpuagent"))
    assert after | {"annotations": after["annotations"] | before["annotations"]} == after
    assert [key for key in before if key != "annotations" and after[key] != before[key]] == []
    assert after["home"] in after["sources"]
    assert after["icon"].endswith("/docs/img/icon.svg")
    (image,) = yaml.safe_load(after["annotations"]["artifacthub.io/images"])
    assert image["image"] == f"ghcr.io/owner/gpuagent:{VERSION}"
    for link in yaml.safe_load(after["annotations"]["artifacthub.io/links"]):
        assert link["url"].startswith("https://github.com/Owner/gpuagent/")


def test_krew_finds_the_program_of_each_platform():
    archives = {
        "linux/amd64": ("https://example.com/a.tar.gz", "00"),
        "darwin/arm64": ("https://example.com/b.tar.gz", "01"),
    }
    found = manifest("1.2.3", "https://example.com", archives)
    assert found["spec"]["version"] == "v1.2.3"
    assert [one["selector"]["matchLabels"] for one in found["spec"]["platforms"]] == [
        {"os": "linux", "arch": "amd64"},
        {"os": "darwin", "arch": "arm64"},
    ]
    for one, (address, digest) in zip(found["spec"]["platforms"], archives.values(), strict=True):
        assert (one["uri"], one["sha256"]) == (address, digest)
        files = [file["from"] for file in one["files"]]
        assert one["bin"] == PROGRAM in files
        assert COMPLETION in files
        assert (ROOT / "kubectl" / COMPLETION).stat().st_mode & 0o111
    assert len(found["spec"]["shortDescription"]) <= 50


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_there_are(workflow):
    """And each job has the least rights and an end."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = yaml.safe_load(workflow.read_text())
    assert found["permissions"] == {"contents": "read"}
    called = set()
    for job in found["jobs"].values():
        assert job["timeout-minutes"] <= 60
        stages = job.get("strategy", {}).get("matrix", {}).get("stage", [])
        runs = [step["run"] for step in job["steps"] if "run" in step]
        for line in [*(f"make {stage}" for stage in stages), *runs]:
            if line.startswith("make ") and "${{" not in line:
                called |= {word for word in line.split('"')[0].split()[1:] if "=" not in word}
    assert called
    assert called <= targets


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_their_version_beside_it(workflow):
    used = re.findall(r"uses: (.+)", workflow.read_text())
    assert used
    assert [one for one in used if not re.match(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+\b", one)] == []
