"""The checks: each makes one row from the facts. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuagent.host import cgpu_proc
from gpuagent.host.cgpu_proc import Version
from gpuisolation import matrix
from gpuisolation.host import gpu_users
from gpuisolation.host.facts import HOOK, TOOLKIT, HostFacts


class Verdict(StrEnum):
    """The result of a check: `note` decides nothing, `warn` is for a person to judge, `bad` forbids."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    BAD = "bad"


class LayerKind(StrEnum):
    """The layer that is checked for."""

    CGPU = "cgpu"
    LIMITS = "limits"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one check. The fields are those of the documents for programs.

    Attributes:
        found: what the host has, in words.
        wanted: what it should have.
        todo: what to do; empty if nothing is.
    """

    check: str
    found: str
    wanted: str
    verdict: Verdict
    todo: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The subject of the checks: the host's facts and the planned installation.

    Attributes:
        version: of cGPU to install; None if that is not known.
        modules: where the package's modules for the running kernel come from: `package`, `build`, or `nowhere`; empty
            if no package is given.
        ignore: names of processes that may use the GPUs (monitors).
    """

    facts: HostFacts
    layer: LayerKind = LayerKind.CGPU
    version: Version | None = None
    modules: str = ""
    ignore: Collection[str] = ()

    def bad_for(self, layer: LayerKind) -> Verdict:
        return Verdict.BAD if self.layer is layer else Verdict.NOTE


def system(q: Question) -> Row:
    name = q.facts.os_name or "unknown"
    if q.layer is not LayerKind.CGPU:
        return Row("os", name, "any with the NVIDIA driver", Verdict.OK)
    version = q.facts.os_version
    listed_versions = matrix.SYSTEMS.get(q.facts.os_id, ())
    is_listed = any(version == prefix or version.startswith(f"{prefix}.") for prefix in listed_versions)
    if is_listed:
        return Row("os", name, matrix.SYSTEMS_TEXT, Verdict.OK)
    return Row("os", name, matrix.SYSTEMS_TEXT, Verdict.BAD, "use a listed system, or MPS: preflight --layer mps")


def kernel(q: Question) -> Row:
    wanted = "one the package has modules for, or can build for"
    if not q.facts.kernel:
        return Row("kernel", "unknown", wanted, Verdict.BAD, "mount the host with its /proc below --root")
    if q.modules == "nowhere":
        todo = "take a package with modules for this kernel, or with sources and a Makefile"
        return Row("kernel", q.facts.kernel, wanted, q.bad_for(LayerKind.CGPU), todo)
    return Row("kernel", q.facts.kernel, wanted, Verdict.OK if q.modules == "package" else Verdict.NOTE)


def driver(q: Question) -> Row:
    needs_limits = q.layer is LayerKind.LIMITS
    since = matrix.LIMITS_DRIVER_SINCE if needs_limits else matrix.DRIVER_SINCE
    version = q.facts.driver
    wanted = f">= {since}"
    if not version:
        todo = "install the NVIDIA driver and load it (nvidia-smi must work)"
        return Row("driver", "not loaded", wanted, Verdict.BAD, todo)
    if matrix.at_least(version, since):
        return Row("driver", version, wanted, Verdict.OK)
    todo = f"upgrade the driver to {since} or later"
    if needs_limits:
        todo = f"older drivers have no memory limits: {todo}, or use MPS: preflight --layer mps"
    return Row("driver", version, wanted, Verdict.BAD, todo)


def cgpu_version(q: Question) -> Row:
    loaded = q.facts.state
    version = q.version or (loaded.version if loaded else None)
    wanted = f">= {cgpu_proc.GOOD_SINCE}"
    if version is None:
        todo = "give --package to check its version" if loaded is None else "install it again"
        return Row("cgpu-version", "not known" if loaded else "not installed", wanted, Verdict.NOTE, todo)
    if bad := cgpu_proc.known_bad(version):
        return Row("cgpu-version", str(version), wanted, q.bad_for(LayerKind.CGPU), bad)
    if doubts := cgpu_proc.caveats(version):
        return Row("cgpu-version", str(version), wanted, Verdict.WARN, " ".join(doubts))
    return Row("cgpu-version", str(version), wanted, Verdict.OK)


def cgpu_driver(q: Question) -> Row:
    installed = q.facts.state.version if q.facts.state else None
    version = q.version or installed
    if version is None:
        return _any_cgpu_for_driver(q)
    check = "cgpu-driver"
    driver = q.facts.driver
    pair = f"{driver or 'no driver'} with cGPU {version}"
    row = matrix.drivers_of(version)
    if row is None:
        todo = f"no document names the drivers of cGPU {version}: ask Alibaba Cloud, or take another version"
        return Row(check, pair, "a pair in the matrix", Verdict.WARN, todo)
    wanted = matrix.text_of(row)
    if matrix.takes(row, driver):
        return Row(check, pair, wanted, Verdict.OK)
    fitting = _cgpu_versions_for(driver)
    todo = f"take cGPU {fitting}, or another driver" if fitting else "take a driver of the matrix"
    return Row(check, pair, wanted, q.bad_for(LayerKind.CGPU), todo)


def _any_cgpu_for_driver(q: Question) -> Row:
    """The check while it is not known which cGPU will be installed."""
    check = "cgpu-driver"
    present = q.facts.driver or "no driver"
    fitting = _cgpu_versions_for(q.facts.driver)
    if fitting:
        return Row(check, present, f"cGPU {fitting}", Verdict.OK)
    newest = matrix.DRIVERS[0]
    wanted = f"one in cGPU's matrix ({newest.last})"
    return Row(check, present, wanted, q.bad_for(LayerKind.CGPU), f"use a driver of {matrix.text_of(newest)}")


def _cgpu_versions_for(driver: str) -> str:
    """The versions of cGPU that work with a driver, for people; empty if there are none."""
    return " or ".join(f"{row.first} to {row.last}" for row in matrix.DRIVERS if matrix.takes(row, driver))


def runtime(q: Question) -> Row:
    check = "runtime"
    wanted = f"Docker >= {matrix.DOCKER_SINCE} or containerd >= {matrix.CONTAINERD_SINCE}"
    docker = q.facts.docker
    containerd = q.facts.containerd
    installed = []
    if docker:
        installed.append(f"Docker {docker}")
    if containerd:
        installed.append(f"containerd {containerd}")
    if not installed:
        return Row(check, "none found", wanted, q.bad_for(LayerKind.CGPU), "install one of them")
    versions = ", ".join(installed)
    # A runtime that is not installed has the empty version, which is older than any other.
    if matrix.at_least(docker, matrix.DOCKER_SINCE) or matrix.at_least(containerd, matrix.CONTAINERD_SINCE):
        return Row(check, versions, wanted, Verdict.OK)
    return Row(check, versions, wanted, q.bad_for(LayerKind.CGPU), "upgrade the container runtime")


def toolkit(q: Question) -> Row:
    programs = {HOOK: q.facts.hook, TOOLKIT: q.facts.toolkit}
    paths = ", ".join(path for path, exists in programs.items() if exists) or "none"
    wanted = "the NVIDIA container toolkit"
    if q.layer is LayerKind.LIMITS:
        return _toolkit_for_limits(q.facts.toolkit_version, paths)
    if q.facts.toolkit or q.facts.hook:
        return Row("toolkit", paths, wanted, Verdict.OK)
    todo = "install the NVIDIA container toolkit: the wrapper hands on to it"
    return Row("toolkit", paths, wanted, q.bad_for(LayerKind.CGPU), todo)


def _toolkit_for_limits(version: str, paths: str) -> Row:
    """The check for limits: a later toolkit's hook sets them too, as variables of the container say."""
    wanted = f"any; from {matrix.LIMITS_HOOK_SINCE} on its hook sets limits, too"
    shown = f"{paths}, version {version}" if version else paths
    if not matrix.at_least(version, matrix.LIMITS_HOOK_SINCE):
        return Row("toolkit", shown, wanted, Verdict.OK)
    todo = (
        "its hook obeys NVIDIA_GPU_MEMORY_LIMIT of any container: keep the chart's policy gpu-memory-limits, "
        "which refuses pods that set it (Kubernetes 1.30 and later)"
    )
    return Row("toolkit", shown, wanted, Verdict.NOTE, todo)


def gpu_family(q: Question) -> Row:
    models = sorted({gpu.model or "unknown" for gpu in q.facts.gpus})
    wanted = matrix.FAMILIES_TEXT
    if not models:
        todo = "load the NVIDIA driver (nvidia-smi must list the GPUs)"
        return Row("gpu-family", "no GPU", wanted, Verdict.BAD, todo)
    names = ", ".join(models)
    strange = [model for model in models if matrix.family(model) not in set(matrix.FAMILIES)]
    if not strange:
        return Row("gpu-family", names, wanted, Verdict.OK)
    todo = f"no document names {', '.join(strange)} for cGPU; use MPS if the mps row allows it"
    return Row("gpu-family", names, wanted, q.bad_for(LayerKind.CGPU), todo)


def ecs(q: Question) -> Row:
    vendor = q.facts.vendor or "unknown"
    wanted = "Alibaba Cloud ECS"
    if "alibaba cloud" in vendor.lower():
        return Row("ecs", vendor, wanted, Verdict.OK)
    todo = "cGPU works on ECS only; try preflight --layer limits here, then --layer mps"
    return Row("ecs", vendor, wanted, q.bad_for(LayerKind.CGPU), todo)


def cpu_manager(q: Question) -> Row:
    cpu = q.facts.cpu
    wanted = "not static"
    if not cpu.policy:
        source = f" ({cpu.source})" if cpu.source else ""
        todo = "kubelet's configuration was not found: make sure its cpuManagerPolicy is none"
        return Row("cpu-manager", f"unknown{source}", wanted, Verdict.WARN, todo)
    policy = f"{cpu.policy} ({cpu.source})"
    if cpu.policy == "static":
        state = f"{cpu.root_dir}/cpu_manager_state"
        todo = f"set cpuManagerPolicy: none in kubelet's configuration, delete {state}, restart kubelet"
        return Row("cpu-manager", policy, wanted, q.bad_for(LayerKind.CGPU), todo)
    if not cpu.runs:
        todo = "no kubelet runs, so this file may not be its own: check again when it runs"
        return Row("cpu-manager", policy, wanted, Verdict.WARN, todo)
    return Row("cpu-manager", policy, wanted, Verdict.OK)


def cgroup(q: Question) -> Row:
    if q.facts.cgroup is None:
        return Row("cgroup", "unknown", "v1 or v2", Verdict.WARN, "mount the host with its /sys below --root")
    version = f"v{q.facts.cgroup}"
    if q.layer is LayerKind.LIMITS:
        return _cgroup_for_limits(q.facts.cgroup, version)
    if q.layer is LayerKind.MPS:
        return Row("cgroup", version, "v1 or v2", Verdict.OK)
    if q.facts.cgroup == 1:
        return Row("cgroup", version, "v1", Verdict.OK)
    todo = "no document says which cGPU works with v2 (0.8's wrapper writes v1's devices.allow): try one node first"
    return Row("cgroup", version, "v1, or what the package's maker promises", Verdict.WARN, todo)


def _cgroup_for_limits(number: int, version: str) -> Row:
    if number == 2:
        return Row("cgroup", version, "v2", Verdict.OK)
    todo = (
        "the driver limits the memory of cgroups v2 only: boot with systemd.unified_cgroup_hierarchy=1, "
        "or use MPS: preflight --layer mps"
    )
    return Row("cgroup", version, "v2", Verdict.BAD, todo)


def pod_cgroups(q: Question) -> Row:
    """Kubelet's cgroup of all pods, below which each pod has the cgroup that is limited."""
    names = ", ".join(q.facts.pods_cgroups) or "none"
    wanted = "one kubepods or kubepods.slice"
    enable = "set cgroupsPerQOS: true in kubelet's configuration, and reboot the drained node"
    if q.facts.no_pod_cgroups:
        # What is in the tree is of the time before that setting.
        off = f"cgroupsPerQOS: false ({q.facts.no_pod_cgroups})"
        return Row("pod-cgroups", off, wanted, q.bad_for(LayerKind.LIMITS), enable)
    if len(q.facts.pods_cgroups) == 1:
        return Row("pod-cgroups", names, wanted, Verdict.OK)
    if q.layer is not LayerKind.LIMITS:
        return Row("pod-cgroups", names, "only --layer limits needs them", Verdict.NOTE)
    if q.facts.pods_cgroups:
        todo = "the agent takes the one that has its own pod; if none has it, name it: chart value limits.podsCgroup"
        return Row("pod-cgroups", names, wanted, Verdict.WARN, todo)
    return Row("pod-cgroups", names, wanted, Verdict.BAD, f"start kubelet; if it runs, {enable}")


def accounting(q: Question) -> Row:
    """Whether a parameter of the driver's module switches the accounting of memory off."""
    mode = q.facts.memory_accounting
    wanted = "not switched off"
    if mode != "0":
        setting = f"RmMemacctMode={mode}" if mode else "the driver's default"
        return Row("accounting", setting, wanted, Verdict.OK)
    todo = (
        "remove RmMemacctMode=0 from NVreg_RegistryDwords in /etc/modprobe.d and /usr/lib/modprobe.d, "
        "renew the initramfs, and reboot"
    )
    return Row("accounting", "RmMemacctMode=0", wanted, q.bad_for(LayerKind.LIMITS), todo)


def mig(q: Question) -> Row:
    wanted = "no GPU in MIG mode"
    if not q.facts.mig:
        return Row("mig", "none", wanted, Verdict.OK)
    todo = "a GPU in MIG mode is not shared: the agent leaves it out. Switch MIG off there: nvidia-smi -i GPU -mig 0"
    is_every = len(q.facts.mig) >= len(q.facts.gpus)
    verdict = Verdict.BAD if is_every and q.layer is LayerKind.LIMITS else Verdict.WARN
    return Row("mig", ", ".join(q.facts.mig), wanted, verdict, todo)


def mps(q: Question) -> Row:
    wanted = "nvidia-cuda-mps-control, and GPUs from Volta on"
    program = "nvidia-cuda-mps-control" if q.facts.mps_control else "no nvidia-cuda-mps-control"
    old_gpus = [gpu for gpu in q.facts.gpus if matrix.before_volta(gpu.model)]
    old = sorted({gpu.model or "unknown" for gpu in old_gpus})
    gpus = f"not from Volta on: {', '.join(old)}" if old else f"{len(q.facts.gpus)} GPUs"
    present = f"{program}, {gpus}"
    if q.facts.mps_control and q.facts.gpus and not old:
        return Row("mps", present, wanted, Verdict.OK)
    todo = "GPUs before Volta get no limits from MPS" if old else "install the driver's compute utilities"
    return Row("mps", present, wanted, q.bad_for(LayerKind.MPS), todo)


def in_use(q: Question) -> Row:
    wanted = "no container on a GPU"
    if not q.facts.users:
        return Row("users", "none", wanted, Verdict.OK)
    users = "; ".join(map(str, q.facts.users))
    if not gpu_users.blocking(q.facts.users, q.ignore):
        return Row("users", users, wanted, Verdict.OK)
    todo = "cordon and drain the node, or wait for them: --wait; --ignore NAME for a monitor"
    return Row("users", users, wanted, q.bad_for(LayerKind.CGPU), todo)


CHECKS: Mapping[str, Callable[[Question], Row]] = {
    "os": system,
    "kernel": kernel,
    "driver": driver,
    "cgpu-version": cgpu_version,
    "cgpu-driver": cgpu_driver,
    "runtime": runtime,
    "toolkit": toolkit,
    "gpu-family": gpu_family,
    "ecs": ecs,
    "cpu-manager": cpu_manager,
    "cgroup": cgroup,
    "pod-cgroups": pod_cgroups,
    "accounting": accounting,
    "mig": mig,
    "mps": mps,
    "users": in_use,
}
NEVER_ACCEPTED = frozenset({"users", "cgpu-version", "kernel"})
"""Checks whose result no flag can override."""


def rows(question: Question) -> tuple[Row, ...]:
    """Every check, in the order in which they are shown."""
    return tuple(check(question) for check in CHECKS.values())


def forbidding(rows: Sequence[Row], accepted: Collection[str] = ()) -> tuple[Row, ...]:
    """Rows that forbid, except those that the operator accepts."""
    overridden = frozenset(accepted) - NEVER_ACCEPTED
    return tuple(row for row in rows if row.verdict is Verdict.BAD and row.check not in overridden)
