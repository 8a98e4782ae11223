"""The image of the Dockerfile: what is in it, and the agent from it as a real pod."""

import json
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import build
from tests.e2e.cluster import Cluster

_MIB = 1024 * 1024
_LIMIT = 200 * _MIB
_VENV = "opt/gpuagent/lib/python3.11/site-packages"
LOCK = build.ROOT / "requirements-scheduler.lock"


class Image:
    """The files of a docker-archive as a container sees them, and its configuration."""

    def __init__(self, archive: Path) -> None:
        self.members: dict[str, tarfile.TarInfo] = {}
        self.contents: dict[str, bytes] = {}
        with tarfile.open(archive) as outer:
            (manifest,) = json.loads(_read(outer, "manifest.json"))
            self.config: dict[str, Any] = json.loads(_read(outer, manifest["Config"]))
            self.layers: list[str] = manifest["Layers"]
            for layer in self.layers:
                with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
                    for member in inner:
                        name = member.name.removeprefix("./").strip("/")
                        self.members[name] = member
                        if member.isfile():
                            self.contents[name] = _read(inner, member)

    @property
    def size(self) -> int:
        """Bytes of all files, each counted in whole blocks of 4 KiB, as a disk does."""
        return sum(-(-member.size // 4096) * 4096 for member in self.members.values() if member.isfile())


def _read(archive: tarfile.TarFile, member: str | tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None, member
    return file.read()


@pytest.fixture(scope="module", params=build.AGENT_ARCHITECTURES)
def image(agent_archives: Mapping[str, Path], request: pytest.FixtureRequest) -> Image:
    return Image(agent_archives[request.param])


def test_every_binary_is_of_the_images_architecture(image: Image) -> None:
    binaries = {name: content for name, content in image.contents.items() if content.startswith(b"\x7fELF")}
    assert len(binaries) > 80
    # The field e_machine of the header: 62 is x86-64, 183 is AArch64.
    wanted = {"amd64": 62, "arm64": 183}[image.config["architecture"]]
    assert {int.from_bytes(content[18:20], "little") for content in binaries.values()} == {wanted}


def test_it_is_small(image: Image) -> None:
    assert image.size < _LIMIT, f"{image.size / _MIB:.0f} MiB"


def test_there_is_no_compiler_no_installer_and_no_shell(image: Image) -> None:
    programs = {
        name.rpartition("/")[2] for name, entry in image.members.items() if entry.mode & 0o111 and not entry.isdir()
    }
    assert {"python3.11", "gpuagent", "gpuscheduler", "ldconfig"} <= programs
    assert not programs & set("sh dash bash busybox gcc cc ld as make apt apt-get dpkg perl pip pip3".split())
    packages = {name.removeprefix(f"{_VENV}/").partition("/")[0] for name in image.members if name.startswith(_VENV)}
    assert {"gpuagent", "gpuisolation", "gpuscheduler", "grpc", "numpy"} <= packages
    assert not packages & {"pip", "setuptools", "wheel", "hatchling"}
    assert not [name for name in image.members if "ensurepip" in name]


def test_no_file_gives_rights_away(image: Image) -> None:
    for name, member in image.members.items():
        assert not member.mode & (stat.S_ISUID | stat.S_ISGID), name
        assert (member.uid, member.gid) == (0, 0), name
        open_to_all = member.mode & stat.S_IWOTH and not member.issym()
        assert not open_to_all or name in {"tmp", "var/tmp"}, name


def test_every_module_has_its_bytecode(image: Image) -> None:
    """The image is read-only: what has none is compiled at each start."""
    sources = [
        name for name in image.contents if name.endswith(".py") and name.startswith((_VENV, "usr/lib/python3.11"))
    ]
    compiled = [re.sub(r"([^/]+)\.py$", r"__pycache__/\1.cpython-311.pyc", name) for name in sources]
    assert len(sources) > 1000
    assert [name for name in compiled if name not in image.contents] == []
    # Bit 0: found by hash, not by time; bit 1: the source is not looked at.
    assert {image.contents[name][4] & 3 for name in compiled} == {1}


def test_every_file_has_the_time_of_the_dockerfile(image: Image) -> None:
    epoch = int(re.findall(r"SOURCE_DATE_EPOCH=(\d+)", (build.ROOT / "Dockerfile").read_text())[0])
    assert {member.mtime for member in image.members.values()} == {epoch}


def test_nothing_of_the_building_machine_is_in_it(image: Image) -> None:
    text = json.dumps(image.config)
    assert "pip.conf" not in text
    assert not [
        name
        for name in image.members
        if name.startswith(("run/secrets", "src", "build", "wheels", "packages", "etc/ssl"))
    ]
    assert not [
        name for name in image.contents if name.endswith(("pip.conf", "direct_url.json", "ca-certificates.crt"))
    ]
    environment = dict(pair.split("=", 1) for pair in image.config["config"]["Env"])
    assert set(environment) == {
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "OPENBLAS_NUM_THREADS",
    }


def test_every_locked_package_is_in_it_in_its_version(image: Image) -> None:
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", LOCK.read_text(), re.MULTILINE))
    found = {}
    for name, content in image.contents.items():
        if name.startswith(_VENV) and name.endswith(".dist-info/METADATA"):
            header = dict(re.findall(r"^(Name|Version): (.+)$", content.decode(), re.MULTILINE))
            found[re.sub(r"[-_.]+", "-", header["Name"]).lower()] = header["Version"]
    assert found.pop("gpuagent") == image.config["config"]["Labels"]["org.opencontainers.image.version"]
    assert found == locked


def test_it_carries_its_bills_of_materials(image: Image) -> None:
    bill = json.loads(image.contents["usr/share/doc/gpuagent/sbom.cdx.json"])
    assert bill["bomFormat"] == "CycloneDX"
    listed = (build.ROOT / "image" / "packages.txt").read_text().splitlines()
    packages = {line.partition("#")[0].strip() for line in listed} - {""}
    assert {name.rpartition("/")[2] for name in image.contents if name.startswith("var/lib/dpkg/status.d/")} == packages
    for package in packages:
        licence = f"usr/share/doc/{package}"
        assert licence in image.members, package
        assert image.members[licence].issym() or f"{licence}/copyright" in image.contents, package


def pod(image: str, name: str, command: list[str] | None, *arguments: str, user: int = 65532) -> dict[str, Any]:
    """One container with nothing it does not need."""
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "args": list(arguments),
        "securityContext": {
            "runAsUser": user,
            "runAsNonRoot": user != 0,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "state", "mountPath": "/var/lib/gpuagent"}],
    }
    if command:
        container["command"] = command
    spec = {
        "hostNetwork": True,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "state", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def outcome(cluster: Cluster, agent_image: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Runs a pod to its end: its phase and what it printed."""
    names: list[str] = []

    def run(command: list[str] | None, *arguments: str) -> tuple[str, str]:
        name = f"image-{len(names)}"
        names.append(name)
        cluster.create_pod(pod(agent_image, name, command, *arguments))
        phase = cluster.wait_phase(name, "Succeeded", "Failed")["status"]["phase"]
        return phase, cluster.pod_log(name)

    yield run
    for name in names:
        cluster.delete_pod(name)


def test_it_runs_without_root_without_rights_and_without_writing(outcome: Any) -> None:
    phase, log = outcome(None, "--version")
    assert (phase, log.split()[0]) == ("Succeeded", "gpuagent")


def test_it_says_what_a_simulated_box_would_offer(outcome: Any) -> None:
    phase, log = outcome(None, "run", "--dry-run", "--simulate", "dgx-a100", "--mode", "share")
    assert phase == "Succeeded", log
    assert "aliyun.com/gpu-mem" in log
    assert "640" in log


def test_the_installer_is_in_it(outcome: Any) -> None:
    phase, log = outcome(["gpu-isolation-installer"], "--help")
    assert phase == "Succeeded", log


def test_the_scheduler_is_in_it(outcome: Any) -> None:
    phase, log = outcome(["gpuscheduler"], "--version")
    assert (phase, log.split()[0]) == ("Succeeded", "gpuscheduler"), log


def test_every_extension_module_finds_its_libraries(outcome: Any) -> None:
    """Also those that are loaded on demand only, when it would be too late to notice."""
    code = """
import ctypes, pathlib, sys
modules = [file for root in ("/usr/lib/python3.11/lib-dynload", "/opt/gpuagent/lib") for file in pathlib.Path(root).rglob("*.so")]
failed = []
for module in modules:
    try:
        ctypes.PyDLL(str(module))
    except OSError as error:
        failed.append(str(error))
print(len(modules), failed)
sys.exit(bool(failed) or len(modules) < 40)
"""
    phase, log = outcome(["python3"], "-c", code)
    assert phase == "Succeeded", log


def test_it_reaches_a_real_api_server(cluster: Cluster, agent_image: str) -> None:
    """With the service account, for which no library is loaded, and with a kubeconfig by what is left of the library."""
    code = """
import json, os, sys
from gpuagent.kube.api.access import SERVICE_ACCOUNT
from gpuagent.kube.api.client import Client
from gpuagent.kube.api.api_errors import ApiError

print(Client().get("/version")["gitVersion"])
try:
    Client().get("/api/v1/nodes")
except ApiError as error:
    print("refused", error)
assert "kubernetes" not in sys.modules

server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
config = {
    "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": f"{SERVICE_ACCOUNT}/ca.crt"}}],
    "users": [{"name": "u", "user": {"tokenFile": f"{SERVICE_ACCOUNT}/token"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}
kubeconfig = os.memfd_create("kubeconfig")
os.write(kubeconfig, json.dumps(config).encode())
print(Client(f"/proc/self/fd/{kubeconfig}").get("/version")["gitVersion"])
"""
    manifest = pod(agent_image, "image-api", ["python3"], "-c", code)
    manifest["spec"]["automountServiceAccountToken"] = True
    cluster.create_pod(manifest)
    phase = cluster.wait_phase("image-api", "Succeeded", "Failed")["status"]["phase"]
    log = cluster.pod_log("image-api")
    cluster.delete_pod("image-api")
    assert phase == "Succeeded", log
    assert log.startswith("v1.36.3\nrefused ")
    assert log.rstrip().endswith("\nv1.36.3")
