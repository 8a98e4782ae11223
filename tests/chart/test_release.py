"""The chart as a release publishes it."""

import subprocess
from pathlib import Path

import pytest
import yaml

from gpuagent import __version__
from release.chart import package_chart
from tests.chart.conftest import HELM

pytestmark = pytest.mark.chart


@pytest.mark.parametrize("more", [(), ("--set", "scheduler.enabled=true", "--set", "dra.enabled=true")])
def test_the_packaged_chart_installs_the_image_of_its_release_without_a_value(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    package = package_chart(str(HELM), "https://github.com/Owner/gpuagent", tmp_path)
    command = [str(HELM), "template", "gpuagent", str(package), "--kube-version", "1.36", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    objects = [found for found in yaml.safe_load_all(done.stdout) if found]
    templates = [found["spec"]["template"]["spec"] for found in objects if "template" in found.get("spec", {})]
    images = {container["image"] for spec in templates for container in spec["containers"]}
    ours = {image for image in images if "kube-scheduler" not in image}
    assert ours == {f"ghcr.io/owner/gpuagent:{__version__}"}
