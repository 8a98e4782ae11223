"""Directories that look like kubelet's cgroups, in every layout."""

from dataclasses import dataclass, field
from pathlib import Path

POD = "11111111-2222-4333-8444-555555555555"
OTHER_POD = "9999abcd-2222-4333-8444-555555555555"
STATIC_POD = "0123456789abcdef0123456789abcdef"
CONTAINER = "ab" * 32
SANDBOX = "cd" * 32
QOS = ("", "burstable", "besteffort")


@dataclass
class CgroupTree:
    """A cgroup root in which kubelet and a runtime make directories as real ones do.

    Args:
        root: the cgroup root.
        systemd: the cgroup driver.
        above: kubelet's `--cgroup-root`, such as ``kubelet``.
        runtime: ``containerd``, ``crio`` or ``crun``, which is CRI-O with crun.
    """

    root: Path
    systemd: bool = False
    above: str = ""
    runtime: str = "containerd"
    pods_root: Path = field(init=False)

    def __post_init__(self) -> None:
        if self.systemd:
            prefix = f"{self.above}-" if self.above else ""
            folder = self.root / f"{self.above}.slice" if self.above else self.root
            self.pods_root = folder / f"{prefix}kubepods.slice"
        else:
            self.pods_root = self.root / self.above / "kubepods"
        self.pods_root.mkdir(parents=True)

    def pod_path(self, uid: str, qos: str = "burstable") -> Path:
        if not self.systemd:
            return self.pods_root / qos / f"pod{uid}"
        prefix = self.pods_root.name.removesuffix(".slice")
        parent = self.pods_root
        if qos:
            prefix = f"{prefix}-{qos}"
            parent /= f"{prefix}.slice"
        return parent / f"{prefix}-pod{uid.replace('-', '_')}.slice"

    def add_pod(self, uid: str, qos: str = "burstable") -> Path:
        path = self.pod_path(uid, qos)
        path.mkdir(parents=True)
        return path

    def leaf(self, container: str) -> str:
        """Name of a container's cgroup."""
        prefix = {"containerd": "cri-containerd-" if self.systemd else ""}.get(self.runtime, "crio-")
        return f"{prefix}{container}" + (".scope" if self.systemd else "")

    def add_container(self, pod: Path, container: str = CONTAINER) -> list[str]:
        """Names of the cgroups that the container has."""
        name = self.leaf(container)
        (pod / name).mkdir()
        if self.runtime == "containerd":
            return [name]
        (pod / name.replace("crio-", "crio-conmon-")).mkdir()
        if self.runtime != "crun" or not self.systemd:
            return [name]
        (pod / name / "container").mkdir()
        return [name, f"{name}/container"]


LAYOUTS = {
    "cgroupfs": {},
    "systemd": {"systemd": True},
    "kind, cgroupfs": {"above": "kubelet"},
    "kind, systemd": {"systemd": True, "above": "kubelet"},
    "CRI-O, cgroupfs": {"runtime": "crio"},
    "CRI-O, systemd": {"systemd": True, "runtime": "crio"},
    "crun": {"systemd": True, "runtime": "crun"},
}
