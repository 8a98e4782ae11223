"""The chart as a release publishes it: with the release's image, and with what depends on the repository's address."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import yaml

from release.changes import changes
from release.commands import run
from release.release_checks import CHANGELOG, CHART, VERSION


def package_chart(helm: str, home: str, out: Path) -> Path:
    """Package the chart as a release publishes it: it installs the release's image without a value. Returns the file.

    Args:
        helm: the program.
        home: address of the repository.
        out: folder of the file.
    """
    with TemporaryDirectory(prefix="release-") as folder:
        chart = shutil.copytree(CHART, Path(folder) / CHART.name)
        _rewrite(chart / "Chart.yaml", published, home)
        _rewrite(chart / "values.yaml", with_image, home)
        run(helm, "package", str(chart), "--destination", str(out))
    return out / f"{CHART.name}-{VERSION}.tgz"


def _rewrite(path: Path, change: Callable[[str, str], str], home: str) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(change(text, home), encoding="utf-8")


def image_repository(home: str) -> str:
    """Where the workflow of a release pushes the image: the repository's own address, in lower case."""
    return f"ghcr.io{urlsplit(home).path.lower()}"


def with_image(values: str, home: str) -> str:
    """The chart's values with the repository of the image. Comments stay."""
    without, of_release = '\n  repository: ""\n', f"\n  repository: {image_repository(home)}\n"
    if values.count(without) != 1:
        raise ValueError("values.yaml must have image.repository once, and empty")
    return values.replace(without, of_release)


def is_prerelease(version: str) -> bool:
    """As Semantic Versioning has it, which charts need: 1.0.0-rc.1 is one."""
    release, _, _build = version.partition("+")
    return "-" in release


def published(chart: str, home: str) -> str:
    """Chart.yaml with what depends on the repository, whose address no file of the tree has."""
    metadata: dict[str, Any] = yaml.safe_load(chart)
    page = f"{home}/blob/v{VERSION}"
    image = {
        "name": "gpuagent",
        "image": f"{image_repository(home)}:{VERSION}",
        "platforms": ["linux/amd64", "linux/arm64"],
    }
    links = {"documentation": f"{page}/docs/index.md", "changelog": f"{page}/CHANGELOG.md", "support": f"{home}/issues"}
    metadata |= {"home": home, "sources": [home], "icon": f"{home}/raw/v{VERSION}/docs/img/icon.svg"}
    metadata["annotations"] |= {
        "artifacthub.io/prerelease": str(is_prerelease(VERSION)).lower(),
        "artifacthub.io/images": yaml.safe_dump([image], sort_keys=False),
        "artifacthub.io/links": yaml.safe_dump([{"name": name, "url": url} for name, url in links.items()]),
        "artifacthub.io/changes": yaml.safe_dump(changes(CHANGELOG.read_text(encoding="utf-8"), VERSION)),
    }
    return yaml.safe_dump(metadata, sort_keys=False)
