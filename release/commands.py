"""Commands that a release runs, and digests of files."""

import hashlib
import subprocess
import sys
from pathlib import Path

from release.release_checks import ROOT


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)  # noqa: S603 (our own, and helm)
