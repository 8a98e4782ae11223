"""Helm, and what the chart becomes with it. No cluster is needed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.render import CHART
from tests.e2e.build import bin_dir

HELM = bin_dir() / "helm"


class Chart:
    """`helm template` and `helm lint`."""

    def __init__(self, workdir: Path) -> None:
        assert HELM.exists(), "run `python tests/e2e/build.py helm` first"
        self._values = workdir / "values.json"

    def render(
        self,
        *,
        version: str = "1.36",
        namespace: str = "kube-system",
        release: str = "ack-ai-installer",
        **values: Any,
    ) -> list[dict[str, Any]]:
        """The objects, in Helm's order."""
        done = self._helm("template", release, "--kube-version", version, "--namespace", namespace, values=values)
        assert done.returncode == 0, done.stderr
        return [found for found in yaml.safe_load_all(done.stdout) if found]

    def refusal(self, **values: Any) -> str:
        """What Helm says of values that it does not take."""
        done = self._helm("template", "ack-ai-installer", values=values)
        assert done.returncode != 0, "Helm took them"
        return done.stderr

    def lint(self, **values: Any) -> subprocess.CompletedProcess[str]:
        return self._helm("lint", "--strict", values=values)

    def _helm(self, *arguments: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        self._values.write_text(json.dumps(values))
        command = [str(HELM), *arguments, str(CHART), "--values", str(self._values)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def chart(tmp_path: Path) -> Chart:
    return Chart(tmp_path)


def find(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def containers(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every container of every DaemonSet, by name."""
    specs = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "DaemonSet"]
    return {one["name"]: one for spec in specs for one in (*spec.get("initContainers", ()), *spec["containers"])}
