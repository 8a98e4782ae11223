"""Make the files of a release in build/release: wheel, chart, kubectl plugin, krew manifest, checksums.

Without --tag it is a rehearsal, which says what keeps the tree from being released. The image has its own command.
"""

import argparse
import gzip
import hashlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpuagent.system.output import exit_with
from release.krew import NAME, PROGRAM, manifest
from release.versions import CHART, ROOT, VERSION, problems

PLATFORMS = ("linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64")
HOME = "https://github.com/OWNER/gpuagent"
"""Stands for the repository in a rehearsal."""


def main(arguments: Sequence[str]) -> int:
    """Make the files; 1 if the tree cannot be released under the tag, or a tool is missing."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--tag", help="of the release, such as v0.1.0")
    parser.add_argument("--home", default=HOME, help="address of the repository, from which krew loads the archives")
    parser.add_argument("--helm", default="helm", metavar="FILE", help="the program helm (default: from PATH)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    options = parser.parse_args(arguments)
    found = problems(options.tag or f"v{VERSION}")
    for problem in found:
        print(f"release: {problem}", file=sys.stderr)
    if found and options.tag:
        return 1
    if shutil.which(options.helm) is None:
        print(f"release: there is no program {options.helm}: name one with --helm", file=sys.stderr)
        return 1
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(options.out))
    package_chart(options.helm, options.home, options.out)
    archives = dict(_plugins(options.out, f"{options.home}/releases/download/v{VERSION}"))
    text = yaml.safe_dump(manifest(VERSION, options.home, archives), sort_keys=False)
    (options.out / f"{NAME}.yaml").write_text(text, encoding="utf-8")
    made = sorted(options.out.iterdir())
    sums = "".join(f"{_digest(path)}  {path.name}\n" for path in made)
    (options.out / "SHA256SUMS").write_text(sums, encoding="ascii")
    print(sums, end="")
    return 0


def package_chart(helm: str, home: str, out: Path) -> Path:
    """Package the chart as a release publishes it: it installs the release's image without a value. Returns the file.

    Args:
        helm: the program.
        home: address of the repository.
        out: folder of the file.
    """
    with TemporaryDirectory(prefix="release-") as folder:
        chart = shutil.copytree(CHART, Path(folder) / CHART.name)
        metadata, values = chart / "Chart.yaml", chart / "values.yaml"
        metadata.write_text(published(metadata.read_text(encoding="utf-8"), home), encoding="utf-8")
        values.write_text(with_image(values.read_text(encoding="utf-8"), home), encoding="utf-8")
        _run(helm, "package", str(chart), "--destination", str(out))
    return out / f"{CHART.name}-{VERSION}.tgz"


def image_repository(home: str) -> str:
    """Where the workflow of a release pushes the image: the repository's own address, in lower case."""
    return f"ghcr.io{urlsplit(home).path.lower()}"


def with_image(values: str, home: str) -> str:
    """The chart's values with the repository of the image. Comments stay."""
    without, of_release = '\n  repository: ""\n', f"\n  repository: {image_repository(home)}\n"
    if values.count(without) != 1:
        raise ValueError("values.yaml must have image.repository once, and empty")
    return values.replace(without, of_release)


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
        "artifacthub.io/images": yaml.safe_dump([image], sort_keys=False),
        "artifacthub.io/links": yaml.safe_dump([{"name": name, "url": url} for name, url in links.items()]),
    }
    return yaml.safe_dump(metadata, sort_keys=False)


def _plugins(out: Path, address: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Make the archive of the plugin for each platform; its address and digest."""
    for platform in PLATFORMS:
        program = out / PROGRAM
        _run(sys.executable, "kubectl/onefile.py", str(program), "--platform", platform)
        archive = out / f"{PROGRAM}-{VERSION}-{platform.replace('/', '-')}.tar.gz"
        archive.write_bytes(_archive({PROGRAM: program, "LICENSE": ROOT / "LICENSE"}))
        program.unlink()
        yield platform, (f"{address}/{archive.name}", _digest(archive))


def _archive(files: dict[str, Path]) -> bytes:
    """A tar.gz that is the same for the same files: without owners and times."""
    plain = BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, path in files.items():
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if name == PROGRAM else 0o644
            tar.addfile(entry, BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)  # noqa: S603 (our own, and helm)


if __name__ == "__main__":
    exit_with("release", lambda: main(sys.argv[1:]))
