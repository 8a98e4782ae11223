"""Facts of a host that the checks need, read below its root. Reads only, decides nothing."""

import re
from dataclasses import dataclass, field

from gpuagent.host import cgpu_proc, cgroups
from gpuisolation.host import gpu_users
from gpuisolation.host.gpu_users import User
from gpuisolation.host.kubelet import CpuPolicy, cpu_policy, without_pod_cgroups
from gpuisolation.host.root import Host

HOOK = "/usr/bin/nvidia-container-runtime-hook"
TOOLKIT = "/usr/bin/nvidia-container-toolkit"
CGROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as the driver's files describe it."""

    bus: str
    model: str
    uuid: str = ""
    minor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """A host at one moment; empty or None where a thing is not there or cannot be read.

    Attributes:
        os_name: for people; `os_id` and `os_version` as /etc/os-release has them, for CentOS with the minor version.
        driver: version of the loaded NVIDIA driver.
        docker: version text; `containerd` likewise.
        vendor: of the machine, by its DMI.
        cpu: kubelet's CPU manager policy.
        cgroup: 1, 2 or None.
        pods_cgroups: cgroups that may be kubelet's of all pods.
        no_pod_cgroups: where kubelet is told to make no cgroups of pods; empty if it is not.
        memory_accounting: the driver's parameter RmMemacctMode; empty if it is not set.
        mig: GPUs in MIG mode, for people.
        hook: whether there is a container hook; `toolkit`: whether the program exists that the hook calls.
        toolkit_version: of the NVIDIA container toolkit.
    """

    os_name: str = ""
    os_id: str = ""
    os_version: str = ""
    kernel: str = ""
    driver: str = ""
    gpus: tuple[GpuInfo, ...] = ()
    docker: str = ""
    containerd: str = ""
    vendor: str = ""
    cpu: CpuPolicy = field(default_factory=CpuPolicy)
    cgroup: int | None = None
    pods_cgroups: tuple[str, ...] = ()
    no_pod_cgroups: str = ""
    memory_accounting: str = ""
    mig: tuple[str, ...] = ()
    mps_control: bool = False
    hook: bool = False
    toolkit: bool = False
    toolkit_version: str = ""
    users: tuple[User, ...] = ()
    state: cgpu_proc.CgpuState | None = field(default=None)


def read(host: Host) -> HostFacts:
    """All facts; raises nothing that a missing file could cause."""
    os_release = _assignments(host.text("/etc/os-release") or "")
    os_id = os_release.get("ID", "")
    os_version = os_release.get("VERSION_ID", "")
    if os_id == "centos":
        # Its os-release has only the first number.
        os_version = _first(r"(\d+\.\d+)", host.text("/etc/centos-release") or "") or os_version
    driver = _first(r"Kernel Module.*?\s(\d+(?:\.\d+){1,2})\s", host.text("/proc/driver/nvidia/version") or "")
    return HostFacts(
        os_name=os_release.get("PRETTY_NAME", f"{os_id} {os_version}".strip()),
        os_id=os_id,
        os_version=os_version,
        kernel=(host.text("/proc/sys/kernel/osrelease") or "").strip(),
        driver=driver,
        gpus=_gpus(host),
        docker=_version(host, "docker"),
        containerd=_version(host, "containerd"),
        vendor=_vendor(host),
        cpu=cpu_policy(host),
        cgroup=_cgroup(host),
        pods_cgroups=_pods_cgroups(host),
        no_pod_cgroups=without_pod_cgroups(host),
        memory_accounting=_memory_accounting(host),
        # Without a loaded driver, nvidia-smi would load it.
        mig=_mig(host) if driver else (),
        mps_control=host.has_command("nvidia-cuda-mps-control"),
        hook=host.exists(HOOK),
        toolkit=host.exists(TOOLKIT),
        toolkit_version=_version(host, "nvidia-ctk"),
        users=gpu_users.find(host),
        state=cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC)),
    )


def _assignments(text: str) -> dict[str, str]:
    values = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values[key.strip()] = value.strip().strip("\"'")
    return values


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _gpus(host: Host) -> tuple[GpuInfo, ...]:
    folder = "/proc/driver/nvidia/gpus"
    gpus = []
    for bus in host.names(folder):
        information = host.text(f"{folder}/{bus}/information") or ""
        gpus.append(_gpu(bus, information))
    return tuple(gpus)


def _gpu(bus: str, information: str) -> GpuInfo:
    """A GPU from the driver's file about it, which has lines such as ``Device Minor: 0``."""
    values = {}
    for line in information.splitlines():
        key, _, value = line.partition(":")
        values[key.strip()] = value.strip()
    minor = values.get("Device Minor", "")
    return GpuInfo(bus, values.get("Model", ""), values.get("GPU UUID", ""), _number(minor))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _version(host: Host, command: str) -> str:
    if not host.has_command(command):
        return ""
    return _first(r"\bv?(\d+\.\d+\.\d+)", host.run(command, "--version").text)


def _vendor(host: Host) -> str:
    folder = "/sys/class/dmi/id"
    names = [host.text(f"{folder}/{name}") or "" for name in ("sys_vendor", "product_name")]
    return " / ".join(name.strip() for name in names if name.strip())


def _cgroup(host: Host) -> int | None:
    if host.exists(f"{CGROUPS}/cgroup.controllers"):
        return 2
    return 1 if host.exists(f"{CGROUPS}/devices") else None


def _pods_cgroups(host: Host) -> tuple[str, ...]:
    root = host.at(CGROUPS)
    return tuple(f"{CGROUPS}/{path.relative_to(root)}" for path in cgroups.pods_roots(root))


def _memory_accounting(host: Host) -> str:
    """A registry key of the driver's module: ``RegistryDwords: "A=1;RmMemacctMode=0"``; empty if it is not set."""
    parameters = host.text("/proc/driver/nvidia/params") or ""
    # The module takes hexadecimal numbers, too.
    number = _first(r"\bRmMemacctMode=(\w+)", parameters)
    try:
        return str(int(number, 0))
    except ValueError:
        return number


def _mig(host: Host) -> tuple[str, ...]:
    output = host.run("nvidia-smi", "--query-gpu=index,mig.mode.current", "--format=csv,noheader")
    if output.code != 0:
        return ()
    gpus = []
    for line in output.text.splitlines():
        index, _, mode = line.partition(",")
        if mode.strip() == "Enabled":
            gpus.append(f"GPU {index.strip()}")
    return tuple(gpus)
