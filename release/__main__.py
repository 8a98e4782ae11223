"""Make the files of a release in build/release: wheel, chart, kubectl plugin, krew manifest, checksums.

Without --tag it is a rehearsal, which says what keeps the tree from being released. The image has its own command.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from gpuagent.system.output import exit_with
from release.chart import package_chart
from release.commands import digest, run
from release.krew import NAME, manifest
from release.plugin_archives import plugin_archives
from release.release_checks import ROOT, VERSION, problems

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
    run(sys.executable, "-m", "hatchling", "build", "-d", str(options.out))
    package_chart(options.helm, options.home, options.out)
    archives = dict(plugin_archives(options.out, f"{options.home}/releases/download/v{VERSION}"))
    text = yaml.safe_dump(manifest(VERSION, options.home, archives), sort_keys=False)
    (options.out / f"{NAME}.yaml").write_text(text, encoding="utf-8")
    made = sorted(options.out.iterdir())
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in made)
    (options.out / "SHA256SUMS").write_text(sums, encoding="ascii")
    print(sums, end="")
    return 0


if __name__ == "__main__":
    exit_with("release", lambda: main(sys.argv[1:]))
