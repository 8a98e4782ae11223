"""What Artifact Hub reads: annotations of chart and plugin, and the repository's metadata, by its documented fields."""

import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from inspectcgpu.arguments import as_argparse_takes
from inspectcgpu.flags import ALL, make_parser
from release import chart as release_chart
from release.changes import KINDS, changes
from release.chart import published
from release.krew import manifest
from release.release_checks import CHART, ROOT, VERSION

HOME = "https://github.com/Owner/gpuagent"
CATEGORIES = {
    "ai-machine-learning",
    "database",
    "integration-delivery",
    "monitoring-logging",
    "networking",
    "security",
    "storage",
    "streaming-messaging",
    "skip-prediction",
}


def is_boolean(text: str) -> bool:
    return text in ("true", "false")


def are_entries(*needed: str, known: tuple[str, ...] = ()) -> Callable[[str], bool]:
    """A list of mappings that have `needed`, and nothing but that and `known`."""

    def check(text: str) -> bool:
        entries = yaml.safe_load(text)
        return isinstance(entries, list) and all(
            set(needed) <= entry.keys() <= {*needed, *known} and all(entry.values()) for entry in entries
        )

    return check


def are_words(text: str) -> bool:
    words = yaml.safe_load(text)
    return isinstance(words, list) and all(isinstance(word, str) for word in words)


def are_changes(text: str) -> bool:
    is_list = are_entries("kind", "description", known=("links",))(text)
    return is_list and {entry["kind"] for entry in yaml.safe_load(text)} <= set(KINDS)


# Source: docs/helm_annotations.md and docs/krew_annotations.md of github.com/artifacthub/hub.
OF_BOTH: dict[str, Callable[[str], bool]] = {
    "category": CATEGORIES.__contains__,
    "changes": are_changes,
    "license": lambda text: text == "Apache-2.0",
    "links": are_entries("name", "url"),
    "maintainers": are_entries("name", "email"),
    "recommendations": are_entries("url"),
    "screenshots": are_entries("title", "url"),
}
OF_CHART = OF_BOTH | {
    "alternativeName": lambda text: text in "gpuagent" or "gpuagent" in text,
    "containsSecurityUpdates": is_boolean,
    "images": are_entries("name", "image", known=("platforms", "whitelisted")),
    "operator": is_boolean,
    "prerelease": is_boolean,
    "signKey": lambda text: "url" in yaml.safe_load(text),
}
OF_PLUGIN = OF_BOTH | {
    "displayName": bool,
    "keywords": are_words,
    "provider": bool,
    "readme": bool,
}


def check(annotations: dict[str, Any], documented: dict[str, Callable[[str], bool]]) -> None:
    for name, value in annotations.items():
        field = name.removeprefix("artifacthub.io/")
        assert field in documented, f"{name} is not documented"
        assert isinstance(value, str), f"{name} is not text, as annotations are"
        assert documented[field](value), f"{name} is {value!r}"


def test_the_chart_has_what_its_page_shows():
    chart = yaml.safe_load(published((CHART / "Chart.yaml").read_text(), HOME))
    annotations = chart["annotations"]
    check(annotations, OF_CHART)
    names = {name.removeprefix("artifacthub.io/") for name in annotations}
    assert {"category", "changes", "images", "license", "links", "recommendations"} <= names
    links = {link["name"] for link in yaml.safe_load(annotations["artifacthub.io/links"])}
    assert "support" in links, "Artifact Hub shows it as the way to report an issue"


@pytest.mark.parametrize(
    ("version", "expected"), [("0.1.0", "false"), ("1.0.0-rc.1", "true"), ("1.0.0+build-2", "false")]
)
def test_the_chart_is_a_prerelease_when_its_version_is(monkeypatch, version, expected):
    monkeypatch.setattr(release_chart, "VERSION", version)
    chart = yaml.safe_load(published((CHART / "Chart.yaml").read_text(), HOME))
    assert chart["annotations"]["artifacthub.io/prerelease"] == expected


def test_the_plugin_has_what_its_page_shows():
    found = manifest(VERSION, HOME, {})
    check(found["metadata"]["annotations"], OF_PLUGIN)
    assert found["metadata"]["annotations"].keys() >= {"artifacthub.io/category", "artifacthub.io/license"}


def test_the_repositorys_metadata_has_documented_fields_only():
    metadata = yaml.safe_load((ROOT / "manifests/helm/artifacthub-repo.yml").read_text())
    assert metadata.keys() <= {"repositoryID", "owners", "ignore"}
    for owner in metadata.get("owners", []):
        assert owner.keys() == {"name", "email"}


def test_changes_are_the_first_sentences_of_a_version():
    text = """# Changelog

## [0.2.0] - 2027-01-01

### Added

- Two lines
  of one entry. The rest is left out. And this.
- `kubectl` is e.g. not a sentence

#### Headings group entries

- another one without a sentence's end

### Known limits

- Not a kind.

### Fixed

- A fault!

## [0.1.0] - 2026-01-01

### Added

- Old.
"""
    assert changes(text, "0.2.0") == [
        {"kind": "added", "description": "Two lines of one entry."},
        {"kind": "added", "description": "`kubectl` is e.g. not a sentence"},
        {"kind": "added", "description": "another one without a sentence's end"},
        {"kind": "fixed", "description": "A fault!"},
    ]
    assert changes(text, "9.9.9") == []
    many = "# Changelog\n\n## [1.0.0]\n\n### Fixed\n\n" + "- A fault.\n" * 60
    assert len(changes(many, "1.0.0")) == 51
    assert changes(many, "1.0.0")[-1]["description"] == "10 more changes are in the changelog"


def test_this_version_has_changes_that_are_short_enough_to_read():
    found = changes((ROOT / "CHANGELOG.md").read_text(), VERSION)
    assert found
    assert max(len(change["description"]) for change in found) <= 300


# Source: internal/config/json/schemas/plugins.json of github.com/derailed/k9s.
K9S_FIELDS = {
    "shortCut": str,
    "override": bool,
    "description": str,
    "confirm": bool,
    "dangerous": bool,
    "scopes": list,
    "command": str,
    "background": bool,
    "overwriteOutput": bool,
    "args": list,
}
K9S_VARIABLES = {"NAME", "NAMESPACE", "CONTEXT", "KUBECONFIG"}


def test_k9s_reads_its_shortcuts():
    (title, plugins), *others = yaml.safe_load((ROOT / "examples/k9s/plugins.yaml").read_text()).items()
    assert (title, others) == ("plugins", [])
    for plugin in plugins.values():
        assert {"shortCut", "description", "scopes", "command"} <= plugin.keys() <= K9S_FIELDS.keys()
        assert all(isinstance(value, K9S_FIELDS[name]) for name, value in plugin.items())
        used = set(re.findall(r"\$(\w+)", " ".join(plugin["args"])))
        assert used <= K9S_VARIABLES
    shortcuts = [plugin["shortCut"] for plugin in plugins.values()]
    assert len(shortcuts) == len(set(shortcuts))


@pytest.mark.parametrize(("name", "variables"), [
    ("gpu-node", {"NAME": "n1"}),
    ("gpu-agent", {"NAME": "n1"}),
    ("gpu-why", {"NAME": "p", "NAMESPACE": "default"}),
])  # fmt: skip
def test_the_plugin_takes_what_k9s_gives_it(name, variables, tmp_path):
    """The flags are those of the program: a shell with a program in place of less, and of kubectl, runs them."""
    (tmp_path / "kubectl").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (tmp_path / "less").symlink_to(shutil.which("cat") or "cat")
    (tmp_path / "kubectl").chmod(0o755)
    plugin = yaml.safe_load((ROOT / "examples/k9s/plugins.yaml").read_text())["plugins"][name]
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CONTEXT": "a b", "KUBECONFIG": "/k/config", **variables}
    # less is cat here, which does not know its flag.
    script = plugin["args"][1].replace("less -R", "less")
    done = subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=True)
    inspect, cgpu, *arguments = done.stdout.splitlines()
    assert (inspect, cgpu) == ("inspect", "cgpu")
    options = make_parser().parse_args(as_argparse_takes(arguments, ALL))
    assert (options.context, options.kubeconfig) == ("a b", "/k/config")
