"""Helm, and what the chart becomes with it. No cluster is needed."""

import json
import shutil
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
        self._workdir = workdir

    def render(
        self,
        *,
        version: str = "1.36",
        namespace: str = "kube-system",
        release: str = "gpuagent",
        path: Path = CHART,
        with_test: bool = False,
        **values: Any,
    ) -> list[dict[str, Any]]:
        """The objects, in Helm's order. Those of `helm test` are not installed, so they come on request."""
        command: tuple[str, ...] = ("template", release, "--kube-version", version, "--namespace", namespace)
        if not with_test:
            command += ("--skip-tests",)
        done = self._helm(*command, values=values, chart=path)
        assert done.returncode == 0, done.stderr
        return [found for found in yaml.safe_load_all(done.stdout) if found]

    def notes(self, *, version: str = "1.36", **values: Any) -> str:
        """What Helm says after an installation. `helm template` renders no notes, so a copy of the chart has them in an object."""
        copy = self._workdir / "with-notes"
        shutil.copytree(CHART, copy, dirs_exist_ok=True)
        text = (CHART / "templates" / "NOTES.txt").read_text()
        shown = (
            'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  text: {{ include "notes" . | quote }}\n'
        )
        (copy / "templates" / "shown.yaml").write_text('{{- define "notes" -}}' + text + "{{- end }}\n" + shown)
        only = ("--show-only", "templates/shown.yaml")
        done = self._helm("template", "x", "--kube-version", version, *only, values=values, chart=copy)
        assert done.returncode == 0, done.stderr
        return str(yaml.safe_load(done.stdout)["data"]["text"])

    def refusal(self, *, version: str = "1.36", **values: Any) -> str:
        """What Helm says of values, or of a version, that it does not take."""
        done = self._helm("template", "gpuagent", "--kube-version", version, values=values)
        assert done.returncode != 0, "Helm took them"
        return done.stderr

    def lint(self, **values: Any) -> subprocess.CompletedProcess[str]:
        return self._helm("lint", "--strict", values=values)

    def _helm(self, *arguments: str, values: dict[str, Any], chart: Path = CHART) -> subprocess.CompletedProcess[str]:
        values = values | {"image": {"repository": "gpuagent"} | values.get("image", {})}
        self._values.write_text(json.dumps(values))
        command = [str(HELM), *arguments, str(chart), "--values", str(self._values)]
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
