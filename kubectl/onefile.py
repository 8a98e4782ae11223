"""`python kubectl/onefile.py [OUT]`: kubectl-inspect-cgpu as one file, with every library inside, by shiv.

It runs on the Python minor version and platform that it was made with: some libraries are compiled.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = "kubectl-inspect-cgpu"
# Packages that only the agent uses, and of the API server's library the asynchronous half and the unused classes.
UNUSED = (
    *("grpc", "google", "pynvml.py", "aiohttp", "yarl", "multidict", "frozenlist", "propcache", "tzdata"),
    *("kubernetes/aio", "kubernetes/client/api/*_api.py", "kubernetes/client/models/[a-z]*.py"),
    *(
        "gpuagent/_pb",
        "gpuagent/kubelet",
        "gpuagent/nvml",
        "gpuagent/simulation",
        "gpuagent/isolation",
        "gpuagent/host",
    ),
)
CACHE = "~/.kube/cache/kubectl-inspect-cgpu"
"""Where the file unpacks itself at its first start, in kubectl's own cache; SHIV_ROOT names another place."""


def build(out: Path) -> None:
    """Make the file. Libraries are those of requirements.lock, by their hashes."""
    with tempfile.TemporaryDirectory(prefix="onefile-") as folder:
        site = Path(folder) / "site"
        pip = ("install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--require-hashes")
        locked = ("-r", str(ROOT / "requirements.lock"))
        _python("pip", *pip, "--only-binary=:all:", "--target", str(site), *locked)
        for package in (ROOT / "gpuagent", ROOT / "kubectl" / "inspectcgpu"):
            shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [path for pattern in UNUSED for path in site.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        out.parent.mkdir(parents=True, exist_ok=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        what = ("--site-packages", str(site), "--entry-point", "inspectcgpu.__main__:main")
        how = ("--compressed", "--reproducible", "--root", CACHE, "--python", f"/usr/bin/env {version}")
        _python("shiv", *what, *how, "--output-file", str(out))


def _python(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, env=os.environ)  # noqa: S603


def main() -> None:
    """Build the file at the path from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / NAME)
    out = parser.parse_args().out
    build(out)
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MiB)")


if __name__ == "__main__":
    main()
