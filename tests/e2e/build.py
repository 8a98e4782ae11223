"""Build everything the end-to-end cluster runs, once, into a cache outside the tree.

``python tests/e2e/build.py`` turns a bare machine (Debian, root, Go) into one that can run ``pytest -m e2e``:
Debian packages, Kubernetes and containerd from the Go modules in ``tools/``, and the container images: the agent's own from
the Dockerfile. It needs only the standard library, so it also runs before there is a virtual environment.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"
BUSYBOX = Path("/bin/busybox")
BUSYBOX_IMAGE = "gpuagent.test/busybox:e2e"
# The same under the name that the examples use, so that they run as they are.
EXAMPLE_IMAGE = "busybox:1.36"
PAUSE_IMAGE = "gpuagent.test/pause:e2e"
IMAGES = "images-1.tar"
# Built from the Dockerfile, out of this very tree.
AGENT_IMAGE = "gpuagent.test/gpuagent:e2e"
AGENT_ARCHITECTURES = ("amd64", "arm64")
# What differs between architectures comes from these alone.
_IMAGE_RECIPE = (
    *("Dockerfile", ".dockerignore", "image", "pyproject.toml"),
    *("requirements-scheduler.lock", "requirements-build.lock"),
)
_IMAGE_SOURCES = ("gpuagent", "installer", "scheduler", "README.md", "LICENSE")
_AGENT_ARCHIVES_KEPT = 8
KUBERNETES = os.environ.get("KUBERNETES", "1.36")
"""Of the control plane and of the newer kubelet: 1.36, or 1.37 for the tests in `agent/dra`."""
_PATCHES = {"1.30": 14, "1.35": 4, "1.36": 3, "1.37": 2}
ROOT = Path(__file__).parents[2]
DEBIAN_PACKAGES = (
    *("runc", "containernetworking-plugins", "busybox-static", "openssl", "mount"),
    # They build the programs with which a tenant tries to exceed its share.
    *("gcc", "libc6-dev"),
    # They build the agent's image.
    *("buildah", "mmdebstrap"),
    # It scrapes the agent; promtool comes with it.
    "prometheus",
    # Each cluster has a network of its own.
    "iproute2",
    # They show the pages of the agent and of the scheduler.
    *("chromium-headless-shell", "fonts-dejavu-core"),
)
# Asked by Debian's packages whether they may start what they bring; 101 is no.
POLICY = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True)
class Binary:
    """One binary: the module below ``tools/`` it is built in, its Go package and its build flags."""

    name: str
    module: str
    package: str
    version_flags: str = ""
    tags: str = ""

    def command(self, target: Path) -> tuple[str, ...]:
        flags = ("-trimpath", "-buildvcs=false", "-tags", self.tags, "-ldflags", f"-s -w {self.version_flags}")
        # The linker drops the debugger's tables (-s -w). Not to make them takes a seventh less of the processor's time.
        return ("go", "build", "-gcflags=all=-dwarf=false", *flags, "-o", str(target), self.package)

    def digest(self) -> str:
        """Names the flags and the module, so that a binary is built again only when one of its own inputs changes."""
        return _digest(self, self.module)

    def make(self, target: Path) -> None:
        # A module may need a newer patch of Go than the machine's, which is a Go module like the others.
        environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "auto"}
        run(self.command(target), environment, TOOLS / self.module)


@dataclass(frozen=True)
class ChartObjects:
    """What a controller's own Helm chart installs, as one YAML file: the chart is in the controller's Go module."""

    name: str
    module: str
    path: str
    """Of the controller's Go module."""
    chart: str
    """Folder of the chart in that module."""
    namespace: str

    def digest(self) -> str:
        """Names the module and Helm, so that it is rendered again only when one of the two changes."""
        return _digest((self, HELM.digest()), self.module)

    def make(self, target: Path) -> None:
        """Needs Helm, which comes first in `PRODUCTS`."""
        chart = downloaded_module(self.module, self.path) / self.chart
        helm = (str(bin_dir() / HELM.name), "template", self.module, str(chart))
        done = subprocess.run(
            (*helm, "--namespace", self.namespace, "--include-crds"), capture_output=True, text=True, check=True
        )
        target.write_text(done.stdout)


@dataclass(frozen=True)
class Definitions:
    """The kinds of a controller that are in its Go module, as one YAML file."""

    name: str
    module: str
    path: str
    """Of the controller's Go module."""
    folders: tuple[str, ...]
    """With a file for each kind."""

    def digest(self) -> str:
        """Names the module, so that they are copied again only when it changes."""
        return _digest(self, self.module)

    def make(self, target: Path) -> None:
        downloaded = downloaded_module(self.module, self.path)
        files = [file for folder in self.folders for file in sorted((downloaded / folder).glob("*.yaml"))]
        target.write_text("---\n".join(file.read_text() for file in files))


def downloaded_module(module: str, path: str) -> Path:
    """The folder of a Go module that a module below ``tools/`` needs."""
    download = ("go", "mod", "download", "-json", path)
    environment = os.environ | {"GOTOOLCHAIN": "auto"}
    done = subprocess.run(download, env=environment, cwd=TOOLS / module, capture_output=True, text=True, check=True)
    return Path(json.loads(done.stdout)["Dir"])


def _digest(product: object, module: str) -> str:
    digest = hashlib.sha256(repr(product).encode())
    for file in sorted((TOOLS / module).glob("go.*")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def kubernetes(version: str, command: str, name: str) -> Binary:
    """A Kubernetes command; without the version flags kubelet calls itself v0.0.0."""
    minor, patch = version.removeprefix("1."), _PATCHES[version]
    variable = "-X k8s.io/component-base/version"
    flags = f"{variable}.gitVersion=v1.{minor}.{patch} {variable}.gitMajor=1 {variable}.gitMinor={minor}"
    return Binary(name, f"kubernetes-1.{minor}", f"k8s.io/kubernetes/cmd/{command}", flags)


def containerd(command: str) -> Binary:
    return Binary(
        command,
        "node",
        f"github.com/containerd/containerd/v2/cmd/{command}",
        "-X github.com/containerd/containerd/v2/version.Version=v2.4.2",
        # Snapshotters that need C libraries and are not used here.
        "no_btrfs no_devmapper no_zfs",
    )


HELM = Binary(
    "helm",
    "helm",
    "helm.sh/helm/v3/cmd/helm",
    " ".join(
        f"-X helm.sh/helm/v3/{variable}"
        for variable in (
            "internal/version.version=v3.22.0",
            # Which Kubernetes `helm template` takes by itself.
            "pkg/chartutil.k8sVersionMajor=1",
            "pkg/chartutil.k8sVersionMinor=36",
        )
    ),
)
PRODUCTS = (
    # The first, as `make chart` waits for it.
    HELM,
    kubernetes(KUBERNETES, "kubelet", f"kubelet-{KUBERNETES}"),
    kubernetes(KUBERNETES, "kube-apiserver", "kube-apiserver"),
    kubernetes(KUBERNETES, "kube-scheduler", "kube-scheduler"),
    kubernetes(KUBERNETES, "kube-controller-manager", "kube-controller-manager"),
    kubernetes("1.30", "kubelet", "kubelet-1.30"),
    # Claims of a cluster whose control plane is as old. Its modules differ from those of 1.36, so nothing is built twice.
    kubernetes("1.35", "kubelet", "kubelet-1.35"),
    Binary("etcd", "node", "go.etcd.io/etcd/server/v3"),
    containerd("containerd"),
    containerd("containerd-shim-runc-v2"),
    containerd("ctr"),
    Binary("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    # Controllers that stand in front of the scheduler, or make its pods.
    Binary("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue"),
    ChartObjects("kueue.yaml", "kueue", "sigs.k8s.io/kueue", "charts/kueue", "kueue-system"),
    Binary("jobset", "jobset", "sigs.k8s.io/jobset"),
    ChartObjects("jobset.yaml", "jobset", "sigs.k8s.io/jobset", "charts/jobset", "jobset-system"),
    Binary("lws", "lws", "sigs.k8s.io/lws/cmd"),
    ChartObjects("lws.yaml", "lws", "sigs.k8s.io/lws", "charts/lws", "lws-system"),
    # It adds nodes, which kwok plays.
    Binary("karpenter", "karpenter", "sigs.k8s.io/karpenter/kwok"),
    Definitions("karpenter.yaml", "karpenter", "sigs.k8s.io/karpenter", ("kwok/charts/crds", "kwok/apis/crds")),
)


def bin_dir() -> Path:
    """Where the products of exactly these modules and flags belong."""
    digest = hashlib.sha256(repr([product.digest() for product in PRODUCTS]).encode())
    return _cache() / digest.hexdigest()[:16] / "bin"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuagent-e2e"


def architecture() -> str:
    return "arm64" if os.uname().machine == "aarch64" else "amd64"


def agent_archive(built_for: str) -> Path:
    """Where the agent's image of this tree belongs, for an architecture.

    It is built again when one of its inputs changes. The image for another architecture is only looked at, never run,
    so a change of the agent's sources leaves it as it is.
    """
    inputs = (*_IMAGE_RECIPE, *_IMAGE_SOURCES) if built_for == architecture() else _IMAGE_RECIPE
    digest = hashlib.sha256()
    for name in inputs:
        below = sorted((ROOT / name).rglob("*")) if (ROOT / name).is_dir() else [ROOT / name]
        for file in below:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)} {file.stat().st_mode:o} ".encode() + file.read_bytes())
    return _cache() / "agent" / f"{digest.hexdigest()[:16]}-{built_for}.tar"


def missing() -> list[str]:
    """What ``main`` would still have to make; empty when the cluster can start."""
    files = [product.name for product in PRODUCTS if not (bin_dir() / product.name).exists()]
    files += [IMAGES] if not (bin_dir() / IMAGES).exists() else []
    return files + missing_packages()


def missing_packages() -> list[str]:
    return [package for package in DEBIAN_PACKAGES if not is_installed(package)]


def is_installed(package: str) -> bool:
    command = ("dpkg-query", "--show", "--showformat=${db:Status-Status}", package)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout == "installed"


def install_packages() -> None:
    packages = missing_packages()
    if not packages:
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with step(f"Debian packages {' '.join(packages)}"):
        run(("apt-get", "update", "-qq"), environment)
        with no_daemons_started():
            run(("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages), environment)
        if "prometheus" in packages:  # the tests start one of their own; the machine needs none, after a reboot neither
            run(("update-rc.d", "prometheus", "disable"), environment)


@contextmanager
def no_daemons_started() -> Iterator[None]:
    """Packages that are installed meanwhile leave their daemons down. What the machine says itself stays."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def build(product: Binary | ChartObjects | Definitions, into: Path) -> None:
    """Make a product, or find the one that an earlier list of products built, and link it into the directory."""
    target = into / product.name
    built = _cache() / "built" / f"{product.name}-{product.digest()}"
    built.parent.mkdir(parents=True, exist_ok=True)
    with locked(built.with_name(f".{built.name}.lock")):
        if target.exists():
            return
        if not built.exists():
            # A build cut short must not leave something that looks finished.
            partial = built.with_name(f".{built.name}.partial")
            with step(product.name):
                product.make(partial)
            partial.rename(built)
        # containerd looks for its shim beside itself, where a symbolic link would lead it away.
        target.hardlink_to(built)


def write_images(into: Path) -> None:
    """Both images in one docker-archive, as ``docker save`` would write it."""
    layer = busybox_layer()
    partial = into / f".{IMAGES}.partial"
    with tarfile.open(partial, "w") as archive:
        add_file(archive, "layer.tar", layer)
        manifest = []
        images = (([BUSYBOX_IMAGE, EXAMPLE_IMAGE], ["/bin/sh"]), ([PAUSE_IMAGE], ["/bin/sleep", "2147483647"]))
        for references, entrypoint in images:
            config = json.dumps(image_config(layer, entrypoint)).encode()
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            add_file(archive, name, config)
            manifest.append({"Config": name, "RepoTags": references, "Layers": ["layer.tar"]})
        add_file(archive, "manifest.json", json.dumps(manifest).encode())
    partial.rename(into / IMAGES)


def build_agent_image(built_for: str) -> None:
    """The agent's image, where it is not there yet; older ones go, but for a few that other trees may use."""
    archive = agent_archive(built_for)
    archive.parent.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        command = (
            sys.executable,
            "-m",
            "image",
            "--from-mirror",
            "--tag",
            AGENT_IMAGE,
            "--platform",
            f"linux/{built_for}",
        )
        store = str(archive.parent / "buildah")
        with step(f"{AGENT_IMAGE} for {built_for}"):
            run((*command, "--store", store, "--archive", str(archive)), dict(os.environ), ROOT)
    archive.touch()
    by_use = sorted(archive.parent.glob("*.tar"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in by_use[_AGENT_ARCHIVES_KEPT:]:
        old.unlink()


def image_config(layer: bytes, entrypoint: Sequence[str]) -> dict[str, object]:
    return {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }


def busybox_layer() -> bytes:
    """A root file system of one static binary and a link for each of its applets."""
    applets = subprocess.run((str(BUSYBOX), "--list"), capture_output=True, text=True, check=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for directory in ("bin", "dev", "etc", "proc", "root", "sys", "tmp"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            layer.addfile(entry)
        add_file(layer, "bin/busybox", BUSYBOX.read_bytes(), mode=0o755)
        add_file(layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        for applet in applets:
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                layer.addfile(link)
    return buffer.getvalue()


def add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def run(command: Sequence[str], environment: dict[str, str], directory: Path | None = None) -> None:
    """Run a command; what it prints is shown where it fails."""
    done = subprocess.run(
        command,
        env=environment,
        cwd=directory,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        print(done.stdout, f"failed with code {done.returncode}: {' '.join(command)}", sep="\n", flush=True)
        done.check_returncode()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One process at a time: another would only build the same beside it, and finds everything built afterwards."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def step(title: str) -> Iterator[None]:
    print(f"{title} ...", flush=True)
    start = time.monotonic()
    yield
    print(f"{title}: {time.monotonic() - start:.0f} s", flush=True)


def main(names: Sequence[str] = ()) -> int:
    """Build everything, or the products of these names only, which takes neither root nor Debian."""
    if names:
        into = bin_dir()
        into.mkdir(parents=True, exist_ok=True)
        for product in PRODUCTS:
            if product.name in names:
                build(product, into)
                print(into / product.name)
        return 0
    if os.geteuid() != 0:
        print("The end-to-end cluster runs kubelet and containerd, so it needs root.", file=sys.stderr)
        return 1
    if missing_packages() and not shutil.which("apt-get"):
        print(f"Install these first: {' '.join(missing_packages())}", file=sys.stderr)
        return 1
    into = bin_dir()
    into.mkdir(parents=True, exist_ok=True)
    with locked(into / ".lock"), ThreadPoolExecutor(2) as pool:
        # Images wait for mirrors and indexes most of the time, and the compiler never does.
        for half in (pool.submit(build_binaries, into), pool.submit(build_images, into)):
            half.result()
    print(into)
    return 0


def build_binaries(into: Path) -> None:
    for product in PRODUCTS:
        build(product, into)
    # A test reads Kubernetes' own tests, and tests have no network. A cached binary does not bring its sources.
    kubernetes_sources()


def kubernetes_sources() -> Path:
    """The folder of Kubernetes' sources, of the version of the cluster."""
    return downloaded_module(f"kubernetes-{KUBERNETES}", "k8s.io/kubernetes")


def build_images(into: Path) -> None:
    install_packages()
    write_images(into)
    for built_for in AGENT_ARCHITECTURES:
        build_agent_image(built_for)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
