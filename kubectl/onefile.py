"""`python kubectl/onefile.py [OUT]`: kubectl-inspect-cgpu as one file, with every library inside, by shiv.

It runs on Python 3.11 to 3.14 of one platform: some libraries are compiled, and are inside once for each version.
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
    # Of the scheduler, the core says why a pod waits.
    *("gpuscheduler/[a-z]*.py", "gpuscheduler/cluster_api", "gpuscheduler/extender", "gpuscheduler/pages"),
    "gpuscheduler/web",
)
MINORS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "linux/amd64": ("manylinux2014_x86_64", "manylinux_2_28_x86_64"),
    "linux/arm64": ("manylinux2014_aarch64", "manylinux_2_28_aarch64"),
    "darwin/amd64": ("macosx_10_13_x86_64", "macosx_11_0_x86_64"),
    "darwin/arm64": ("macosx_11_0_arm64",),
}
"""What wheels call each platform."""
CACHE = "~/.kube/cache/kubectl-inspect-cgpu"
"""Where the file unpacks itself at its first start, in kubectl's own cache; SHIV_ROOT names another place."""


def build(out: Path, platform: str) -> None:
    """Make the file for one of `PLATFORMS`. Libraries are those of requirements.lock, by their hashes."""
    with tempfile.TemporaryDirectory(prefix="onefile-") as folder:
        site = Path(folder) / "site"
        for minor in MINORS:
            libraries = Path(folder) / minor
            pip = ("install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--require-hashes")
            where = [part for tag in PLATFORMS[platform] for part in ("--platform", tag)]
            which = ("--only-binary=:all:", "--implementation", "cp", "--python-version", minor, *where)
            locked = ("-r", str(ROOT / "requirements.lock"))
            _python("pip", *pip, *which, "--target", str(libraries), *locked)
            shutil.copytree(libraries, site, dirs_exist_ok=True)
        packages = (ROOT / "gpuagent", ROOT / "kubectl" / "inspectcgpu", ROOT / "scheduler" / "gpuscheduler")
        for package in packages:
            shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [path for pattern in UNUSED for path in site.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        out.parent.mkdir(parents=True, exist_ok=True)
        what = ("--site-packages", str(site), "--entry-point", "inspectcgpu.__main__:main")
        how = ("--compressed", "--reproducible", "--root", CACHE, "--python", "/usr/bin/env python3")
        _python("shiv", *what, *how, "--output-file", str(out))


def own_platform() -> str:
    """The platform of this machine, as Go names it."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    return f"{os.uname().sysname.lower()}/{machine}"


def _python(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, env=os.environ)  # noqa: S603


def main() -> None:
    """Build the file at the path from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / NAME)
    parser.add_argument("--platform", choices=PLATFORMS, default=own_platform(), help="default: this machine's")
    options = parser.parse_args()
    out: Path = options.out
    build(out, options.platform)
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MiB)")


if __name__ == "__main__":
    main()
