"""Which version this tree has, and what keeps it from being released."""

import re
from pathlib import Path

import yaml

from gpuagent import __version__

ROOT = Path(__file__).resolve().parents[1]
(CHART,) = sorted(path.parent for path in ROOT.glob("manifests/helm/*/Chart.yaml"))
CHANGELOG = ROOT / "CHANGELOG.md"
VERSION: str = __version__


def problems(tag: str) -> list[str]:
    """Why the tree is no release of `tag`, a sentence each."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    heading = re.search(r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = []
    if tag != f"v{VERSION}":
        found.append(f"the tag is {tag}, and gpuagent/__init__.py has {VERSION}: tag v{VERSION}, or change the version")
    found += [
        f"{CHART.name}/Chart.yaml has {key} {chart[key]}, and gpuagent/__init__.py has {VERSION}: make them equal"
        for key in ("version", "appVersion")
        if str(chart[key]) != VERSION
    ]
    if heading is None or heading[1] != VERSION:
        found.append(f"CHANGELOG.md does not begin with version {VERSION}: add its heading")
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        found.append(f"CHANGELOG.md has {heading[2]} as the date of {VERSION}: write the day of the release")
    return found
