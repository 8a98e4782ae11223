"""``python -m image``: build the image from the Dockerfile, with Docker's buildx where that answers, else with buildah.

Needs only the standard library. The build receives this machine's pip settings and file of certificates as secrets,
which no layer and no history keeps.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Pip's settings that say how to reach an index. Others, such as local folders, mean nothing inside the build.
_INDEX_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "default-timeout", "timeout", "retries")
# A Debian mirror, in place of the dated archive, for machines that reach no container registry.
_MIRROR = "http://deb.debian.org"
_LOCAL_BASE = "localhost/gpuagent-debian:bookworm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The image to build.

    Attributes:
        tag: the name the image gets.
        platform: ``linux/amd64`` or ``linux/arm64``; None for this machine's.
        archive: where else to write it, as a docker-archive; None leaves it with the engine alone.
        from_mirror: use no registry: make the builder's root with mmdebstrap, take packages from a live mirror.
        revision: of the source, for the label.
        store: buildah's folder, None for its own.
        push: whether it goes to the registry that the tag names, with the program that built it.
    """

    tag: str
    platform: str | None
    archive: Path | None
    from_mirror: bool
    revision: str
    store: Path | None
    push: bool

    def arguments(self) -> list[str]:
        """Those that docker and buildah have in common."""
        arguments = []
        values = {"VERSION": version(), "REVISION": self.revision}
        if self.from_mirror:
            arguments.append(f"--build-context={base()}=docker-image://{_LOCAL_BASE}")
            values["DEBIAN"] = f"{_MIRROR}/debian"
            values["DEBIAN_SECURITY"] = f"{_MIRROR}/debian-security"
        for name, value in values.items():
            arguments.append(f"--build-arg={name}={value}")
        if self.platform:
            arguments.append(f"--platform={self.platform}")
        return arguments


def version() -> str:
    """Of the package: one line of its source."""
    return _find(r'__version__ = "(.+)"', ROOT / "gpuagent" / "__init__.py")


def base() -> str:
    """The image that the build begins with."""
    return _find(r"FROM --platform=\S+ (\S+) AS build", ROOT / "Dockerfile")


def epoch() -> str:
    """Seconds since 1970: the time of every file in the image."""
    return _find(r"SOURCE_DATE_EPOCH=(\d+)", ROOT / "Dockerfile")


def _find(pattern: str, file: Path) -> str:
    if match := re.search(pattern, file.read_text()):
        return match[1]
    raise SystemExit(f"{file.name} has no {pattern}")


def secrets(folder: Path) -> list[str]:
    """Arguments that hand over pip's settings and certificates, as far as this machine has any."""
    # A Python without pip has no settings of pip either.
    asked = subprocess.run((sys.executable, "-m", "pip", "config", "list"), capture_output=True, text=True, check=False)
    listed = asked.stdout
    # Lines such as global.index-url='…' and, which wins, :env:.index-url='…'.
    settings: dict[str, str] = {}
    for origin in ("global", ":env:"):
        settings |= dict(re.findall(rf"^{origin}\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    lines = [f"{name} = {settings[name]}" for name in _INDEX_SETTINGS if name in settings]
    arguments = []
    if certificates := settings.get("cert") or os.environ.get("SSL_CERT_FILE"):
        lines.append("cert = /run/secrets/ca")
        arguments.append(f"--secret=id=ca,src={certificates}")
    if lines:
        file = folder / "pip.conf"
        file.touch(mode=0o600)
        file.write_text("\n".join(["[global]", *lines, ""]))
        arguments.append(f"--secret=id=pip,src={file}")
    return arguments


def build_with_docker(request: Request, folder: Path) -> None:
    # What every builder of Docker can do. The default one writes an archive only with the containerd image store,
    # and with that store it refuses rewrite-timestamp (github.com/moby/buildkit/issues/4230).
    time = f"--build-arg=SOURCE_DATE_EPOCH={epoch()}"
    command = ("docker", "buildx", "build", "--provenance=false", time, "--load", f"--tag={request.tag}")
    _run(*command, *request.arguments(), *secrets(folder), str(ROOT))
    if request.archive:
        _run("docker", "save", f"--output={request.archive}", request.tag)
    if request.push:
        _run("docker", "push", request.tag)


def build_with_buildah(request: Request, folder: Path) -> None:
    places = () if request.store is None else (f"--root={request.store}", f"--runroot={request.store}-run")
    buildah = ("buildah", *places)
    if request.from_mirror:
        _make_base(buildah, folder)
    # Chroot isolation needs no runtime and no network set-up of its own.
    options = ("--isolation=chroot", "--layers", "--pull-never" if request.from_mirror else "--pull")
    identity = (f"--timestamp={epoch()}", "--format=oci", f"--tag={request.tag}")
    # Docker sets it by itself.
    here = f"--build-arg=BUILDPLATFORM=linux/{'arm64' if os.uname().machine == 'aarch64' else 'amd64'}"
    _run(*buildah, "bud", *options, *identity, here, *request.arguments(), *secrets(folder), str(ROOT))
    if request.archive:
        partial = request.archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        _run(*buildah, "push", "--quiet", request.tag, f"docker-archive:{partial}:{request.tag}")
        partial.rename(request.archive)
    if request.push:
        _run(*buildah, "push", request.tag)


def _make_base(buildah: Sequence[str], folder: Path) -> None:
    """The builder's root, once: what Debian's official image is made from."""
    if _output(*buildah, "images", "--quiet", "--filter", f"reference={_LOCAL_BASE}"):
        return
    root = folder / "root.tar"
    _run("mmdebstrap", "--quiet", "--variant=minbase", "bookworm", str(root), f"{_MIRROR}/debian")
    container = _output(*buildah, "from", "scratch")
    _run(*buildah, "add", "--quiet", container, str(root), "/")
    _run(*buildah, "commit", "--quiet", "--rm", container, _LOCAL_BASE)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603 (this program chooses the names)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()  # noqa: S603 (as above)


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(("docker", "buildx", "inspect"), capture_output=True, check=False)  # noqa: S607 (from PATH)
    return asked.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m image", description="Build the image from the Dockerfile.")
    parser.add_argument("--tag", default=f"gpuagent:{version()}", help="name of the image (%(default)s)")
    parser.add_argument("--platform", help="linux/amd64 or linux/arm64; without it: this machine's")
    parser.add_argument("--archive", type=Path, help="also write it to this file, as docker save does")
    parser.add_argument(
        "--from-mirror", action="store_true", help="use no registry: mmdebstrap, buildah, a live mirror"
    )
    parser.add_argument("--revision", default="unknown", help="of the source, for a label")
    parser.add_argument("--store", type=Path, help="buildah's folder")
    parser.add_argument("--push", action="store_true", help="push it to the registry in its name, whatever built it")
    request = Request(**vars(parser.parse_args()))
    if request.push and "/" not in request.tag:
        parser.error(
            f"--push needs a registry in the name, and --tag is {request.tag}: registry.example.com/{request.tag}"
        )
    if not request.from_mirror and _docker_answers():
        engine, build = "docker", build_with_docker
    elif shutil.which("buildah"):
        engine, build = "buildah", build_with_buildah
    else:
        print(
            "The image is built with Docker and its plugin buildx, or with buildah: neither answers.", file=sys.stderr
        )
        return 1
    try:
        with tempfile.TemporaryDirectory() as folder:
            build(request, Path(folder))
    except subprocess.CalledProcessError as err:
        program = Path(err.cmd[0]).name
        print(
            f"The image is not built{' or not pushed' if request.push else ''}: {program} ended with {err.returncode},"
            " and its last lines say why. The build needs docker.io, snapshot.debian.org and an index of Python"
            " packages. docs/image.md has a way without docker.io.",
            file=sys.stderr,
        )
        return 1
    if request.push:
        print(f"Built {request.tag} with {engine}, and pushed it.")
    else:
        print(
            f"Built {request.tag} with {engine}."
            + ("" if request.archive else f" Push it: {engine} push {request.tag}")
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
